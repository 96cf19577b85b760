// How long to wait before dialling again: doubles from base to max, with jitter, so that a fleet that lost its
// control plane doesn't come back in one instant.

export class Backoff {
  private failures = 0;

  constructor(
    private readonly baseMs: number,
    private readonly maxMs: number,
    private readonly random: () => number = Math.random,
  ) {}

  /** The next wait, ms: between half of the doubled time and all of it. `atMost`: it doubles no further than this. */
  next(atMost = this.maxMs): number {
    const most = Math.min(this.maxMs, Math.max(atMost, this.baseMs));
    const doubled = this.baseMs * 2 ** this.failures;
    const full = Math.min(most, doubled);
    // Bounded by the longest wait: 2 ** 1024 is Infinity, and an agent may be refused for months. What is waited out at a
    // lower bound is no reason to wait longer afterwards.
    if (doubled < most) this.failures += 1;
    return Math.round(full * (0.5 + this.random() / 2));
  }

  /** Only after a stream was welcomed and has held: a refusal must not be hammered at the base interval. */
  reset(): void {
    this.failures = 0;
  }
}

/** Resolves after `ms`, at once when `signal` aborts or the function that `wakeable` is given is called. */
export function pause(ms: number, signal: AbortSignal, wakeable?: (wake: () => void) => void): Promise<void> {
  return new Promise(resolve => {
    if (signal.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done, { once: true });
    wakeable?.(done);
  });
}
