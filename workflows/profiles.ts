// Timeouts and retries of each activity, by call site, with the reason. The summary is the line in the Temporal UI.
import { ActivityCancellationType, proxyActivities } from '@temporalio/workflow';
import type { ControlActivities, NodeActivities, PlanActivities } from '../contracts/activities.js';
import { nodeQueue, WORKFLOW_QUEUE } from '../contracts/ids.js';
import { TIMING } from '../contracts/timing.js';

/** Longer than any order takes: the heartbeat timeout finds a lost task, not this. */
const NO_LIMIT = '365 days';
/** A lost attempt costs the heartbeat timeout and then this; it doesn't grow, the node may be back any second. */
const retryAgain = { initialInterval: '200ms', backoffCoefficient: 1.5, maximumInterval: '5s' } as const;

/**
 * prepare, spawn, launch: one attempt; the driver repeats it, because only it can tell an order that never reached the
 * node (nothing to prove there) from one that was lost on it.
 */
export const launching = (node: string, summary: string) =>
  proxyActivities<NodeActivities>({
    taskQueue: nodeQueue(node),
    scheduleToStartTimeout: TIMING.launchScheduleToStart,
    startToCloseTimeout: '10 minutes',
    heartbeatTimeout: TIMING.activityHeartbeatTimeout,
    cancellationType: ActivityCancellationType.TRY_CANCEL,
    retry: { maximumAttempts: 1 },
    summary,
  });

/** No schedule-to-start: an agent that is away comes back and goes on watching (INV-5); the node's loss ends it. */
export const watching = (node: string, summary: string) =>
  proxyActivities<NodeActivities>({
    taskQueue: nodeQueue(node),
    startToCloseTimeout: NO_LIMIT,
    heartbeatTimeout: TIMING.activityHeartbeatTimeout,
    cancellationType: ActivityCancellationType.TRY_CANCEL,
    retry: retryAgain,
    summary,
  });

/** Tried until the bound; then the caller decides: give the order again, or leave the hold (INV-2). */
export const stopping = (node: string, boundMs: number, summary: string) =>
  proxyActivities<NodeActivities>({
    taskQueue: nodeQueue(node),
    scheduleToCloseTimeout: boundMs,
    heartbeatTimeout: TIMING.activityHeartbeatTimeout,
    cancellationType: ActivityCancellationType.ABANDON,
    retry: retryAgain,
    summary,
  });

/** The ledger's own order; it hears of a node that doesn't take it, and orders it again. */
export const settling = (node: string, summary: string) =>
  stopping(node, TIMING.stopAssumed + TIMING.stopMargin, summary);

/** Taking over what runs: an agent that restarts in between has the time to come back. */
export const adopting = (node: string, summary: string) =>
  proxyActivities<NodeActivities>({
    taskQueue: nodeQueue(node),
    scheduleToCloseTimeout: TIMING.launchScheduleToStart,
    heartbeatTimeout: TIMING.activityHeartbeatTimeout,
    cancellationType: ActivityCancellationType.TRY_CANCEL,
    retry: retryAgain,
    summary,
  });

/** Until it is answered: without it a new ledger grants nothing. */
export const surveying = (summary: string) =>
  proxyActivities<PlanActivities>({
    taskQueue: WORKFLOW_QUEUE,
    startToCloseTimeout: '60 seconds',
    retry: retryAgain,
    summary,
  });

/** One try: the instance pulls the table besides, so a push that is lost costs at most routesPull. */
export const pushing = (queue: string, summary: string) =>
  proxyActivities<ControlActivities>({
    taskQueue: queue,
    scheduleToCloseTimeout: TIMING.pushTimeout,
    retry: { maximumAttempts: 1 },
    summary,
  });

/** A dead instance is found by schedule-to-start; the drain itself ends at its own timeout. */
export const draining = (queue: string, timeoutMs: number, summary: string) =>
  proxyActivities<ControlActivities>({
    taskQueue: queue,
    scheduleToStartTimeout: TIMING.pushTimeout,
    startToCloseTimeout: timeoutMs + TIMING.activityHeartbeatTimeout,
    heartbeatTimeout: TIMING.activityHeartbeatTimeout,
    retry: { maximumAttempts: 1 },
    summary,
  });

/** Before an engine that serves is drained: is the node there, and would it take the next one? An operator waits. */
export const asking = (node: string, summary: string) =>
  proxyActivities<NodeActivities>({
    taskQueue: nodeQueue(node),
    scheduleToStartTimeout: TIMING.pushTimeout,
    // A first look at an engine's binary takes seconds.
    scheduleToCloseTimeout: '60 seconds',
    heartbeatTimeout: TIMING.activityHeartbeatTimeout,
    retry: { maximumAttempts: 1 },
    summary,
  });

/** For `apply`: the operator waits for the answer. */
export const planning = (summary: string) =>
  proxyActivities<PlanActivities>({
    taskQueue: WORKFLOW_QUEUE,
    scheduleToCloseTimeout: '20 seconds',
    retry: { maximumAttempts: 3 },
    summary,
  });

/**
 * Of a node that isn't heard. Any instance can: one that dies, or can't judge, costs a retry, which is no event of the
 * history. A cancelled one ends by itself at its next heartbeat.
 */
export const watchingSilent = (summary: string) =>
  proxyActivities<PlanActivities>({
    taskQueue: WORKFLOW_QUEUE,
    startToCloseTimeout: NO_LIMIT,
    heartbeatTimeout: TIMING.activityHeartbeatTimeout,
    cancellationType: ActivityCancellationType.TRY_CANCEL,
    retry: { initialInterval: '1s', backoffCoefficient: 2, maximumInterval: '30s' },
    summary,
  });
