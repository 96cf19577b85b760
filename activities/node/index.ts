// The activities of a node: thin. Each heartbeats while the supervisor works, maps errors once, and ends at once when
// the agent shuts down, so that the attempt is repeated by the next agent (run twice = run once).
import { Context } from '@temporalio/activity';
import { ApplicationFailure, CancelledFailure } from '@temporalio/common';
import type {
  AdoptOrder,
  InspectResult,
  LoadProgress,
  LookedAt,
  MemberOrder,
  NodeActivities,
  Prepared,
  ReadyResult,
  Spawned,
  StopOrder,
} from '../../contracts/activities.js';
import type { StopProof } from '../../contracts/engine.js';
import { ERRORS, LlmgwError } from '../../contracts/errors.js';
import { TIMING } from '../../contracts/timing.js';

/** Attempts of await_ready that may end in a bug: what passes by itself (a full disk, no descriptors) has passed. */
const READY_ATTEMPTS = 5;
/** Bound of FailureDigest.sentence. */
const SENTENCE_CHARS = 600;

/** What the activities need of the agent's supervisor. */
export interface NodeSupervisor {
  prepare(order: MemberOrder): Promise<Prepared>;
  spawn(order: MemberOrder): Promise<Spawned>;
  launch(order: MemberOrder): Promise<Prepared & Spawned>;
  look(process: { pid: number; port: number }): Promise<LookedAt>;
  adopt(order: AdoptOrder): Promise<Prepared & Spawned>;
  /** Rejects when `signal` aborts; the engine isn't touched by that. */
  awaitReady(
    order: MemberOrder,
    onProgress: (p: LoadProgress) => void,
    signal: AbortSignal,
  ): Promise<ReadyResult>;
  /** The workflow has ended this member's wait: its gang serves. */
  settled(order: MemberOrder): Promise<void>;
  stop(order: StopOrder): Promise<StopProof>;
  check(order: MemberOrder): Promise<void>;
  inspect(order: StopOrder): InspectResult;
}

export interface NodeLog {
  error(fields: object, msg: string): void;
}

export function nodeActivities(supervisor: NodeSupervisor, log: NodeLog): NodeActivities {
  return {
    prepare: order => working(log, () => supervisor.prepare(order)),
    spawn: order => working(log, () => supervisor.spawn(order)),
    launch: order => working(log, () => supervisor.launch(order)),
    look: process => working(log, () => supervisor.look(process)),
    adopt: order => working(log, () => supervisor.adopt(order)),
    await_ready: order =>
      working(log, beat => {
        // Any cancellation ends the watching: of the activity, of its attempt, of the agent.
        return supervisor.awaitReady(order, beat, Context.current().cancellationSignal);
      }).catch((error: unknown) => {
        if (isCancelled(error)) settle(supervisor, order, log);
        return givingUp(error);
      }),
    // Cancelling a stop doesn't end it: half a stop proves nothing.
    stop: order => working(log, () => supervisor.stop(order)),
    check: order => working(log, () => supervisor.check(order)),
    inspect: order => working(log, async () => supervisor.inspect(order)),
  };
}

/** Heartbeats with the latest progress until `job` ends; a shutdown of the worker ends the attempt, not the job. */
async function working<T>(log: NodeLog, job: (beat: (p: LoadProgress) => void) => Promise<T>): Promise<T> {
  const context = Context.current();
  let latest: LoadProgress | undefined;
  const beat = (progress?: LoadProgress) => {
    latest = progress ?? latest;
    context.heartbeat(latest);
  };
  beat();
  const timer = setInterval(beat, TIMING.activityHeartbeat);
  const shutdown = new AbortController();
  try {
    return await Promise.race([job(beat), agentEnds(context, shutdown.signal)]);
  } catch (error) {
    throw failureOf(error, log);
  } finally {
    clearInterval(timer);
    shutdown.abort();
  }
}

/**
 * await_ready has no limit of attempts, since the loss of agents and of tasks must never end it. A bug of ours would
 * be met for ever by it, with the replica loading for as long: after enough attempts it is a failure of the generation,
 * which can be seen, is counted, and starts another one.
 */
function givingUp(error: unknown): ReadyResult {
  const { attempt } = Context.current().info;
  const bug = error instanceof ApplicationFailure && error.type === 'INTERNAL';
  if (!bug || attempt <= READY_ATTEMPTS) throw error;
  const sentence = `the agent failed ${attempt} times to watch the engine load: ${error.message}`;
  return {
    ready: false,
    failure: {
      code: 'INTERNAL',
      class: 'retry',
      sentence: sentence.slice(0, SENTENCE_CHARS),
      exit: null,
      tail: [],
      evidence: null,
    },
  };
}

/** Rejects when the worker shuts down; never settles otherwise. */
function agentEnds(context: Context, done: AbortSignal): Promise<never> {
  const { cancellationSignal } = context;
  return new Promise((_, reject) => {
    const look = () => {
      if (isShutdown(cancellationSignal.reason)) reject(cancellationSignal.reason);
    };
    if (cancellationSignal.aborted) look();
    cancellationSignal.addEventListener('abort', look, { signal: done });
  });
}

/** Nobody waits for the activity any more, so for this neither. */
function settle(supervisor: NodeSupervisor, order: MemberOrder, log: NodeLog): void {
  supervisor.settled(order).catch((err: unknown) => {
    log.error(
      { replica: order.replica, err },
      'a member of a gang could not be looked at when its gang was ready',
    );
  });
}

/** By the workflow: a shutdown or a lost attempt ends a wait that goes on elsewhere. */
const isCancelled = (error: unknown): boolean =>
  error instanceof CancelledFailure && error.message === 'CANCELLED';

const isShutdown = (reason: unknown): boolean =>
  reason instanceof CancelledFailure && reason.message === 'WORKER_SHUTDOWN';

/** The one mapper of this edge: the code is the failure's type, the catalogue says whether a retry can help. */
function failureOf(error: unknown, log: NodeLog): Error {
  if (isShutdown(error)) {
    return ApplicationFailure.create({ type: 'WORKER_SHUTDOWN', message: 'the agent is shutting down' });
  }
  if (error instanceof CancelledFailure || error instanceof ApplicationFailure) return error;
  if (error instanceof LlmgwError) {
    return ApplicationFailure.create({
      type: error.code,
      message: error.message,
      nonRetryable: !ERRORS[error.code].retryable,
      ...(error.details === undefined ? {} : { details: [error.details] }),
    });
  }
  log.error({ err: error }, 'an activity failed in a way that the catalogue does not know');
  const message = error instanceof Error ? error.message : String(error);
  return ApplicationFailure.create({ type: 'INTERNAL', message });
}
