// The watch of a node whose stream is silent: does anything that it serves still answer? `lost` is concluded only from a
// period in one piece in which nothing did and this instance could have heard it (INV-5); whatever breaks the piece
// begins it anew, and so does a restart, because that is another attempt of the activity.
//
// A gang answers at its rank 0 alone, and that counts for its followers' nodes too: it can't serve without them. When a
// follower is really dead, rank 0 ends, or its own agent finds it hung (the hang watch) within minutes. With that
// generation its endpoint leaves the table, and after a period without any answer the follower's node is lost. Not every
// engine has a hang watch: a port that is open while requests come to nothing vouches for no other node (vain.ts).
import type { PlanPorts } from '../activities/control/index.js';
import type { SilentVerdict } from '../contracts/activities.js';
import { formatDuration } from '../contracts/duration.js';
import type { Endpoint } from '../contracts/routes.js';
import { type Clock, monotonic } from '../lib/clock.js';
import { Senses, type SensesPorts, TICK_MS } from './senses.js';
import { VainAsks } from './vain.js';

/** What the node serves, as this instance sees it. */
export interface DataPlane {
  /** null: the route table isn't known. */
  endpointsOf(node: string): Endpoint[] | null;
  /** Router → its last success with this engine as it reported it, by the router's own clock. */
  lastSuccess(replica: string, fence: number): Map<string, string | null>;
  /** Requests to this engine that routers have failed, or wait for. */
  unanswered(replica: string, fence: number): number;
  /** Whether a TCP connection to it is taken. Never rejects; bounded in time. */
  accepts(url: string): Promise<boolean>;
}

export interface LivenessOptions extends SensesPorts {
  dataPlane: DataPlane;
  lostAfterMs: number;
  clock?: Clock;
}

/** Each costs a connection to every endpoint of the node. */
const ROUND_MS = 5_000;
/** So that one lost packet isn't darkness. */
const DARK_ROUNDS = 2;
/** An instance that can't judge for this long lets another one try. */
const BLIND_MS = 60_000;

type Input = Parameters<PlanPorts['watchSilent']>[0];

export class Liveness {
  private readonly clock: Clock;
  private readonly senses: Senses;
  private readonly vain: VainAsks;
  private readonly stopped = new AbortController();

  constructor(private readonly o: LivenessOptions) {
    this.clock = o.clock ?? monotonic;
    this.senses = new Senses(o, this.clock, o.lostAfterMs);
    this.vain = new VainAsks(o.dataPlane);
  }

  /** From here on it knows when this process stood still. */
  start(): void {
    const pulse = async (): Promise<never> => {
      for (;;) {
        this.senses.pulse();
        await this.clock.sleep(TICK_MS, this.stopped.signal);
      }
    };
    pulse().catch(() => undefined);
  }

  stop(): void {
    this.stopped.abort();
  }

  watchSilent: PlanPorts['watchSilent'] = async (input, signal) => {
    this.senses.enter();
    try {
      return await this.watch(input, signal);
    } finally {
      this.senses.leave();
    }
  };

  private async watch({ node_id, believed, for_ms }: Input, signal: AbortSignal): Promise<SilentVerdict> {
    const { clock, senses } = this;
    const { lostAfterMs } = this.o;
    const began = clock.now();
    // What is configured longer than a watch must be able to pass in one.
    const end = began + Math.max(for_ms, 4 * lostAfterMs);
    const probe = new Probe(this.o.dataPlane, this.vain, node_id, Math.min(ROUND_MS, lostAfterMs / 3), clock);
    let darkSince = began;
    let blindSince: number | null = null;
    for (;;) {
      signal.throwIfAborted();
      senses.tick();
      const now = clock.now();
      const { since, blind, heard } = senses.sense(node_id);
      const answer = probe.look();
      if (answer !== null && believed !== 'unsupervised') return { verdict: 'serving', evidence: answer };
      const cannot = blind ?? probe.blind;
      if (answer !== null || heard || cannot !== null) darkSince = now;
      darkSince = Math.max(darkSince, since);

      if (believed !== 'lost' && cannot !== null && answer === null) {
        blindSince ??= now;
        if (now - blindSince >= BLIND_MS) throw new Error(`${node_id} can't be judged here: ${cannot}`);
      } else blindSince = null;

      const dark = now - darkSince >= lostAfterMs && probe.darkRounds(darkSince) >= DARK_ROUNDS;
      if (dark && believed !== 'lost' && this.hearsOn(node_id, darkSince + lostAfterMs))
        return { verdict: 'dark', evidence: this.evidenceOfDark(node_id, probe.endpoints) };
      if (now >= end) return { verdict: 'unchanged', evidence: cannot ?? `it is ${believed} as before` };
      // After the judgement: where every look begins a round, one would always be under way.
      probe.begin(now);
      await clock.sleep(TICK_MS, signal);
    }
  }

  /** At the period's end others are heard still: until then one that was cut off would notice nothing of it. */
  private hearsOn(node: string, end: number): boolean {
    return this.senses.othersThan(node) === 0 || this.senses.hasHeardSince(node, end);
  }

  private evidenceOfDark(node: string, endpoints: number): string {
    const others = this.senses.othersThan(node);
    const what = endpoints === 0 ? 'it serves nothing' : `none of its ${endpoints} endpoints answered`;
    const heard =
      others === 0 ? 'there is no other node' : `of ${others} other nodes some were heard throughout`;
    return `${what} for ${formatDuration(this.o.lostAfterMs)}; ${heard}`;
  }
}

/** The looks at one node's endpoints: connections in rounds, and what routers report in between. */
class Probe {
  /** Why nothing can be said of them; null: something can. */
  blind: string | null = null;
  endpoints = 0;
  private answer: string | null = null;
  /** When each round began that nobody answered; the last ones. */
  private dark: number[] = [];
  private next = Number.NEGATIVE_INFINITY;
  private probing = false;
  private readonly successes = new Map<string, string | null>();

  constructor(
    private readonly plane: DataPlane,
    private readonly vain: VainAsks,
    private readonly node: string,
    private readonly everyMs: number,
    private readonly clock: Clock,
  ) {}

  /** Who has answered since the last look; null: nobody. */
  look(): string | null {
    const endpoints = this.plane.endpointsOf(this.node);
    this.blind = endpoints === null ? 'this control plane has no route table yet' : null;
    if (endpoints === null) return null;
    this.endpoints = endpoints.length;
    for (const e of endpoints) if (e.node !== this.node) this.vain.look(e, this.clock.now());
    const answer = this.served(endpoints) ?? this.answer;
    this.answer = null;
    return answer;
  }

  /** The next round of connections, when it is due. */
  begin(now: number): void {
    const endpoints = this.plane.endpointsOf(this.node);
    if (endpoints !== null && !this.probing && now >= this.next) void this.round(endpoints);
  }

  /** Rounds since then that nobody answered; 0 while one is under way, which may be answered yet. */
  darkRounds(since: number): number {
    return this.probing ? 0 : this.dark.filter(at => at >= since).length;
  }

  private async round(endpoints: Endpoint[]): Promise<void> {
    const began = this.clock.now();
    this.probing = true;
    this.next = began + this.everyMs;
    const vouching = endpoints.filter(e => e.node === this.node || !this.vain.isVain(e, began));
    const taken = await Promise.all(vouching.map(e => this.plane.accepts(e.url)));
    const who = vouching.find((_, i) => taken[i]);
    if (who === undefined) this.dark = [...this.dark.slice(-DARK_ROUNDS), began];
    else this.answer = `${who.replica} takes connections at ${who.url}`;
    this.probing = false;
  }

  /** A success that changed, not one that looks young: a router's clock is its own. */
  private served(endpoints: Endpoint[]): string | null {
    let answer: string | null = null;
    for (const { replica, fence } of endpoints) {
      for (const [router, at] of this.plane.lastSuccess(replica, fence)) {
        const key = `${router}/${replica}/${fence}`;
        const before = this.successes.get(key);
        if (before !== undefined && before !== at && at !== null)
          answer = `${replica} answers router ${router}`;
        this.successes.set(key, at);
      }
    }
    return answer;
  }
}
