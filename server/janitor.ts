// The janitor: a loop in each instance that compares what the ledger holds for replicas with the runs that are open. It
// tells the ledger only what Temporal positively says is closed (INV-5: "not found", an error, a list that lags stop
// nothing), and asks a replica that was reset what it holds. What is to be done about it is the ledger's to decide.
import type { ClosedMsg, Holders } from '../contracts/messages.js';
import { TIMING } from '../contracts/timing.js';
import type { Logger } from '../lib/log.js';
import type { LatestRun, OpenRuns } from './runs.js';

/** Descriptions a sweep, and at a time. What is left waits for the next sweep, and the ledger is told nothing until then. */
const DESCRIBES = 100;
const DESCRIBES_AT_ONCE = 10;
/** That a run is closed is believed for this long: with DESCRIBES a sweep, a thousand are looked at meanwhile. */
const CLOSED_MS = 300_000;
/** That an id has no run; one that begins shows in the list. After a lost database that is every engine's. */
const NONE_MS = 3_600_000;
/** An unchanged set is told again after this: a ledger that refused it (INV-5) says so again. */
const TOLD_MS = 600_000;
/** Entries of one signal (INV-11: 64 KiB). All of a sweep must be in one, because the ledger judges it as one. */
const MAX_ENTRIES = 250;
/** A replica is asked at most this often what it holds, and ever more seldom: each time costs history (INV-11). */
const ASK_MS = 60_000;
const ASK_MAX_MS = 3_600_000;

type Entry = ClosedMsg['closed'][number];

/** Temporal's statuses of a run that has ended for good, as the ledger and people are told them. */
const ENDED: Partial<Record<LatestRun['status'], string>> = {
  CANCELLED: 'CANCELED',
  TERMINATED: 'TERMINATED',
  COMPLETED: 'COMPLETED',
  FAILED: 'FAILED',
  TIMED_OUT: 'TIMED_OUT',
};

export interface JanitorOptions {
  holders(): Promise<Holders>;
  open(): Promise<OpenRuns>;
  latest(replica: string): Promise<LatestRun | null>;
  tellClosed(msg: ClosedMsg): Promise<void>;
  askAssert(replica: string): Promise<void>;
  /** Who wants the same look, and tells whether it is still the ledger of the last one. */
  onLook?(holders: Holders, open: OpenRuns): Promise<boolean>;
  log: Logger;
  now?: () => number;
}

export class Janitor {
  /**
   * Replica → what its latest run was described as, and until when that is believed; null: there is no run. Not once the
   * ledger names another run of it, which may have ended before any list showed it.
   */
  private readonly described = new Map<string, { entry: Entry | null; until: number; runs: string }>();
  private told = { entries: new Set<string>(), at: 0 };
  /** Replica/run → when it was asked, and when it may be again. */
  private readonly asked = new Map<string, { next: number; wait: number }>();
  private timer: NodeJS.Timeout | null = null;
  private stopped = false;
  private failing = false;
  private readonly now: () => number;

  constructor(private readonly o: JanitorOptions) {
    this.now = o.now ?? Date.now;
  }

  /** Sweeps until `stop`, never two at a time. */
  start(): void {
    // Jittered, so that two instances don't ask in step.
    const wait = TIMING.janitorSweep * (0.75 + Math.random() * 0.5);
    this.timer = setTimeout(() => {
      void this.sweep().finally(() => {
        if (!this.stopped) this.start();
      });
    }, wait);
    this.timer.unref();
  }

  stop(): void {
    this.stopped = true;
    if (this.timer !== null) clearTimeout(this.timer);
  }

  /** One look. Never rejects: while Temporal is away nothing is known, and so nothing is done. */
  async sweep(): Promise<void> {
    try {
      await this.look();
      this.failing = false;
    } catch (err) {
      this.o.log[this.failing ? 'debug' : 'warn'](
        { err: err instanceof Error ? err.message : String(err) },
        'the janitor could not look: nothing is concluded from that, and it goes on trying',
      );
      this.failing = true;
    }
  }

  private async look(): Promise<void> {
    // The ledger first: a replica that it holds something for was open before the list is made.
    const holders = await this.o.holders();
    const open = await this.o.open();
    const same = (await this.o.onLook?.(holders, open)) ?? true;
    if (!same || holders.rebuilding !== null) return this.forget();
    await this.askReset(holders, open);
    await this.tell(holders, open);
  }

  /** Another ledger, or one that is rebuilt, knows nothing of what was told. */
  private forget(): void {
    this.described.clear();
    this.told = { entries: new Set(), at: 0 };
  }

  private async tell(holders: Holders, open: OpenRuns): Promise<void> {
    const holding = new Map<string, string>();
    for (const g of holders.grants) holding.set(g.replica, `${holding.get(g.replica) ?? ''}/${g.run_id}`);
    const suspects = [...holding.keys()].filter(replica => !open.replicas.has(replica));
    for (const replica of this.described.keys())
      if (holding.get(replica) !== this.described.get(replica)?.runs || open.replicas.has(replica))
        this.described.delete(replica);
    const now = this.now();
    const due = suspects.filter(replica => (this.described.get(replica)?.until ?? 0) <= now);
    await this.describe(due.slice(0, DESCRIBES), holding);
    if (due.length > DESCRIBES) {
      this.o.log.warn(
        { replicas: due.length },
        'many replicas hold GPUs and are not open: looked at in turns',
      );
      return;
    }
    const entries = suspects.map(r => this.described.get(r)?.entry ?? null).filter(e => e !== null);
    const news = entries.some(e => !this.told.entries.has(keyOf(e)));
    if (entries.length === 0 || (!news && this.now() - this.told.at < TOLD_MS)) return;
    if (entries.length > MAX_ENTRIES) {
      this.o.log.error(
        { replicas: entries.length },
        `more than ${MAX_ENTRIES} replicas that hold GPUs are closed: their engines are kept (INV-5)`,
      );
      return;
    }
    await this.o.tellClosed({ closed: entries });
    this.told = { entries: new Set(entries.map(keyOf)), at: this.now() };
    this.o.log.info(
      { replicas: entries.map(e => e.replica) },
      'told the ledger of closed replicas that hold GPUs',
    );
  }

  private async describe(replicas: string[], holding: Map<string, string>): Promise<void> {
    const queue = [...replicas];
    const one = async (): Promise<void> => {
      for (let replica = queue.shift(); replica !== undefined; replica = queue.shift()) {
        const run = await this.o.latest(replica);
        const entry = run === null ? null : entryOf(replica, run);
        // Open all the same: the list lags behind.
        if (run !== null && entry === null) this.described.delete(replica);
        else
          this.described.set(replica, {
            entry,
            until: this.now() + (run === null ? NONE_MS : CLOSED_MS),
            runs: holding.get(replica) ?? '',
          });
      }
    };
    // A description that fails ends the sweep: what isn't known of one may not make a smaller sweep of the others.
    await Promise.all(Array.from({ length: DESCRIBES_AT_ONCE }, one));
  }

  /** Open under a run that the ledger doesn't know: reset, or its word of a continuation is on its way. */
  private async askReset(holders: Holders, open: OpenRuns): Promise<void> {
    const known = new Map<string, Set<string>>();
    for (const g of holders.grants) known.set(g.replica, (known.get(g.replica) ?? new Set()).add(g.run_id));
    const now = this.now();
    const strange = new Set<string>();
    for (const [replica, runs] of known) {
      const run = open.replicas.get(replica);
      if (run === undefined || runs.has(run)) continue;
      const key = `${replica}/${run}`;
      strange.add(key);
      const before = this.asked.get(key);
      if (before !== undefined && now < before.next) continue;
      const wait = before === undefined ? ASK_MS : Math.min(before.wait * 2, ASK_MAX_MS);
      this.asked.set(key, { next: now + wait, wait });
      await this.o
        .askAssert(replica)
        .catch(err =>
          this.o.log.debug({ replica, err: err instanceof Error ? err.message : String(err) }, 'not asked'),
        );
    }
    for (const key of this.asked.keys()) if (!strange.has(key)) this.asked.delete(key);
  }
}

const keyOf = (e: Entry): string => `${e.replica}/${e.first_run_id}/${e.status}/${e.closed_at}`;

function entryOf(replica: string, run: LatestRun): Entry | null {
  const status = ENDED[run.status];
  if (status === undefined || run.closedAt === null || run.firstRunId === '') return null;
  return {
    replica,
    run_id: run.runId,
    first_run_id: run.firstRunId,
    status,
    closed_at: run.closedAt,
    started_at: run.startedAt,
  };
}
