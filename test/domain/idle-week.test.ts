// A simulated week in history events (INV-11): an idle node, the ledger beside it, and a node that is silent for days.
// What a signal, a timer and an activity cost is counted on the real server in test/workflow/history.test.ts.
import { describe, expect, it } from 'vitest';
import type { SilentVerdict } from '../../contracts/activities.js';
import type { Inventory } from '../../contracts/inventory.js';
import type { NodeFacts } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { emptyLedger } from '../../domain/ledger/state.js';
import { nextLook as ledgerLook, ledgerStep } from '../../domain/ledger/step.js';
import { emptyNode, nextLook, nextWatch, nodeStep } from '../../domain/node.js';
import { factsOf } from '../../domain/node-facts.js';
import type { NodeEvent, NodeState } from '../../domain/node-state.js';
import { COST } from './costs.js';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const WEEK = 7 * DAY;

/**
 * The `node` workflow's loop with its clock and its history: one look timer, which only a nearer look replaces; one
 * watch at a time; the ledger told of what is new.
 */
class NodeRun {
  readonly state: NodeState;
  events = 0;
  told: NodeFacts[] = [];
  private look: number | null = null;
  private watch: { ends: number; of: string } | null = null;

  constructor(
    public now: number,
    private readonly verdict: SilentVerdict['verdict'] = 'unchanged',
  ) {
    this.state = emptyNode('gpu-a-01', now);
  }

  signal(ev: NodeEvent): void {
    this.events += COST.signal + COST.task;
    this.handle(ev);
  }

  /** Lets the time pass until `to`, with whatever the run itself waits for. */
  until(to: number): void {
    for (;;) {
      const next = Math.min(
        this.look ?? Number.POSITIVE_INFINITY,
        this.watch?.ends ?? Number.POSITIVE_INFINITY,
      );
      if (next > to) break;
      this.now = Math.max(this.now, next);
      if (this.look !== null && this.look <= this.now) {
        this.look = null;
        this.events += COST.timerFired + COST.task;
        this.handle({ type: 'look' });
      } else {
        const { of } = nextWatch(this.state)!;
        this.watch = null;
        this.events += COST.activityDone + COST.task;
        this.handle({ type: 'verdict', of, verdict: { verdict: this.verdict, evidence: '' } });
      }
    }
    this.now = to;
  }

  private handle(ev: NodeEvent): void {
    const changed = nodeStep(this.state, ev, this.now);
    if (nodeStep(this.state, { type: 'look' }, this.now) || changed) this.tell();
    const ms = nextLook(this.state, this.now);
    if (ms !== null && (this.look === null || this.look > this.now + ms)) {
      if (this.look !== null) this.events += COST.timerCancelled;
      this.look = this.now + ms;
      this.events += COST.timerStarted;
    }
    const wanted = nextWatch(this.state);
    const of = JSON.stringify(wanted?.of ?? null);
    if (wanted === null) this.watch = null;
    else if (this.watch?.of !== of) {
      if (wanted.pause_ms > 0) this.events += COST.timerStarted + COST.timerFired + COST.task;
      this.events += COST.activityScheduled;
      this.watch = { ends: this.now + wanted.pause_ms + wanted.for_ms, of };
    }
  }

  private tell(): void {
    this.events += COST.signalOut + COST.task;
    this.told.push(factsOf(this.state));
  }
}

const INVENTORY: Inventory = {
  node_id: 'gpu-a-01',
  boot_id: 'b',
  agent_version: '0.1.0',
  mgmt_addr: null,
  labels: {},
  source: 'nvml',
  driver_version: null,
  gpus: [],
  nvlink_islands: [],
  hcas: [],
  fabrics: [],
  engines: [],
  certificate: null,
  conditions: [],
};

const hello = (session: number): NodeEvent => ({
  type: 'hello',
  hello: {
    session,
    instance: 'cp-1',
    peer_addr: null,
    boot_id: 'b',
    protocol_version: 1,
    agent_version: '0.1.0',
    capabilities: [],
    proven: true,
    clock_offset_ms: 0,
    heartbeat_interval_ms: TIMING.heartbeatInterval,
    inventory: INVENTORY,
    engines: [],
  },
});
const digest: NodeEvent = { type: 'digest', digest: { session: 1, instance: 'cp-1', heartbeats: 120 } };

/** `jitter` in 0..1 of a digest's interval by which each comes early, as a control plane's phases and restarts bring it. */
function idle(hours: number, jitter: number): NodeRun {
  const run = new NodeRun(0);
  run.signal(hello(1));
  const every = TIMING.nodeDigestInterval * (1 - jitter);
  for (let at = every; at <= hours * HOUR; at += every) {
    run.until(at);
    run.signal(digest);
  }
  return run;
}

describe('in a week without news', () => {
  it('a node costs at most 60 events an hour, is never silent, and tells the ledger once', () => {
    const run = idle(WEEK / HOUR, 0);
    expect(run.state.state).toBe('connected');
    expect(run.told).toHaveLength(1);
    expect(run.events / (WEEK / HOUR)).toBeLessThanOrEqual(60);
    // A digest delayed by its control plane's own tick, and the next one early for it: no more looks than that.
    expect(idle(24, 0.05).events / 24).toBeLessThanOrEqual(60);
  });

  it('a run of it goes on for three days at least before it continues as new', () => {
    expect((idle(72, 0).events * HOUR) / HOUR).toBeLessThan(TIMING.maxEvents);
  });

  it('the ledger looks at nothing by itself and hears of instances only, whatever the number of nodes', () => {
    for (const nodes of [1, 200]) {
      const s = emptyLedger('e', 0);
      const { told } = idle(1, 0);
      const all = Array.from({ length: nodes }, (_, i) => ({ ...told[0]!, node_id: `n${i}` }));
      ledgerStep(
        s,
        all.map(facts => ({ kind: 'node', facts })),
        1,
      );
      expect(ledgerLook(s)).toBeNull();
      let events = 0;
      for (let at = TIMING.instanceRegister; at <= WEEK; at += TIMING.instanceRegister) {
        for (const instance of ['cp-1', 'cp-2']) {
          const msg = { instance, queue: `llmgw-cp-${instance}`, peer_addr: null, version: '0.1.0' };
          const effects = ledgerStep(s, [{ kind: 'instance', ...msg }], at);
          expect(effects).toEqual([]);
          events += COST.signal + COST.task;
        }
        expect(ledgerLook(s)).toBeNull();
      }
      expect(events / (WEEK / HOUR)).toBeLessThanOrEqual(60);
      expect(s.journal.length).toBeLessThanOrEqual(50);
    }
  });
});

describe('a node that is away', () => {
  it.each(['dark', 'serving', 'unchanged'] as const)(
    'for a week and %s costs less than an idle one, and tells the ledger of each state once',
    verdict => {
      const run = new NodeRun(0, verdict);
      run.signal(hello(1));
      run.until(60_000);
      run.signal({ type: 'gone', gone: { session: 1, instance: 'cp-1', reason: 'the connection closed' } });
      const before = run.events;
      run.until(DAY);
      expect(run.events - before).toBeLessThanOrEqual(60 * 24);
      const firstDay = run.events;
      run.until(WEEK);
      // The watches grow longer: the later days cost less than an idle node's.
      expect((run.events - firstDay) / 6).toBeLessThanOrEqual(12 * 24);
      const states = { dark: 'lost', serving: 'unsupervised', unchanged: 'silent' } as const;
      expect(run.state.state).toBe(states[verdict]);
      expect(run.told.length).toBeLessThanOrEqual(4);
    },
  );
});
