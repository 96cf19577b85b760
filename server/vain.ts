// Gangs that take connections and answer nothing. Rank 0's open port says nothing of its followers' nodes: an engine without
// a hang watch of its own can keep it open for ever when a follower is dead. That requests come back does say so.
import type { Endpoint } from '../contracts/routes.js';
import type { DataPlane } from './liveness.js';

/** As long as a router waits for the first byte by default: then it gives the request up too. */
const VAIN_MS = 600_000;
/** What nobody has looked at for this long is of a generation that is over. */
const KEPT_MS = 86_400_000;

interface Asked {
  successes: Map<string, string | null>;
  /** The least that was told since the last success. */
  unanswered: number;
  /** Since when requests have come and none was answered; null: none has come, or some were. */
  since: number | null;
  at: number;
}

/** One a control plane: it goes on from watch to watch, so that a node that was lost for it isn't back by the same port. */
export class VainAsks {
  private readonly asked = new Map<string, Asked>();

  constructor(private readonly plane: Pick<DataPlane, 'lastSuccess' | 'unanswered'>) {}

  look({ replica, fence }: Endpoint, now: number): void {
    const key = `${replica}/${fence}`;
    const successes = new Map(this.plane.lastSuccess(replica, fence));
    const told = this.plane.unanswered(replica, fence);
    const known = this.asked.get(key);
    const answered =
      known === undefined || [...successes].some(([r, at]) => at !== null && known.successes.get(r) !== at);
    // A router that began anew counts from 0.
    const unanswered = answered ? told : Math.min(known.unanswered, told);
    const since = answered ? null : (known.since ?? (told > unanswered ? now : null));
    this.asked.set(key, { successes, unanswered, since, at: now });
    for (const [k, { at }] of this.asked) if (now - at > KEPT_MS) this.asked.delete(k);
  }

  /** An idle gang is not: nothing is known against it (INV-5). */
  isVain({ replica, fence }: Endpoint, now: number): boolean {
    const since = this.asked.get(`${replica}/${fence}`)?.since ?? null;
    return since !== null && now - since >= VAIN_MS;
  }
}
