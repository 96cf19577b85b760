// The control plane's activities. Thin: what they need is declared here and given by the server.
import { ApplicationFailure, CancelledFailure, Context } from '@temporalio/activity';
import type { ControlActivities, PlanActivities } from '../../contracts/activities.js';
import { TIMING } from '../../contracts/timing.js';
import type { LedgerState } from '../../domain/ledger/state.js';
import { candidates } from '../../domain/ledger/state.js';
import { place } from '../../domain/placement.js';

export interface ControlPorts {
  refreshRoutes(): Promise<void>;
  /** Ends soon after `signal` aborts. */
  awaitDrained(
    ...args: [...Parameters<ControlActivities['await_drained']>, signal: AbortSignal]
  ): ReturnType<ControlActivities['await_drained']>;
}

export function controlActivities(ports: ControlPorts): ControlActivities {
  return {
    push_routes: () => ports.refreshRoutes(),
    await_drained: input => heartbeating(signal => ports.awaitDrained(input, signal)),
  };
}

export interface PlanPorts {
  ledger(): Promise<LedgerState>;
  survey: PlanActivities['survey'];
  /** Ends soon after `signal` aborts. Rejects when this instance can't judge: another attempt may be another instance's. */
  watchSilent(
    ...args: [...Parameters<PlanActivities['watch_silent']>, signal: AbortSignal]
  ): ReturnType<PlanActivities['watch_silent']>;
}

export function planActivities(ports: PlanPorts): PlanActivities {
  return {
    plan: async ({ replica, shape }) => {
      const placed = place(shape, candidates(await ports.ledger(), replica), [], null, Date.now());
      return placed.fits ? { fits: true, reason: placed.why } : { fits: false, reason: placed.reason };
    },
    survey: input => heartbeating(() => ports.survey(input)),
    watch_silent: input => heartbeating(signal => ports.watchSilent(input, signal)).catch(orElsewhere),
  };
}

/** Reported as cancelled, a watch whose worker shuts down would be found only by its heartbeat timeout. */
function orElsewhere(err: unknown): never {
  if (err instanceof CancelledFailure && err.message === 'WORKER_SHUTDOWN')
    throw ApplicationFailure.retryable('this control plane instance stops');
  throw err;
}

/** Heartbeats until the body ends or the activity is cancelled: a worker that shuts down waits for none of it. */
async function heartbeating<T>(body: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const context = Context.current();
  const beat = setInterval(() => context.heartbeat(), TIMING.activityHeartbeat);
  try {
    return await Promise.race([body(context.cancellationSignal), context.cancelled]);
  } finally {
    clearInterval(beat);
  }
}
