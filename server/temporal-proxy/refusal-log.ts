// Refusals in the log: one line tells an operator what a hundred thousand would, and a node that is refused in a loop
// must not fill the disk.

import type { Logger } from 'pino';

/** The same node, method and code are written once in this time, with how many there were since. */
const ONCE_IN_MS = 10_000;
/** Different ones remembered at a time; peers that have no identity could make up any number. */
const MAX_KINDS = 5_000;

export interface Refusal {
  method: string;
  /** null: it didn't prove to be one. */
  node: string | null;
  peer: string;
  code: string;
}

export class RefusalLog {
  private readonly kinds = new Map<string, { since: number; unwritten: number }>();

  constructor(
    private readonly log: Pick<Logger, 'warn'>,
    private readonly now: () => number = () => performance.now(),
  ) {}

  write(refusal: Refusal, reason: string): void {
    const now = this.now();
    // Another port is not another peer.
    const who = refusal.node ?? refusal.peer.replace(/:\d+$/, '');
    const key = `${who} ${refusal.method} ${refusal.code}`;
    const kind = this.kinds.get(key);
    if (kind !== undefined && now - kind.since < ONCE_IN_MS) {
      kind.unwritten += 1;
      return;
    }
    if (this.kinds.size >= MAX_KINDS) this.kinds.clear();
    this.kinds.set(key, { since: now, unwritten: 0 });
    const alike = kind === undefined || kind.unwritten === 0 ? {} : { alike: kind.unwritten };
    this.log.warn({ ...refusal, ...alike }, reason);
  }
}
