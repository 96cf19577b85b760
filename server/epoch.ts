// Which ledger this instance talks to. A ledger that is another one, or was reset to an earlier point, has lost what it
// was told: this instance registers again and says the hello of each of its nodes again, as of the last heartbeat; the
// agents' streams go on undisturbed. So do entities that somebody terminated.
import { FLEET_ID } from '../contracts/ids.js';
import type { Holders } from '../contracts/messages.js';
import type { LedgerRoutes, RouteTable } from '../contracts/routes.js';
import type { Logger } from '../lib/log.js';
import { isLedgerGone } from './fleet.js';
import type { OpenRuns, RunStart } from './runs.js';

/** Hellos that are said again: each starts a workflow task of its node, and a thousand at once are a stampede. */
const HELLO_EVERY_MS = 50;
const HELLOS_AT_ONCE = 10;
/** After one that Temporal or a worker didn't take. */
const PAUSE_MS = 5_000;
/** One node at most this often: until its facts have reached the ledger, it is still missing there. */
const AGAIN_MS = 60_000;
/** Nodes that are missing in the list of open runs and are asked, a look. */
const CHECKS = 20;
/** Runs of the ledger that may lie between two looks, in a flood of signals. */
const HOPS = 32;
const REMEMBERED = 100;

type Mark = Pick<LedgerRoutes, 'epoch' | 'run_id' | 'continued_run_id'>;

export interface LedgerWatchOptions {
  instance: string;
  routes(): Promise<LedgerRoutes>;
  register(): Promise<void>;
  rebuild(msg: { why: string }): Promise<void>;
  /** How a run of the ledger began; null: not to be read any more. */
  start(workflowId: string, runId: string): Promise<RunStart | null>;
  agents: {
    /** Nodes whose streams are here. */
    nodes(): string[];
    /** The node's hello as of its last heartbeat, under its present session. */
    helloAgain(nodeId: string): Promise<void>;
    /** Its heartbeats arrive here. */
    tellHeard(nodeId: string): Promise<void>;
  };
  /** The node's workflow is open. */
  nodeIsOpen(nodeId: string): Promise<boolean>;
  log: Logger;
  now?: () => number;
}

export class LedgerWatch {
  private last: Mark | null = null;
  private readonly seen: string[] = [];
  private judging: Promise<void> | null = null;
  private changed = false;
  private registerDue = false;
  private readonly due = new Set<string>();
  /** Node → when its hello was said again. */
  private readonly saidAt = new Map<string, number>();
  private inFlight = 0;
  private pumping = false;
  private pausedUntil = 0;
  private closed = false;
  private readonly now: () => number;

  constructor(private readonly o: LedgerWatchOptions) {
    this.now = o.now ?? Date.now;
  }

  /** The table for routers; null while the ledger is rebuilt: they keep what they have (INV-5). Starts a ledger that is gone. */
  table = async (): Promise<RouteTable | null> => {
    const { version, endpoints, rebuilding, ...mark } = await this.o.routes().catch(async err => {
      if (!isLedgerGone(err)) throw err;
      this.o.log.warn('there is no ledger: it is started, and rebuilt from what everybody holds');
      await this.o.register();
      return this.o.routes();
    });
    void this.saw(mark);
    return rebuilding ? null : { version, endpoints };
  };

  /** What the janitor has just read: who is missing there. False: the ledger isn't the one of the last look. */
  async look(holders: Holders, open: OpenRuns): Promise<boolean> {
    await this.saw(holders);
    if (!holders.instances.includes(this.o.instance)) this.registerDue = true;
    const there = new Set(holders.nodes);
    const nodes = this.o.agents.nodes();
    for (const id of this.saidAt.keys()) if (!nodes.includes(id)) this.saidAt.delete(id);
    const now = this.now();
    // Another instance that can't reach this one told that they are gone.
    for (const id of holders.quiet ?? [])
      if (nodes.includes(id)) await this.o.agents.tellHeard(id).catch(() => undefined);
    let checks = CHECKS;
    for (const id of nodes) {
      const lately = now - (this.saidAt.get(id) ?? Number.NEGATIVE_INFINITY) < AGAIN_MS;
      if (!there.has(id) && !lately) this.due.add(id);
      else if (!open.nodes.has(id) && checks-- > 0 && !(await this.o.nodeIsOpen(id))) this.due.add(id);
    }
    this.pump();
    const same = !this.changed;
    this.changed = false;
    return same;
  }

  close(): void {
    this.closed = true;
  }

  /** Resolves when it is known whether this is the ledger that was seen before. Never rejects. */
  private saw(mark: Mark): Promise<void> {
    this.judging ??= this.judge(mark)
      .catch(err =>
        this.o.log.warn(
          { err: messageOf(err) },
          'it could not be told whether the ledger was reset: looked at again',
        ),
      )
      .finally(() => {
        this.judging = null;
      });
    return this.judging;
  }

  private async judge({ epoch, run_id, continued_run_id }: Mark): Promise<void> {
    // An answer that was on its way for longer than a later one.
    if (this.seen.includes(run_id)) return;
    const mark = { epoch, run_id, continued_run_id };
    const before = this.last;
    const another = before !== null && before.epoch !== epoch;
    const reset = await this.wasReset(mark, another ? null : before);
    if (reset) {
      const why = `reset: run ${run_id} begins at an earlier point`;
      this.o.log.warn({ run: run_id, before: before?.run_id ?? null }, 'the ledger was reset: it is rebuilt');
      await this.o.rebuild({ why });
    } else if (another) {
      this.o.log.warn(
        { epoch, before: before.epoch },
        'the ledger is another one: it is told everything again',
      );
    }
    this.last = mark;
    this.seen.push(run_id);
    if (this.seen.length > REMEMBERED) this.seen.shift();
    if (!reset && !another) return;
    this.changed = true;
    this.tellAll();
  }

  /** Walks back from the run to the one seen last; a reset on the way, or a way that doesn't lead there, is one. */
  private async wasReset(mark: Mark, before: Mark | null): Promise<boolean> {
    let run = mark.run_id;
    for (let hop = 0; hop < HOPS; hop++) {
      if (run === before?.run_id) return false;
      const began = await this.o.start(FLEET_ID, run);
      if (began === null) return before !== null;
      if (began.originalRunId !== run) return true;
      if (before === null) return false;
      if (began.continuedRunId === null) return true;
      run = began.continuedRunId;
    }
    return true;
  }

  private tellAll(): void {
    this.registerDue = true;
    for (const id of this.o.agents.nodes()) this.due.add(id);
    this.pump();
  }

  private pump(): void {
    if (this.pumping) return;
    this.pumping = true;
    void this.run().finally(() => {
      this.pumping = false;
      // Something may have failed, and be due again, in the moment in which the loop ended.
      if (!this.closed && this.due.size > 0) this.pump();
    });
  }

  private async run(): Promise<void> {
    while (!this.closed && (this.registerDue || this.due.size > 0)) {
      const pause = this.pausedUntil - this.now();
      if (pause > 0 || this.inFlight >= HELLOS_AT_ONCE) {
        await sleep(HELLO_EVERY_MS);
        continue;
      }
      if (this.registerDue) {
        this.registerDue = false;
        await this.o.register().catch(err => {
          this.registerDue = true;
          this.putOff(err, 'this instance could not register');
        });
        continue;
      }
      const [id] = this.due;
      this.due.delete(id!);
      void this.say(id!);
      await sleep(HELLO_EVERY_MS);
    }
  }

  private async say(nodeId: string): Promise<void> {
    this.inFlight++;
    this.saidAt.set(nodeId, this.now());
    try {
      await this.o.agents.helloAgain(nodeId);
      this.o.log.info({ node: nodeId }, 'said the hello of a connected node again');
    } catch (err) {
      this.due.add(nodeId);
      this.putOff(err, 'the hello of a connected node could not be said again', nodeId);
    } finally {
      this.inFlight--;
      this.pump();
    }
  }

  private putOff(err: unknown, what: string, node?: string): void {
    this.pausedUntil = this.now() + PAUSE_MS;
    this.o.log.warn({ node, err: messageOf(err), in_ms: PAUSE_MS }, `${what}: tried again`);
  }
}

const messageOf = (err: unknown): string => (err instanceof Error ? err.message : String(err));

const sleep = (ms: number): Promise<void> =>
  new Promise(resolve => {
    setTimeout(resolve, ms).unref();
  });
