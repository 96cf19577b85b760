// A ledger that began anew, was reset, or hears of engines that it doesn't know (INV-1, INV-5).
import { describe, expect, it } from 'vitest';
import type { AssertMsg, NodeFacts, RunningEngine } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { blockOf, emptyLedger, gpuCounts, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep, nextLook } from '../../domain/ledger/step.js';
import { fleetStatusOf, routesOf } from '../../domain/ledger/view.js';
import { shapeOf } from '../../domain/replica/make.js';
import { facts, proof, spec } from './fixtures.js';

const T = 10_000;
const RUN = { run_id: 'ledger', continued_run_id: null };

const reserve = (replica: string, over: Record<string, unknown> = {}): LedgerInput => ({
  kind: 'reserve',
  key: `${replica}-run/reserve/1`,
  replica,
  run_id: `${replica}-run`,
  continued_run_id: null,
  first_run_id: `${replica}-run`,
  shape: shapeOf(spec()),
  exclude: [],
  prefer: null,
  adopt: null,
  ...over,
});

const assertion = (
  replica: string,
  fence: number | null,
  slot: number,
  over: Partial<AssertMsg> = {},
): AssertMsg => ({
  kind: 'assert',
  key: `${replica}-run/assert/9`,
  replica,
  run_id: `${replica}-run`,
  continued_run_id: null,
  first_run_id: `${replica}-run`,
  fence,
  members: fence === null ? [] : [{ node: 'n1', rank: 0, slots: [slot] }],
  why: `n1: slots ${slot}`,
  endpoint: fence === null ? null : endpoint(replica, fence),
  ...over,
});

const endpoint = (replica: string, fence: number) => ({
  model: 'm',
  aliases: [],
  replica,
  fence,
  node: 'n1',
  url: 'http://10.0.0.1:20000',
  key_id: null,
  auth: 'none' as const,
  state: 'ready' as const,
  revision: null,
});

const engine = (
  replica: string,
  fence: number,
  slot: number,
  over: Partial<RunningEngine> = {},
): RunningEngine => ({
  replica,
  fence,
  rank: 0,
  slots: [slot],
  state: 'ready',
  pid: 42,
  serves: { model: 'm', aliases: [], url: 'http://10.0.0.1:20000', key_id: 'k', revision: 'r' },
  ...over,
});

let seq = 100;
const node = (over: Partial<NodeFacts> = {}): LedgerInput => ({
  kind: 'node',
  facts: facts({ seq: ++seq, hello_at: T + 1, ...over }),
});

const whole = (): LedgerState => {
  const s = emptyLedger('epoch', 0);
  ledgerStep(s, [node({ hello_at: 1 })], T);
  return s;
};

/** A new ledger whose survey found these replicas. */
const anew = (replicas: string[], nodes: string[] = ['n1']): LedgerState => {
  const s = emptyLedger('epoch', T);
  expect(ledgerStep(s, [{ kind: 'rebuild', why: 'it began anew' }], T)).toEqual([{ do: 'survey' }]);
  const survey = { replicas: replicas.map(name => ({ name, run_id: `${name}-run`, node: 'n1' })), nodes };
  ledgerStep(s, [{ kind: 'survey', survey }], T);
  return s;
};

const stops = (effects: ReturnType<typeof ledgerStep>) => effects.filter(e => e.do === 'stop');

describe('a ledger that begins anew', () => {
  it('asks every open replica and every node, and is whole at once where there are none', () => {
    const s = emptyLedger('epoch', T);
    ledgerStep(s, [{ kind: 'rebuild', why: 'it began anew' }], T);
    const survey = { replicas: [{ name: 'a', run_id: 'x', node: 'n1' }], nodes: ['n1'] };
    expect(ledgerStep(s, [{ kind: 'survey', survey }], T)).toEqual([
      { do: 'report', nodes: ['n1'] },
      { do: 'reply', replica: 'a', reply: { kind: 'assert', key: '' } },
    ]);
    expect(anew([]).rebuilding).toBeNull();
  });

  it('grants nothing until the open replicas have said what they hold, and then nothing of theirs (INV-1)', () => {
    const s = anew(['a']);
    const other = node();
    expect(ledgerStep(s, [other, reserve('b')], T + 2)).toMatchObject([
      { reply: { kind: 'waiting', hopeless: false } },
    ]);
    const effects = ledgerStep(s, [assertion('a', 5_000, 0)], T + 3);
    expect(effects).toMatchObject([
      { replica: 'a', reply: { kind: 'ack' } },
      { replica: 'b', reply: { kind: 'granted', members: [{ slots: [1] }] } },
      { do: 'routes' },
    ]);
    expect(s.last_fence).toBeGreaterThan(5_000);
  });

  it('does not take a request for GPUs, which may be an old one, for the word that nothing is held (INV-1)', () => {
    const s = anew(['a']);
    expect(ledgerStep(s, [node(), reserve('a'), reserve('b')], T + 2)).toMatchObject([
      { reply: { kind: 'waiting' } },
      { reply: { kind: 'waiting' } },
    ]);
    ledgerStep(s, [assertion('a', 5_000, 0)], T + 3);
    expect(Object.values(s.grants).map(g => [g.replica, g.members[0]!.slots])).toEqual([
      ['a', [0]],
      ['b', [1]],
    ]);
  });

  it('keeps a node blocked for what was left there without proof, until the node has said what that is (INV-1)', () => {
    const s = anew([]);
    const n1 = { fence: T - 1, members: [{ node: 'n1', proof: null }] };
    const renew = { ...reserve('a'), kind: 'renew', release: n1 } as LedgerInput;
    expect(ledgerStep(s, [node(), renew], T + 2)).toMatchObject([{ reply: { kind: 'waiting' } }]);
    ledgerStep(s, [node({ hello_at: T + 3, running: [engine('a', T - 1, 0)] })], T + 3);
    expect(gpuCounts(s, s.nodes.n1!)).toMatchObject({ held: 1 });
    // Of a grant of its own that has ended, word that comes late is no news.
    ledgerStep(
      s,
      [{ ...renew, release: { ...n1, fence: T + 2 }, key: 'a-run/reserve/2' } as LedgerInput],
      T + 4,
    );
    expect(blockOf(s, 'n1')).toBeNull();
  });

  it('grants nothing on a node that has not said hello since', () => {
    const s = anew([]);
    ledgerStep(s, [node({ hello_at: T - 1 })], T + 1);
    expect(ledgerStep(s, [reserve('b')], T + 2)).toMatchObject([
      { reply: { kind: 'waiting', reason: expect.stringContaining('has not said hello since') } },
    ]);
    expect(ledgerStep(s, [node()], T + 3)).toMatchObject([{ reply: { kind: 'granted' } }]);
  });

  it('does not call hopeless what a node that it has yet to hear of may host', () => {
    const s = anew([], ['n1', 'n2']);
    ledgerStep(s, [node({ engines: [] })], T + 1);
    expect(ledgerStep(s, [reserve('b')], T + 2)).toMatchObject([
      { reply: { kind: 'waiting', hopeless: false } },
    ]);
    expect(ledgerStep(s, [node({ node_id: 'n2' })], T + 3)).toMatchObject([{ reply: { kind: 'granted' } }]);
  });

  it('says of the same wait that it is hopeless once the last node has been heard', () => {
    const s = anew([], ['n1', 'n2']);
    ledgerStep(s, [node({ engines: [] }), reserve('b')], T + 1);
    expect(ledgerStep(s, [node({ node_id: 'n2', engines: [], state: 'silent' })], T + 2)).toMatchObject([
      { reply: { kind: 'waiting', hopeless: true } },
    ]);
  });

  it('does so too where that does not change the sentence', () => {
    const s = anew([], ['n1', 'n2']);
    const only = { shape: shapeOf(spec({ placement: { nodes: ['n1'] } })) };
    ledgerStep(s, [node({ engines: [] }), reserve('b', only)], T + 1);
    s.expected = [];
    expect(ledgerStep(s, [{ kind: 'look' }], T + 2)).toMatchObject([
      { reply: { kind: 'waiting', hopeless: true } },
    ]);
  });

  it('keeps only the node of a replica blocked that never answers', () => {
    const s = anew(['mute']);
    ledgerStep(s, [node(), reserve('b')], T + 1);
    expect(nextLook(s)).toBe(T + TIMING.rebuildPatience);
    ledgerStep(s, [node({ node_id: 'n2' })], T + 2);
    const late = T + TIMING.rebuildPatience;
    expect(ledgerStep(s, [{ kind: 'look' }], late)).toMatchObject([
      { reply: { kind: 'granted', members: [{ node: 'n2' }] } },
      { do: 'routes' },
    ]);
    expect(fleetStatusOf(s).alarms.at(-1)?.text).toContain('replica/mute did not say what it holds');
    ledgerStep(s, [assertion('mute', null, 0)], late + 1);
    expect(s.silent).toEqual({});
  });

  it('counts a replica whose workflow turned out to be closed as heard', () => {
    const s = anew(['gone']);
    ledgerStep(s, [{ kind: 'undeliverable', replica: 'gone', fence: null }], T + 1);
    expect(s.rebuilding).toBeNull();
  });

  it('shows no route table until it is whole, and then a newer one than any before (INV-5)', () => {
    const s = anew(['a', 'b']);
    ledgerStep(s, [assertion('a', 5_000, 0)], T + 1);
    expect(routesOf(s, RUN)).toMatchObject({ version: 0, endpoints: [], rebuilding: true, epoch: 'epoch' });
    ledgerStep(s, [assertion('b', 5_001, 1)], T + 2);
    const table = routesOf(s, RUN);
    expect(table.endpoints.map(e => e.replica)).toEqual(['a', 'b']);
    expect(table.version).toBeGreaterThan(T);
  });

  it('has at most one holder for a GPU that two replicas say they hold', () => {
    const s = anew(['a', 'b']);
    ledgerStep(s, [assertion('a', 5_000, 0)], T + 1);
    expect(ledgerStep(s, [assertion('b', 5_001, 0)], T + 2)).toMatchObject([
      { replica: 'b', reply: { kind: 'stale', fence: 5_001 } },
      { do: 'routes' },
    ]);
    expect(Object.values(s.grants).map(g => g.replica)).toEqual(['a']);
  });
});

describe('an engine that no grant covers', () => {
  it('is kept, held, routed and shown, and stopped for no reason of its own (INV-5)', () => {
    const s = whole();
    const effects = ledgerStep(s, [node({ running: [engine('x', 5_000, 3)] })], T + 5);
    expect(effects).toMatchObject([{ do: 'routes' }]);
    expect(gpuCounts(s, s.nodes.n1!)).toMatchObject({ held: 1, free: 7 });
    expect(routesOf(s, RUN).endpoints).toMatchObject([
      { replica: 'x', fence: 5_000, key_id: 'k', auth: 'derived' },
    ]);
    expect(fleetStatusOf(s).unclaimed).toMatchObject([{ replica: 'x', node: 'n1', slots: [3] }]);
    for (let i = 0; i < 3; i++) expect(stops(ledgerStep(s, [{ kind: 'look' }], T + 600_000 * i))).toEqual([]);
  });

  it('is offered to a run of its name, which claims it', () => {
    const s = whole();
    ledgerStep(s, [node({ running: [engine('x', 5_000, 3)] })], T + 5);
    expect(ledgerStep(s, [reserve('x')], T + 6)).toMatchObject([
      { reply: { kind: 'stale', fence: 5_000, members: [{ node: 'n1', slots: [3] }] } },
    ]);
    ledgerStep(s, [assertion('x', 5_000, 3)], T + 7);
    expect(fleetStatusOf(s).unclaimed).toEqual([]);
    expect(s.grants[5_000]).toMatchObject({ run_id: 'x-run' });
  });

  it('is stopped when its replica holds a newer one, or when it has ended already', () => {
    const s = whole();
    ledgerStep(s, [reserve('x')], T + 5);
    const running = [engine('x', 5_000, 3), engine('y', 5_001, 4, { state: 'exited' })];
    expect(stops(ledgerStep(s, [node({ running })], T + 6))).toMatchObject([
      { node: 'n1', order: { replica: 'x', fence: 5_000 } },
      { node: 'n1', order: { replica: 'y', fence: 5_001 } },
    ]);
    ledgerStep(s, [{ kind: 'settled', fence: 5_000, node: 'n1', proof: proof() }], T + 7);
    expect(Object.keys(s.grants).map(Number)).not.toContain(5_000);
  });

  it('with a fence that lies in the future does not end the growth of fences (INV-6)', () => {
    const s = whole();
    ledgerStep(s, [node({ running: [engine('x', Number.MAX_SAFE_INTEGER, 3)] })], T + 5);
    expect(s.last_fence).toBe(0);
    expect(fleetStatusOf(s).alarms).toHaveLength(1);
  });

  it('of a node that puts itself into the grant of another is not believed (INV-8)', () => {
    const s = whole();
    ledgerStep(s, [reserve('x')], T + 5);
    const [fence] = Object.keys(s.grants).map(Number);
    ledgerStep(s, [node({ node_id: 'evil', running: [engine('x', fence!, 0)] })], T + 6);
    expect(s.grants[fence!]!.members.map(m => m.node)).toEqual(['n1']);
  });
});

describe('a run that was reset', () => {
  /** Generation 2 runs; then the run goes back to its beginning. */
  const advanced = (): LedgerState => {
    const s = whole();
    ledgerStep(s, [reserve('a')], 20_000);
    const renew = {
      ...reserve('a', { key: 'a-run/reserve/3' }),
      kind: 'renew',
      release: { fence: 20_000, members: [{ node: 'n1', proof: proof() }] },
    };
    ledgerStep(s, [renew as LedgerInput], 30_000);
    return s;
  };

  it('asks with a key of long ago and is given the engine that runs, not ignored', () => {
    const s = advanced();
    const again = reserve('a', { run_id: 'a-reset' });
    expect(ledgerStep(s, [again], 40_000)).toMatchObject([{ reply: { kind: 'stale', fence: 30_000 } }]);
  });

  it('and believes in an engine of long ago is told of the present one', () => {
    const s = advanced();
    const told = assertion('a', 20_000, 0, { run_id: 'a-reset' });
    expect(ledgerStep(s, [told], 40_000)).toMatchObject([{ reply: { kind: 'stale', fence: 30_000 } }]);
    ledgerStep(s, [assertion('a', 30_000, 0, { run_id: 'a-reset' })], 40_001);
    expect(s.grants[30_000]).toMatchObject({ run_id: 'a-reset' });
  });

  it('is told apart from a late message of the run before', () => {
    const s = advanced();
    ledgerStep(s, [assertion('a', 30_000, 0, { run_id: 'a-2', continued_run_id: 'a-run' })], 40_000);
    expect(ledgerStep(s, [reserve('a')], 40_001)).toMatchObject([{ reply: { kind: 'ack' } }]);
  });
});

describe('a workflow that Temporal says is closed', () => {
  const closed = (...names: string[]): LedgerInput => ({
    kind: 'closed',
    closed: names.map(n => ({
      replica: n,
      first_run_id: `${n}-run`,
      status: 'TERMINATED',
      closed_at: T + 50,
    })),
  });

  it('has its engine stopped, with proof, and its GPUs given back', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    expect(stops(ledgerStep(s, [closed('a')], T + 60))).toMatchObject([
      { node: 'n1', order: { replica: 'a', fence } },
    ]);
    // Told again meanwhile: one order at a time.
    expect(stops(ledgerStep(s, [closed('a'), { kind: 'look' }], T + 61))).toEqual([]);
    ledgerStep(s, [{ kind: 'settled', fence, node: 'n1', proof: proof() }], T + 70);
    expect(gpuCounts(s, s.nodes.n1!)).toMatchObject({ free: 8 });
  });

  it('is left to a new run of the same id that asks for it', () => {
    const s = whole();
    ledgerStep(
      s,
      [node({ state: 'silent' }), reserve('a', { shape: shapeOf(spec({ tensor_parallel: 8 })) })],
      T + 1,
    );
    ledgerStep(s, [node()], T + 2);
    ledgerStep(s, [node({ state: 'silent' })], T + 3);
    ledgerStep(s, [reserve('a', { key: 'z/reserve/1', run_id: 'z', first_run_id: 'z' })], T + 4);
    ledgerStep(s, [closed('a')], T + 60);
    expect(Object.values(s.grants).every(g => g.gave_up === undefined)).toBe(true);
  });

  it('spares what was granted after it was closed', () => {
    const s = whole();
    ledgerStep(s, [reserve('a', { key: 'z/reserve/1', run_id: 'z', first_run_id: 'z' })], T + 55);
    expect(stops(ledgerStep(s, [closed('a')], T + 60))).toEqual([]);
  });

  it('in too great a number at once has none stopped, and an alarm (INV-5)', () => {
    const s = whole();
    const names = ['a', 'b', 'c', 'd'];
    ledgerStep(
      s,
      names.map(n => reserve(n)),
      T + 1,
    );
    expect(stops(ledgerStep(s, [closed(...names)], T + 60))).toEqual([]);
    ledgerStep(s, [closed(...names)], T + 61);
    expect(fleetStatusOf(s).alarms.map(a => a.text)).toEqual([
      expect.stringContaining('4 replicas that hold GPUs'),
    ]);
    // Nor later, as a small sweep, when some are claimed or the word is said again by another control plane.
    expect(stops(ledgerStep(s, [closed('a', 'b', 'c')], T + 62))).toEqual([]);
    const fence = Object.values(s.grants).find(g => g.replica === 'a')!.fence;
    ledgerStep(s, [assertion('a', fence, 0, { run_id: 'z', first_run_id: 'z', key: 'z/assert/1' })], T + 63);
    const again: LedgerInput = {
      kind: 'closed',
      closed: [{ replica: 'a', run_id: 'z', first_run_id: 'z', status: 'CANCELED', closed_at: T + 70 }],
    };
    expect(stops(ledgerStep(s, [again], T + 71))).toMatchObject([{ order: { replica: 'a' } }]);
  });

  it('in a small number is stopped', () => {
    const s = whole();
    ledgerStep(
      s,
      ['a', 'b', 'c'].map(n => reserve(n)),
      T + 1,
    );
    expect(stops(ledgerStep(s, [closed('a', 'b', 'c')], T + 60))).toHaveLength(3);
  });

  it('on a node that is away is stopped when the node is back, and again later when that fails', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    ledgerStep(s, [node({ state: 'silent' })], T + 2);
    expect(stops(ledgerStep(s, [closed('a')], T + 60))).toEqual([]);
    expect(stops(ledgerStep(s, [node({ running: [engine('a', fence, 0)] })], T + 70))).toHaveLength(1);
    ledgerStep(
      s,
      [{ kind: 'settle_failed', fence, node: 'n1', sentence: 'it did not take the order' }],
      T + 80,
    );
    expect(nextLook(s)).toBe(T + 80 + TIMING.settleAgain);
    expect(stops(ledgerStep(s, [{ kind: 'look' }], T + 80 + TIMING.settleAgain))).toHaveLength(1);
  });

  it('settles what leaked only when its node has said hello again', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    ledgerStep(s, [closed('a')], T + 60);
    const leaked = { ...proof(), leaked: [{ gpu: 'GPU-0', pids: [7], used_mib: 900 }] };
    ledgerStep(s, [{ kind: 'settled', fence, node: 'n1', proof: leaked }], T + 61);
    expect(nextLook(s)).toBeNull();
    expect(stops(ledgerStep(s, [{ kind: 'look' }], T + 900_000))).toEqual([]);
    expect(stops(ledgerStep(s, [node({ hello_at: T + 900_001 })], T + 900_001))).toHaveLength(1);
  });
});

it('tells a replica that its node is there without its engine, once it can not be a hello of before', () => {
  const s = whole();
  ledgerStep(s, [reserve('a')], T + 1);
  const fence = s.last_fence;
  ledgerStep(s, [assertion('a', fence, 0)], T + 2);
  const news = (at: number) => ledgerStep(s, [node({ hello_at: at })], at).filter(e => e.do === 'reply');
  expect(news(T + 20_000)).toEqual([]);
  expect(news(T + 40_000)).toMatchObject([{ replica: 'a', reply: { kind: 'node', news: 'missing', fence } }]);
});
