// What this control plane instance may conclude from a node's silence: nothing while it stood still itself, hears no
// other node, or can't reach the ledger. One for all watches (server/liveness.ts).
import type { NodeRow } from '../contracts/status.js';
import type { Clock } from '../lib/clock.js';

export interface SensesPorts {
  /** Nodes whose heartbeats arrive here, and what changes with each of them. */
  heard(): { node: string; beat: number }[];
  /** The ledger's nodes. Rejects while Temporal, or whoever runs the workflows, can't be reached. */
  ledger(): Promise<Pick<NodeRow, 'node_id' | 'state'>[]>;
}

export const TICK_MS = 1_000;
/** A longer gap between pulses: this process slept (SIGSTOP, starvation), and what it didn't hear says nothing. */
const GAP_MS = 3_000;
const ASK_EVERY_MS = 5_000;
/** Two unanswered questions. */
const UNANSWERED_MS = 15_000;

export interface Sense {
  /** Since when this instance could have heard the node, ms of its clock; may lie ahead. */
  since: number;
  /** Why it can't judge now; null: it can. */
  blind: string | null;
  /** The node's own heartbeats arrive. */
  heard: boolean;
}

export class Senses {
  private watches = 0;
  private pulsedAt: number;
  private ticked = Number.NEGATIVE_INFINITY;
  private since: number;
  private readonly beats = new Map<string, { beat: number; at: number }>();
  private expected: Set<string> | null = null;
  private known = new Set<string>();
  private answeredAt = Number.NEGATIVE_INFINITY;
  private askedAt = Number.NEGATIVE_INFINITY;
  private asking = false;

  /** `graceMs`: after a start or a gap the agents, too, have to come back before their silence counts. */
  constructor(
    private readonly ports: SensesPorts,
    private readonly clock: Clock,
    private readonly graceMs: number,
  ) {
    this.pulsedAt = clock.now();
    this.since = this.pulsedAt + graceMs;
  }

  /** Called about every TICK_MS, watches or not: a late one tells that the whole process was late. */
  pulse(): void {
    const now = this.clock.now();
    if (now - this.pulsedAt > GAP_MS) this.since = now + this.graceMs;
    this.pulsedAt = now;
  }

  enter(): void {
    if (this.watches++ > 0) return;
    // Nobody has looked meanwhile, and what was known is old.
    this.ticked = Number.NEGATIVE_INFINITY;
    this.answeredAt = Number.NEGATIVE_INFINITY;
    this.askedAt = Number.NEGATIVE_INFINITY;
    this.beats.clear();
    this.tick();
  }

  leave(): void {
    this.watches--;
  }

  /** Each watch calls it about every TICK_MS; together they cost one look. */
  tick(): void {
    this.pulse();
    const now = this.clock.now();
    const first = this.ticked === Number.NEGATIVE_INFINITY;
    if (now - this.ticked < TICK_MS / 2) return;
    this.ticked = now;
    this.listen(now, first);
    if (now - this.askedAt >= ASK_EVERY_MS && !this.asking) void this.ask(now);
  }

  /** Who is here when the first watch begins hasn't been heard by that; each further heartbeat has. */
  private listen(now: number, first: boolean): void {
    const heard = this.ports.heard();
    const names = new Set(heard.map(h => h.node));
    for (const name of this.beats.keys()) if (!names.has(name)) this.beats.delete(name);
    for (const { node, beat } of heard) {
      if (this.beats.get(node)?.beat === beat) continue;
      this.beats.set(node, { beat, at: first ? Number.NEGATIVE_INFINITY : now });
    }
  }

  private async ask(now: number): Promise<void> {
    this.asking = true;
    this.askedAt = now;
    try {
      const rows = await this.ports.ledger();
      this.known = new Set(rows.map(r => r.node_id));
      // Silent ones are counted too: when all have fallen silent at once it is this instance that hears nothing.
      const there = rows.filter(r => r.state === 'connected' || r.state === 'silent');
      this.expected = new Set(there.map(r => r.node_id));
      this.answeredAt = this.clock.now();
    } catch {
      // `sense` says so once it has lasted.
    } finally {
      this.asking = false;
    }
  }

  sense(node: string): Sense {
    const heard = this.beats.has(node);
    return { since: this.since, blind: this.blind(node), heard };
  }

  private blind(node: string): string | null {
    if (this.expected === null || this.clock.now() - this.answeredAt > UNANSWERED_MS)
      return 'the ledger does not answer this control plane';
    if (!this.known.has(node)) return `the ledger does not know ${node}`;
    const others = this.othersThan(node);
    const hears = this.beats.size - (this.beats.has(node) ? 1 : 0);
    return others > 0 && hears === 0 ? `this control plane hears none of ${others} other nodes` : null;
  }

  /** How many there are to be heard. */
  othersThan(node: string): number {
    return (this.expected?.size ?? 0) - (this.expected?.has(node) ? 1 : 0);
  }

  /** Whether another node's heartbeat has arrived at or after that time. */
  hasHeardSince(node: string, time: number): boolean {
    for (const [other, { at }] of this.beats) if (other !== node && at >= time) return true;
    return false;
  }
}
