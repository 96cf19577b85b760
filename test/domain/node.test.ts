import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import type { EngineReport } from '../../contracts/engine.js';
import type { NodeHello } from '../../contracts/messages.js';
import { SIGNALS, signalFault } from '../../contracts/signals.js';
import { TIMING } from '../../contracts/timing.js';
import { nextLook, nextWatch, nodeStep } from '../../domain/node.js';
import { factsOf, welcome } from '../../domain/node-facts.js';
import { emptyNode, type NodeEvent } from '../../domain/node-state.js';
import { gpuId, inventory } from '../workflow/sim-node.js';

const INTERVAL = 5_000;
const SERVING = { verdict: 'serving', evidence: 'demo takes connections' } as const;
const DARK = { verdict: 'dark', evidence: 'nothing answered' } as const;
const UNCHANGED = { verdict: 'unchanged', evidence: 'as before' } as const;

function hello(over: Partial<NodeHello> = {}): NodeHello {
  return {
    session: 1,
    instance: 'cp',
    peer_addr: null,
    boot_id: 'boot-1',
    protocol_version: 1,
    agent_version: '0.1.0',
    capabilities: [],
    proven: true,
    clock_offset_ms: 0,
    heartbeat_interval_ms: INTERVAL,
    inventory: inventory('n1', 2),
    engines: [],
    ...over,
  };
}

const engine = (over: Partial<EngineReport> = {}): EngineReport => ({
  replica: 'demo',
  fence: 7,
  rank: 0,
  state: 'ready',
  pid: 41,
  gpus: [gpuId('n1', 1)],
  ports: { http: 20_000 },
  stage: null,
  ...over,
});

/** A node and its clock. */
class Bench {
  now = 1_000_000;
  readonly state = emptyNode('n1', this.now);

  send(ev: NodeEvent): boolean {
    this.now += 10;
    return nodeStep(this.state, ev, this.now);
  }
  hello = (over: Partial<NodeHello> = {}) => this.send({ type: 'hello', hello: hello(over) });
  gone = (session = 1) =>
    this.send({ type: 'gone', gone: { session, instance: 'cp', reason: 'the connection closed' } });
  digest = (session = 1) => this.send({ type: 'digest', digest: { session, instance: 'cp', heartbeats: 1 } });
  pass(ms: number): boolean {
    this.now += ms;
    return this.send({ type: 'look' });
  }
  /** The present watch ends so. */
  verdict(verdict: typeof SERVING | typeof DARK | typeof UNCHANGED, of = nextWatch(this.state)!.of): boolean {
    return this.send({ type: 'verdict', of, verdict });
  }
  get shown() {
    return { state: this.state.state, watched: nextWatch(this.state)?.of.believed ?? null };
  }

  static connected(): Bench {
    const bench = new Bench();
    bench.hello();
    return bench;
  }
  static silent(): Bench {
    const bench = Bench.connected();
    bench.gone();
    bench.pass(TIMING.silentAfterIntervals * INTERVAL);
    return bench;
  }
  static unsupervised(): Bench {
    const bench = Bench.silent();
    bench.verdict(SERVING);
    return bench;
  }
  static lost(): Bench {
    const bench = Bench.silent();
    bench.verdict(DARK);
    return bench;
  }
}

describe('a node that is not heard', () => {
  it('is silent only after three intervals, and is watched from then on', () => {
    const bench = Bench.connected();
    expect(bench.gone()).toBe(true);
    expect(bench.pass(2 * INTERVAL)).toBe(false);
    expect(bench.shown).toEqual({ state: 'connected', watched: null });
    expect(bench.pass(INTERVAL)).toBe(true);
    expect(bench.shown).toEqual({ state: 'silent', watched: 'silent' });
    expect(nextLook(bench.state, bench.now)).toBeNull();
  });

  it('is silent when no control plane has told of it for long', () => {
    const bench = Bench.connected();
    expect(bench.pass(TIMING.nodeLookInterval)).toBe(true);
    expect(bench.state.reason).toContain('no control plane has told of a heartbeat');
  });

  it('is unsupervised while its engines answer, and lost when nothing does any more', () => {
    const bench = Bench.silent();
    expect(bench.verdict(SERVING)).toBe(true);
    expect(bench.shown).toEqual({ state: 'unsupervised', watched: 'unsupervised' });
    expect(bench.state.reason).toContain('serve on without one: demo takes connections');
    expect(bench.verdict(DARK)).toBe(true);
    expect(bench.shown).toEqual({ state: 'lost', watched: 'lost' });
    expect(bench.state.reason).toContain('nothing answered');
    expect(bench.state.journal.map(j => j.text.split(':')[0])).toEqual([
      'connected',
      'stream ended',
      'silent',
      'unsupervised',
      'lost',
    ]);
  });

  it('is lost at once from silence when nothing answers, and unsupervised again when something does', () => {
    const bench = Bench.silent();
    expect(bench.verdict(DARK)).toBe(true);
    expect(bench.state.since).toBe(bench.now);
    expect(bench.verdict(SERVING)).toBe(true);
    expect(bench.shown).toEqual({ state: 'unsupervised', watched: 'unsupervised' });
  });

  it('is connected again by a hello and by a heartbeat, whatever it was believed to be', () => {
    for (const make of [Bench.silent, Bench.unsupervised, Bench.lost]) {
      const [greeted, heard] = [make(), make()];
      expect(greeted.hello({ session: 2 })).toBe(true);
      expect(heard.digest()).toBe(true);
      for (const bench of [greeted, heard])
        expect(bench.shown).toEqual({ state: 'connected', watched: null });
    }
  });

  it.each([SERVING, DARK, UNCHANGED])(
    'is not moved by a $verdict verdict of a watch before its hello',
    verdict => {
      const bench = Bench.silent();
      const { of } = nextWatch(bench.state)!;
      bench.hello({ session: 2 });
      expect(bench.verdict(verdict, of)).toBe(false);
      expect(bench.state.state).toBe('connected');
      // Silent once more, it has a watch of its own.
      bench.gone(2);
      bench.pass(TIMING.silentAfterIntervals * INTERVAL);
      expect(bench.verdict(verdict, of)).toBe(false);
      expect(bench.shown).toEqual({ state: 'silent', watched: 'silent' });
      expect(bench.state.unchanged).toBe(0);
    },
  );

  it('is not moved twice by one watch', () => {
    const bench = Bench.silent();
    const { of } = nextWatch(bench.state)!;
    bench.verdict(UNCHANGED, of);
    expect(bench.verdict(DARK, of)).toBe(false);
    expect(bench.state.state).toBe('silent');
  });

  it('is watched without a gap, in ever longer watches, until it is lost; then ever more seldom', () => {
    const silent = Bench.silent();
    const watches = [];
    for (let i = 0; i < 5; i++) {
      watches.push(nextWatch(silent.state));
      expect(silent.verdict(UNCHANGED)).toBe(false);
    }
    expect(watches.map(w => w?.pause_ms)).toEqual([0, 0, 0, 0, 0]);
    expect(watches.map(w => w!.for_ms / 60_000)).toEqual([10, 20, 40, 60, 60]);
    silent.verdict(DARK);
    const pauses = [];
    for (let i = 0; i < 30; i++) {
      pauses.push(nextWatch(silent.state)!.pause_ms / 60_000);
      silent.verdict(UNCHANGED);
    }
    expect(pauses.slice(0, 5)).toEqual([0, 20, 40, 60, 60]);
    expect(pauses.at(-1)).toBe(60);
    expect(silent.state.journal.length).toBeLessThan(10);
  });

  it('is not watched before its first hello', () => {
    expect(nextWatch(new Bench().state)).toBeNull();
  });

  it('that is incompatible stays so, heard or not', () => {
    const bench = new Bench();
    bench.hello({ compatible: false });
    bench.gone();
    bench.pass(TIMING.nodeLookInterval);
    bench.digest();
    expect(bench.shown).toEqual({ state: 'incompatible', watched: null });
  });
});

describe('a hello', () => {
  it('tells the ledger when it came, of which boot, and which engines live in which slots', () => {
    const bench = new Bench();
    const serves = { model: 'm', aliases: [], url: 'http://10.0.0.1:20000', key_id: null, revision: 'r1' };
    bench.hello({
      engines: [
        engine({ serves }),
        engine({ replica: 'odd', fence: 8, gpus: ['GPU-of-another-node'], state: 'loading', pid: null }),
      ],
    });
    const facts = factsOf(bench.state);
    expect(facts).toMatchObject({
      hello_at: bench.now,
      boot_id: 'boot-1',
      running: [
        { replica: 'demo', fence: 7, rank: 0, slots: [1], state: 'ready', pid: 41, serves },
        { replica: 'odd', fence: 8, rank: 0, slots: [], state: 'loading', pid: null, serves: null },
      ],
    });
    expect(signalFault(SIGNALS.fleet.node, facts)).toBeNull();
  });

  it('with no more of its engines than what makes one is told all the same', () => {
    const bench = new Bench();
    bench.hello({ engines: [{ replica: 'demo', fence: 7, rank: 0 } as EngineReport] });
    expect(signalFault(SIGNALS.fleet.node, factsOf(bench.state))).toBeNull();
  });

  it('of the same session is taken again: its engines are the present ones, and the ledger hears of it', () => {
    const bench = new Bench();
    bench.hello({ engines: [engine()] });
    bench.hello({ session: 2, instance: 'cp-2', engines: [engine()] });
    const { hello_at } = factsOf(bench.state);
    expect(bench.hello({ session: 2, instance: 'cp-2', engines: [engine({ fence: 9 })] })).toBe(true);
    expect(factsOf(bench.state).running).toMatchObject([{ fence: 9 }]);
    expect(factsOf(bench.state).hello_at).toBeGreaterThan(hello_at);
    // Who held it before that session is still known.
    expect(welcome(bench.state).previous).toMatchObject({ session: 1, instance: 'cp' });
  });

  it('of a session that has ended since makes it connected no more', () => {
    const bench = Bench.silent();
    expect(bench.hello()).toBe(false);
    expect(bench.state.state).toBe('silent');
    // Its heartbeats say that it hasn't ended at all.
    bench.digest();
    expect(bench.hello()).toBe(true);
  });
});

describe('a node that is forgotten', () => {
  it.each([Bench.silent, Bench.unsupervised, Bench.lost])(
    'has no watch, no session and no slots left',
    make => {
      const bench = make();
      bench.send({ type: 'forget', forget: { by: 'ann' } });
      expect(bench.state).toMatchObject({ forgotten: 'ann', slots: {}, session: null, highest_session: 0 });
      expect(nextWatch(bench.state)).toBeNull();
      expect(bench.state.journal.at(-1)!.text).toBe('forgotten: ann says that the machine is gone');
    },
  );

  it('counts again when a hello came right behind, with its slots numbered anew', () => {
    const bench = Bench.lost();
    const { seq } = bench.state;
    bench.send({ type: 'forget', forget: { by: 'ann' } });
    expect(bench.hello({ inventory: inventory('n1', 1), boot_id: 'boot-2' })).toBe(true);
    expect(bench.state).toMatchObject({ forgotten: null, state: 'connected', slots: { 0: gpuId('n1', 0) } });
    expect(bench.state.seq).toBeGreaterThanOrEqual(seq);
  });

  it('stays when it said hello first, and the ledger is told', () => {
    const bench = Bench.connected();
    expect(bench.send({ type: 'forget', forget: { by: 'ann' } })).toBe(true);
    expect(bench.state).toMatchObject({ forgotten: null, state: 'connected' });
    expect(bench.state.journal.at(-1)!.text).toContain('ann');
  });
});

it('makes every change of state that docs/states.md draws, and no other', () => {
  const events: ((bench: Bench) => void)[] = [
    bench => bench.hello({ session: 2 }),
    bench => bench.hello({ session: 2, compatible: false }),
    bench => bench.digest(),
    bench => {
      bench.gone();
      bench.pass(TIMING.silentAfterIntervals * INTERVAL);
    },
    bench => bench.pass(TIMING.nodeLookInterval),
    ...[SERVING, DARK, UNCHANGED].map(verdict => (bench: Bench) => {
      if (nextWatch(bench.state) !== null) bench.verdict(verdict);
    }),
    bench => bench.send({ type: 'forget', forget: { by: 'ann' } }),
  ];
  const incompatible = (): Bench => {
    const bench = new Bench();
    bench.hello({ compatible: false });
    return bench;
  };
  const changes = new Set<string>();
  for (const make of [Bench.connected, Bench.silent, Bench.unsupervised, Bench.lost, incompatible]) {
    for (const event of events) {
      const bench = make();
      const from = bench.state.state;
      event(bench);
      const to = bench.state.forgotten === null ? bench.state.state : 'forgotten';
      if (to !== from) changes.add(`${from} → ${to}`);
    }
  }
  const doc = readFileSync(path.join(import.meta.dirname, '../../docs/states.md'), 'utf8');
  const chart = doc.split('```mermaid')[2]!.split('```')[0]!;
  const drawn = [...chart.matchAll(/^\s*(\w+) --> (\w+)/gm)].map(m => `${m[1]} → ${m[2]}`);
  expect(drawn.toSorted()).toEqual([...changes].toSorted());
});

describe('a sick GPU', () => {
  it('is a fact with its slot and what is wrong, while it is unusable; anything else wrong is none', () => {
    const b = new Bench();
    const inv = inventory('n1', 3);
    Object.assign(inv.gpus[1]!, { usable: false, reason: `GPU is lost ${'.'.repeat(400)}`, fatal: true });
    Object.assign(inv.gpus[2]!, { usable: false, reason: 'the driver does not answer' });
    b.hello({ inventory: inv });
    const facts = factsOf(b.state);
    expect(facts.fatal).toEqual([{ slot: 1, reason: expect.stringMatching(/^GPU is lost \.+$/) }]);
    expect(facts.fatal![0]!.reason).toHaveLength(160);
    expect(facts.usable).toBe(1);
    expect(signalFault(SIGNALS.fleet.node, facts)).toBeNull();
    expect(b.send({ type: 'inventory', inv: { session: 1, inventory: inventory('n1', 3) } })).toBe(true);
    expect('fatal' in factsOf(b.state)).toBe(false);
  });
});

describe('what operators did about a node', () => {
  it('is in its journal, and no news for the ledger', () => {
    const b = new Bench();
    b.hello();
    expect(b.send({ type: 'note', note: { text: 'slots 3 are free by the word of ada' } })).toBe(false);
    expect(b.state.journal.at(-1)?.text).toBe('slots 3 are free by the word of ada');
  });
});
