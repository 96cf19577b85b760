// Errors that leave a workflow carry a code of the catalogue as their type. `lostAttempt` reads what Temporal says of
// a failed activity.
import {
  ActivityFailure,
  ApplicationFailure,
  CancelledFailure,
  isCancellation,
  TimeoutFailure,
} from '@temporalio/workflow';
import { isErrorCode } from '../contracts/errors.js';

export function failure(code: string, message: string, details?: unknown): ApplicationFailure {
  return ApplicationFailure.create({
    type: code,
    message,
    nonRetryable: true,
    ...(details === undefined || details === null ? {} : { details: [details] }),
  });
}

export type ActivityFault =
  | { kind: 'cancelled' }
  /** Nobody took the task in time: no attempt began. */
  | { kind: 'not_taken' }
  /** An attempt began and was lost: heartbeat or start-to-close timeout, or the worker shut down. */
  | { kind: 'lost'; sentence: string }
  /** The activity itself refused or failed. */
  | { kind: 'refused'; code: string; sentence: string };

export function activityFault(err: unknown): ActivityFault {
  if (isCancellation(err)) return { kind: 'cancelled' };
  const cause = err instanceof ActivityFailure ? err.cause : err;
  if (cause instanceof CancelledFailure) return { kind: 'cancelled' };
  if (cause instanceof TimeoutFailure) {
    if (cause.timeoutType === 'SCHEDULE_TO_START') return { kind: 'not_taken' };
    // The last attempt's own failure says more than "timed out". The SDK leaves it in the proto only.
    const last = cause.failure?.cause;
    if (last?.applicationFailureInfo) return refusal(last.applicationFailureInfo.type, last.message ?? '');
    return { kind: 'lost', sentence: `the node did not answer (${String(cause.timeoutType)})` };
  }
  if (cause instanceof ApplicationFailure) return refusal(cause.type, cause.message);
  return { kind: 'lost', sentence: cause instanceof Error ? cause.message : String(cause) };
}

function refusal(type: string | null | undefined, sentence: string): ActivityFault {
  if (type === 'WORKER_SHUTDOWN') return { kind: 'lost', sentence: 'the agent is restarting' };
  return { kind: 'refused', code: isErrorCode(type) ? type : 'INTERNAL', sentence };
}
