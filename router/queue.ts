// Requests whose model is known but has no endpoint that could take them now: they wait here, within bounds, which is
// what makes the restart of a replica invisible.

export interface QueueLimits {
  /** Waiting requests of one model. */
  perModel: number;
  /** All that wait. */
  total: number;
  /** Bodies of all that wait: they are in memory. */
  bytes: number;
}

export type WaitEnd = 'woken' | 'deadline' | 'cancelled';

/** A place in the queue: kept between two waits, so that who was woken in vain isn't turned away. */
export interface Ticket {
  /** Until there may be room, `until` (an ejection ends) or `deadline`; ms since the epoch. */
  wait(until: number | null, deadline: number): Promise<WaitEnd>;
  /** Ends a wait: the client left. */
  cancel(): void;
  leave(): void;
}

interface Waiter {
  model: string;
  bytes: number;
  end: ((how: WaitEnd) => void) | null;
}

export class WaitQueue {
  private readonly waiting = new Map<string, Set<Waiter>>();
  private size = 0;
  private bytes = 0;

  constructor(private readonly limits: QueueLimits) {}

  /** Null: the queue is full. */
  enter(model: string, bytes: number): Ticket | null {
    const line = this.waiting.get(model) ?? new Set<Waiter>();
    const { perModel, total, bytes: most } = this.limits;
    if (line.size >= perModel || this.size >= total || this.bytes + bytes > most) return null;
    const waiter: Waiter = { model, bytes, end: null };
    line.add(waiter);
    this.waiting.set(model, line);
    this.size++;
    this.bytes += bytes;
    return {
      wait: (until, deadline) => this.wait(waiter, until, deadline),
      cancel: () => waiter.end?.('cancelled'),
      leave: () => this.leave(waiter),
    };
  }

  /** All that wait for these names look again: least outstanding spreads them. */
  wake(models: readonly string[]): void {
    for (const model of models) {
      for (const waiter of this.waiting.get(model) ?? []) waiter.end?.('woken');
    }
  }

  /** Waiting requests by model; models with none are left out. */
  counts(): Record<string, number> {
    return Object.fromEntries([...this.waiting].map(([model, line]) => [model, line.size]));
  }

  private wait(waiter: Waiter, until: number | null, deadline: number): Promise<WaitEnd> {
    const now = Date.now();
    if (now >= deadline) return Promise.resolve('deadline');
    return new Promise(resolve => {
      const first = until === null ? deadline : Math.min(until, deadline);
      const timer = setTimeout(
        () => waiter.end?.(Date.now() >= deadline ? 'deadline' : 'woken'),
        Math.max(1, first - now),
      );
      waiter.end = how => {
        clearTimeout(timer);
        waiter.end = null;
        resolve(how);
      };
    });
  }

  private leave(waiter: Waiter): void {
    waiter.end?.('cancelled');
    const line = this.waiting.get(waiter.model);
    if (line?.delete(waiter) !== true) return;
    this.size--;
    this.bytes -= waiter.bytes;
    if (line.size === 0) this.waiting.delete(waiter.model);
  }
}
