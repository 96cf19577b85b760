// A clock for what waits and measures: monotonic, so that a step of the wall clock is no time passed, and given to those
// who use it, so that tests can let time pass.
import { setTimeout as delay } from 'node:timers/promises';

export interface Clock {
  /** ms, monotonic; only differences mean something. */
  now(): number;
  /** Rejects when `signal` aborts. */
  sleep(ms: number, signal: AbortSignal): Promise<void>;
}

export const monotonic: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) => delay(ms, undefined, { signal }),
};
