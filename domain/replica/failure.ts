// What follows a failure: again at once, after a wait, elsewhere, or never. Pure arithmetic on the spec's restart rules.
import type { FailureDigest } from '../../contracts/engine.js';
import type { ReplicaSpec } from '../../contracts/spec.js';
import type { AfterStop } from './state.js';

export interface FailureContext {
  failure: FailureDigest;
  /** The generation had been ready: a crash, not a failure to start. */
  wasReady: boolean;
  /** Counted failures still in the window, this one not included. */
  earlier: number[];
  portConflictSpared: boolean;
  restart: ReplicaSpec['restart'];
  now: number;
}

export interface FailureDecision {
  after: AfterStop;
  /** Counted failures in the window, this one included where it counts. */
  failures: number[];
  portConflictSpared: boolean;
}

export const inWindow = (failures: number[], window: number, now: number): number[] =>
  failures.filter(t => now - t < window);

/** Reboot, host stop, an order lost with its node and the first port conflict don't count against max_failures. */
export function decideFailure(c: FailureContext): FailureDecision {
  const kept = inWindow(c.earlier, c.restart.window, c.now);
  const { failure } = c;
  if (failure.class === 'permanent') {
    return {
      after: { next: 'fail', code: 'REPLICA_FAILED', sentence: failure.sentence },
      failures: [...kept, c.now],
      portConflictSpared: c.portConflictSpared,
    };
  }
  if (failure.class === 'host_stop')
    return { after: { next: 'renew' }, failures: kept, portConflictSpared: c.portConflictSpared };
  if (failure.class === 'port_conflict' && !c.portConflictSpared) {
    return { after: { next: 'renew' }, failures: kept, portConflictSpared: true };
  }
  const failures = [...kept, c.now];
  if (failures.length >= c.restart.max_failures) {
    const times = failures.length === 1 ? 'once' : `${failures.length} times`;
    return {
      after: {
        next: 'fail',
        code: 'REPLICA_FAILED',
        sentence: `failed ${times} within restart.window, the last time: ${failure.sentence}`,
      },
      failures,
      portConflictSpared: c.portConflictSpared,
    };
  }
  const after: AfterStop = c.wasReady
    ? { next: 'renew' }
    : { next: 'back_off', wait: backOff(c.restart, failures.length) };
  return { after, failures, portConflictSpared: c.portConflictSpared };
}

/** Doubles with each failure in the window: base, 2 × base, … up to max. */
export function backOff(restart: ReplicaSpec['restart'], failures: number): number {
  return Math.min(restart.backoff_max, restart.backoff_base * 2 ** Math.max(0, failures - 1));
}
