// Replicas over several nodes in the ledger: what is held, by whom, and until when (INV-1, INV-5, INV-7, INV-8).
import { describe, expect, it } from 'vitest';
import type { StopProof } from '../../contracts/engine.js';
import type { AssertMsg, LedgerReply, NodeFacts, RunningEngine } from '../../contracts/messages.js';
import { SIGNALS, signalFault } from '../../contracts/signals.js';
import { TIMING } from '../../contracts/timing.js';
import { blockOf, emptyLedger, gpuCounts, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep, nextLook } from '../../domain/ledger/step.js';
import { fleetStatusOf, holdersOf, routesOf } from '../../domain/ledger/view.js';
import { clearLeak } from '../../domain/ledger/words.js';
import { shapeOf } from '../../domain/replica/make.js';
import { maskOf } from '../../domain/slots.js';
import { digest, facts, proof, spec } from './fixtures.js';

const T = 1_000_000;
const RUN = { run_id: 'ledger', continued_run_id: null };
const HALF = [0, 1, 2, 3];
const ids = (run: string) => ({ run_id: run, continued_run_id: null, first_run_id: run });

/** By default a gang of two members with four GPUs each. */
const reserve = (run: string, n = 1, over: Record<string, unknown> = {}): LedgerInput => ({
  kind: 'reserve',
  key: `${run}/reserve/${n}`,
  replica: 'g',
  ...ids(run),
  shape: { ...shapeOf(spec()), nodes: 2, tensor_parallel: 8 },
  exclude: [],
  prefer: null,
  adopt: null,
  ...over,
});
const single = (replica: string, tensor_parallel = 8): LedgerInput =>
  reserve(replica, 1, { replica, shape: { ...shapeOf(spec()), tensor_parallel } });

type Proofs = Record<string, StopProof | null>;
const members = (proofs: Proofs) => Object.entries(proofs).map(([node, p]) => ({ node, proof: p }));
const release = (run: string, fence: number, proofs: Proofs): LedgerInput => ({
  kind: 'release',
  key: `${run}/release/9`,
  replica: 'g',
  ...ids(run),
  fence,
  withdraw: null,
  members: members(proofs),
});
const renew = (run: string, n: number, fence: number, proofs: Proofs): LedgerInput =>
  ({ ...reserve(run, n), kind: 'renew', release: { fence, members: members(proofs) } }) as LedgerInput;

const assertion = (run: string, fence: number, over: Partial<AssertMsg> = {}): AssertMsg => ({
  kind: 'assert',
  key: `${run}/assert/20`,
  replica: 'g',
  ...ids(run),
  fence,
  members: ['n1', 'n2'].map((node, rank) => ({ node, rank, slots: HALF })),
  fabric: 'ib-a',
  why: 'two nodes',
  endpoint: null,
  ...over,
});

const serves = { model: 'm', aliases: [], url: 'http://10.0.0.1:20000', key_id: 'k', revision: 'r' };
const engine = (rank: number, over: Partial<RunningEngine> = {}): RunningEngine => ({
  replica: 'g',
  fence: 5_000,
  rank,
  slots: HALF,
  state: 'ready',
  pid: 42,
  serves: rank === 0 ? serves : null,
  nodes: 2,
  fabric: 'ib-a',
  ...over,
});
const ready = (run: string, n: number, fence: number): LedgerInput => ({
  kind: 'endpoint',
  key: `${run}/endpoint/${n}`,
  replica: 'g',
  run_id: run,
  fence,
  answer: false,
  endpoint: { ...serves, replica: 'g', fence, node: 'n1', auth: 'derived', state: 'ready' },
});

let seq = 100;
const node = (node_id: string, over: Partial<NodeFacts> = {}): LedgerInput => ({
  kind: 'node',
  facts: facts({ node_id, seq: ++seq, hello_at: T, ...over }),
});

/** `nodes` of eight GPUs, all heard. */
const whole = (...nodes: string[]): LedgerState => {
  const s = emptyLedger('epoch', 0);
  ledgerStep(
    s,
    nodes.map(id => node(id)),
    T,
  );
  return s;
};

/** The gang has n1 and n2 by its run `r`, delivered. */
const granted = (...more: string[]): { s: LedgerState; fence: number } => {
  const s = whole('n1', 'n2', ...more);
  ledgerStep(s, [reserve('r')], T + 1);
  const fence = s.last_fence;
  ledgerStep(s, [{ kind: 'delivered', fence }], T + 1);
  return { s, fence };
};

type Effects = ReturnType<typeof ledgerStep>;
const stops = (effects: Effects) =>
  effects.flatMap(e => (e.do === 'stop' ? [`${e.node}/${e.order.rank}`] : []));
const replies = (effects: Effects) => effects.flatMap(e => (e.do === 'reply' ? [e.reply] : []));
const reply = (effects: Effects): LedgerReply | undefined => replies(effects)[0];
const held = (s: LedgerState) => Object.keys(s.nodes).map(id => gpuCounts(s, s.nodes[id]!).held);
const free = (s: LedgerState) => Object.keys(s.nodes).map(id => gpuCounts(s, s.nodes[id]!).free);
const on = (s: LedgerState, fence: number) => s.grants[fence]?.members.map(m => m.node);
const leaked = { ...proof(), leaked: [{ gpu: 'GPU-7', pids: [4711], used_mib: 900 }] };

describe('a gang that is granted', () => {
  it('has its members and its fabric, and is told them again with the same key', () => {
    const s = whole('n1', 'n2');
    const first = reply(ledgerStep(s, [reserve('r')], T + 1));
    expect(first).toMatchObject({
      kind: 'granted',
      fabric: 'ib-a',
      members: [{ node: 'n1' }, { node: 'n2' }],
    });
    expect(reply(ledgerStep(s, [reserve('r')], T + 2))).toEqual(first);
    expect(held(s)).toEqual([4, 4]);
    expect(holdersOf(s, RUN)).toMatchObject({ engines: 2, grants: [{ nodes: ['n1', 'n2'] }] });
  });

  it('gets its nodes and ranks again', () => {
    const { s, fence } = granted('n0');
    const again = { ...renew('r', 2, fence, { n1: proof(), n2: proof() }), prefer_nodes: ['n2', 'n1'] };
    ledgerStep(s, [again as LedgerInput], T + 2);
    expect(on(s, s.last_fence)).toEqual(['n2', 'n1']);
  });

  it('keeps the one member whose stop is not proven, on its node alone, and ends it there', () => {
    const { s, fence } = granted('n3');
    ledgerStep(s, [node('n2', { state: 'lost' })], T + 2);
    const effects = ledgerStep(s, [renew('r', 2, fence, { n1: proof(), n2: null })], T + 3);
    expect(reply(effects)).toMatchObject({ kind: 'granted', members: [{ node: 'n1' }, { node: 'n3' }] });
    expect(s.grants[fence]).toMatchObject({ members: [{ node: 'n2' }], left: { n2: expect.any(String) } });
    // Told again, it ends nothing of what was given since.
    ledgerStep(s, [release('r', fence, { n1: null, n2: null })], T + 4);
    expect(s.grants[fence]!.left).toEqual({ n2: expect.any(String) });
    expect(stops(ledgerStep(s, [node('n2', { hello_at: T + 5, running: [] })], T + 5))).toEqual(['n2/1']);
    ledgerStep(s, [{ kind: 'settled', fence, node: 'n2', proof: proof() }], T + 6);
    expect(s.grants[fence]).toBeUndefined();
  });

  it('ends member by member where one proof is no word at all, and frees nothing else', () => {
    const { s, fence } = granted();
    ledgerStep(s, [ready('r', 2, fence)], T + 2);
    ledgerStep(s, [release('r', fence, { n1: proof('never_started'), n2: proof() })], T + 3);
    expect(on(s, fence)).toEqual(['n1']);
    expect(routesOf(s, RUN).endpoints).toEqual([]);
  });

  it('is stopped member by member when its workflow is closed, and counts as so many engines', () => {
    const { s, fence } = granted();
    const closed: LedgerInput = {
      kind: 'closed',
      closed: [{ replica: 'g', first_run_id: 'r', status: 'TERMINATED', closed_at: T + 2 }],
    };
    expect(stops(ledgerStep(s, [closed], T + 3))).toEqual(['n1/0', 'n2/1']);
    ledgerStep(s, [{ kind: 'settled', fence, node: 'n1', proof: proof() }], T + 4);
    ledgerStep(s, [{ kind: 'settle_failed', fence, node: 'n2', sentence: 'no answer' }], T + 4);
    expect(s.grants[fence]).toMatchObject({ members: [{ node: 'n2' }] });
    // A later run can only stop what is left of it.
    expect(reply(ledgerStep(s, [reserve('z')], T + 5))).toMatchObject({ kind: 'stale', fence, nodes: 2 });

    const t = whole('n1', 'n2', 'n3', 'n4');
    const four = { shape: { ...shapeOf(spec()), nodes: 4, tensor_parallel: 4 } };
    ledgerStep(t, [reserve('r', 1, four)], T + 1);
    expect(stops(ledgerStep(t, [closed], T + 3))).toEqual([]);
    expect(fleetStatusOf(t).alarms[0]!.text).toContain(
      'replica g, which holds GPUs, was closed, with 4 engines',
    );
  });

  it('of a run whose newer engine serves is stopped where its nodes are, though another one is away', () => {
    const { s, fence } = granted('n3', 'n4');
    ledgerStep(s, [node('n2', { state: 'lost' })], T + 2);
    ledgerStep(
      s,
      [reserve('z', 1, { exclude: [{ node: 'n1', reason: 'x', until: null, times: 1 }] })],
      T + 3,
    );
    const newer = s.last_fence;
    expect(on(s, newer)).toEqual(['n3', 'n4']);
    // All of it away: it is left to the hello of its nodes.
    ledgerStep(s, [node('n1', { state: 'lost' })], T + 3);
    expect(stops(ledgerStep(s, [ready('z', 2, newer)], T + 4))).toEqual([]);
    expect(s.grants[fence]!.gave_up).toBeUndefined();
    ledgerStep(s, [node('n1')], T + 5);
    expect(stops(ledgerStep(s, [ready('z', 3, newer)], T + 6))).toEqual(['n1/0']);
    expect(on(s, fence)).toEqual(['n1', 'n2']);
  });
});

describe('a node of a gang', () => {
  it('that is lost, back, or there without its member is news of that node', () => {
    const { s, fence } = granted();
    ledgerStep(s, [ready('r', 2, fence)], T + 2);
    const news = (input: LedgerInput, at: number) => replies(ledgerStep(s, [input], at));
    expect(news(node('n2', { state: 'lost' }), T + 3)).toMatchObject([{ news: 'lost', node: 'n2', fence }]);
    expect(news(node('n2'), T + 4)).toMatchObject([{ news: 'back', node: 'n2' }]);
    const late = T + 100_000;
    expect(news(node('n2', { hello_at: late }), late)).toMatchObject([{ news: 'missing', node: 'n2' }]);
  });

  it('that is forgotten ends that member, and what comes back from the dead is held and stopped there', () => {
    const { s, fence } = granted();
    ledgerStep(s, [node('n2', { state: 'lost' })], T + 2);
    const told = ledgerStep(s, [{ kind: 'forget', node: 'n2', by: 'op' }], T + 3);
    expect(replies(told)).toMatchObject([{ news: 'forgotten', node: 'n2' }]);
    expect(on(s, fence)).toEqual(['n1']);
    const hello = node('n2', { hello_at: T + 4, running: [engine(1, { fence })] });
    expect(stops(ledgerStep(s, [hello], T + 4))).toEqual(['n2/1']);
    expect(held(s)).toEqual([4, 4]);
    ledgerStep(s, [{ kind: 'settled', fence, node: 'n2', proof: proof() }], T + 5);
    expect(s.grants[fence]).toMatchObject({ members: [{ node: 'n1' }] });
    expect(s.grants[fence]!.gave_up).toBeUndefined();
  });

  it('that was forgotten in the middle of a stop is told to stop it once more when it comes back', () => {
    const { s, fence } = granted();
    expect(stops(ledgerStep(s, [release('r', fence, { n2: null })], T + 2))).toEqual(['n1/0', 'n2/1']);
    ledgerStep(s, [node('n2', { state: 'lost' }), { kind: 'forget', node: 'n2', by: 'op' }], T + 3);
    const hello = node('n2', { hello_at: T + 4, running: [engine(1, { fence })] });
    expect(stops(ledgerStep(s, [hello], T + 4))).toEqual(['n2/1']);
  });

  it('that was forgotten while the grant was on its way makes it none: the run that asks again gets a whole one', () => {
    const { s, fence } = granted('n3');
    ledgerStep(s, [node('n2', { state: 'lost' })], T + 2);
    ledgerStep(s, [{ kind: 'forget', node: 'n2', by: 'op' }], T + 3);
    const effects = ledgerStep(s, [reserve('r')], T + 4);
    expect(stops(effects)).toEqual(['n1/0']);
    expect(replies(effects)).toMatchObject([{ kind: 'granted', members: [{ node: 'n1' }, { node: 'n3' }] }]);
    expect(s.last_fence).toBeGreaterThan(fence);
  });

  it('that was forgotten, or whose member was stopped, is no member of what its replica says that it holds', () => {
    const { s, fence } = granted();
    ledgerStep(s, [node('n2', { state: 'lost' }), { kind: 'forget', node: 'n2', by: 'op' }], T + 2);
    expect(reply(ledgerStep(s, [assertion('r', fence)], T + 4))).toMatchObject({ kind: 'stale', fence });
    expect(on(s, fence)).toEqual(['n1']);
  });

  it('where the stop of its member is under way keeps the gang from being claimed', () => {
    const { s, fence } = granted();
    ledgerStep(s, [release('r', fence, { n2: null })], T + 2);
    ledgerStep(s, [{ kind: 'settle_failed', fence, node: 'n1', sentence: 'no' }], T + 3);
    // Of n2 it is under way still.
    expect(reply(ledgerStep(s, [assertion('r', fence)], T + 4))).toMatchObject({ kind: 'stale', fence });
  });

  it('that came back from the dead with it is stopped still when its replica says that it holds it', () => {
    const { s, fence } = granted();
    ledgerStep(s, [node('n2', { state: 'lost' }), { kind: 'forget', node: 'n2', by: 'op' }], T + 2);
    ledgerStep(s, [node('n2', { hello_at: T + 4, running: [engine(1, { fence })] })], T + 4);
    ledgerStep(s, [{ kind: 'settle_failed', fence, node: 'n2', sentence: 'no answer' }], T + 5);
    expect(reply(ledgerStep(s, [assertion('r', fence)], T + 6))).toMatchObject({ kind: 'stale', fence });
    const later = T + 5 + TIMING.settleAgain;
    expect(stops(ledgerStep(s, [{ kind: 'look' }], later))).toEqual(['n2/1']);
  });

  it('that was forgotten is remembered when its replica says what it holds elsewhere (INV-1)', () => {
    const { s, fence } = granted();
    ledgerStep(s, [node('n2', { state: 'lost' }), { kind: 'forget', node: 'n2', by: 'op' }], T + 2);
    const rest = [{ node: 'n1', rank: 0, slots: HALF }];
    expect(reply(ledgerStep(s, [assertion('r', fence, { members: rest })], T + 3))).toMatchObject({
      kind: 'ack',
    });
    const hello = node('n2', { hello_at: T + 4, running: [engine(1, { fence })] });
    expect(stops(ledgerStep(s, [hello], T + 4))).toEqual(['n2/1']);
    expect(held(s)).toEqual([4, 4]);
  });

  it('is blocked with all the others while their replica does not say what it holds', () => {
    const s = emptyLedger('epoch', T);
    ledgerStep(s, [{ kind: 'rebuild', why: 'it began anew' }], T);
    const replicas = [{ name: 'g', run_id: 'r', node: 'n1, n2' }];
    ledgerStep(s, [{ kind: 'survey', survey: { replicas, nodes: [] } }], T);
    const hellos = ['n1', 'n2', 'n3'].map(id => node(id, { hello_at: T + 1 }));
    ledgerStep(s, hellos, T + 1);
    ledgerStep(s, [{ kind: 'look' }], T + TIMING.rebuildPatience);
    const blocked = () => ['n1', 'n2', 'n3'].map(id => blockOf(s, id) !== null);
    expect(blocked()).toEqual([true, true, false]);
    // It ended without a word: what it started at last was after those hellos.
    const ended = T + TIMING.rebuildPatience + 1;
    ledgerStep(s, [{ kind: 'undeliverable', replica: 'g', fence: null }], ended);
    expect(blocked()).toEqual([true, true, false]);
    ledgerStep(s, [node('n1', { hello_at: ended + 1 }), node('n2', { hello_at: ended + 1 })], ended + 1);
    expect(blocked()).toEqual([false, false, false]);
  });

  it('that is forgotten while their replica is silent frees none of the others (INV-1)', () => {
    const s = whole('n1', 'n2');
    s.silent = { g: 'n1, n2' };
    ledgerStep(s, [node('n2', { state: 'lost' }), { kind: 'forget', node: 'n2', by: 'op' }], T + 2);
    expect(s.silent).toEqual({ g: 'n1' });
    expect(blockOf(s, 'n1')).toContain('replica/g');
    ledgerStep(s, [node('n1', { state: 'lost' }), { kind: 'forget', node: 'n1', by: 'op' }], T + 3);
    expect(s.silent).toEqual({});
  });
});

describe('the route of a gang', () => {
  const shown = (s: LedgerState) => routesOf(s, RUN).endpoints.map(e => [e.node, e.nodes]);
  const hello = (s: LedgerState, id: string, running: RunningEngine[], at: number) =>
    ledgerStep(s, [node(id, { hello_at: at, running })], at);

  it('names the nodes of its other members, whatever its replica’s message says; that of one member names none', () => {
    const { s, fence } = granted('n3');
    const told = ready('r', 2, fence) as Extract<LedgerInput, { kind: 'endpoint' }>;
    ledgerStep(s, [{ ...told, endpoint: { ...told.endpoint!, nodes: ['n3'] } }], T + 2);
    expect(shown(s)).toEqual([['n1', ['n2']]]);
    const t = whole('n1');
    const { nodes: _, ...alone } = engine(0, { fence: 6_000 });
    hello(t, 'n1', [alone], T + 1);
    expect(routesOf(t, RUN).endpoints).toHaveLength(1);
    expect(routesOf(t, RUN).endpoints[0]).not.toHaveProperty('nodes');
  });

  it('that nobody speaks for is a new one when a member comes, ends, or is told by its replica', () => {
    const s = whole('n1', 'n2');
    const versions: number[] = [];
    const look = () => {
      versions.push(s.version);
      return shown(s);
    };
    hello(s, 'n1', [engine(0)], T + 1);
    expect(look()).toEqual([['n1', undefined]]);
    hello(s, 'n2', [engine(1)], T + 2);
    expect(look()).toEqual([['n1', ['n2']]]);
    hello(s, 'n2', [engine(1)], T + 3);
    expect(s.version).toBe(versions[1]);
    hello(s, 'n2', [engine(1, { state: 'exited' })], T + 4);
    ledgerStep(s, [{ kind: 'settled', fence: 5_000, node: 'n2', proof: proof() }], T + 5);
    expect(look()).toEqual([['n1', undefined]]);
    expect(versions).toEqual([...new Set(versions)].sort());

    const t = whole('n1', 'n2');
    hello(t, 'n1', [engine(0)], T + 1);
    const before = t.version;
    ledgerStep(t, [assertion('r', 5_000)], T + 2);
    expect(shown(t)).toEqual([['n1', ['n2']]]);
    expect(t.version).toBeGreaterThan(before);
  });
});

describe('a gang that nobody speaks for', () => {
  const hello = (s: LedgerState, id: string, running: RunningEngine[], at: number) =>
    ledgerStep(s, [node(id, { hello_at: at, running })], at);

  it('is gathered member by member, routed when rank 0 is there, and offered when it is whole', () => {
    const s = whole('n1', 'n2');
    hello(s, 'n2', [engine(1)], T + 1);
    expect(routesOf(s, RUN).endpoints).toEqual([]);
    const asked = reply(ledgerStep(s, [reserve('z')], T + 2));
    expect(asked).toMatchObject({ kind: 'waiting', hopeless: false });
    expect(JSON.stringify(asked)).toContain('is a gang of 2, of which only n2 has told yet');
    const found = hello(s, 'n1', [engine(0)], T + 3);
    expect(routesOf(s, RUN).endpoints).toMatchObject([{ replica: 'g', node: 'n1' }]);
    expect(reply(found)).toEqual({
      kind: 'stale',
      key: 'z/reserve/1',
      fence: 5_000,
      fabric: 'ib-a',
      members: [
        { node: 'n1', rank: 0, slots: HALF },
        { node: 'n2', rank: 1, slots: HALF },
      ],
    });
    expect(reply(ledgerStep(s, [assertion('z', 5_000)], T + 4))).toMatchObject({ kind: 'ack' });
    expect(s.grants[5_000]).toMatchObject({ run_id: 'z', nodes: 2, fabric: 'ib-a' });
    expect(held(s)).toEqual([4, 4]);
    expect(nextLook(s)).toBeNull();
  });

  it('is offered as it is, to be stopped, when the others have had their time', () => {
    const s = whole('n1', 'n2');
    hello(s, 'n1', [engine(0, { state: 'loading' })], T + 1);
    ledgerStep(s, [reserve('z')], T + 2);
    const until = nextLook(s)!;
    expect(until).toBe(T + 1 + TIMING.rebuildPatience);
    expect(reply(ledgerStep(s, [{ kind: 'look' }], until))).toMatchObject({ kind: 'stale', nodes: 2 });
    expect(nextLook(s)).toBeNull();
  });

  it('that serves is not stopped for a node that is not heard, until that is lost (INV-5)', () => {
    const s = emptyLedger('epoch', T);
    ledgerStep(s, [node('n2', { hello_at: T - 1, state: 'silent' })], T + 1);
    hello(s, 'n1', [engine(0)], T + 1);
    expect(JSON.stringify(ledgerStep(s, [reserve('z')], T + 2))).toContain('n2 may have the others');
    const late = T + 2 * TIMING.rebuildPatience;
    expect(ledgerStep(s, [{ kind: 'look' }], late)).toEqual([]);
    expect(nextLook(s)).toBeNull();
    const lost = ledgerStep(s, [node('n2', { hello_at: T - 1, state: 'lost' })], late + 1);
    expect(reply(lost)).toMatchObject({ kind: 'stale', nodes: 2 });
  });

  it('that serves is not stopped for an agent that nobody knows of yet; who waits is told so (INV-5, INV-9)', () => {
    const s = whole('n1', 'n3');
    hello(s, 'n1', [engine(0)], T + 1);
    ledgerStep(s, [reserve('z')], T + 2);
    const until = nextLook(s)!;
    const told = reply(ledgerStep(s, [{ kind: 'look' }], until));
    expect(told).toMatchObject({ kind: 'waiting', hopeless: false });
    expect(JSON.stringify(told)).toContain('it serves');
    expect(routesOf(s, RUN).endpoints).toHaveLength(1);
    expect(nextLook(s)).toBeNull();
    const found = hello(s, 'n2', [engine(1)], until + 600_000);
    expect(reply(found)).toMatchObject({ kind: 'stale', members: [{ node: 'n1' }, { node: 'n2' }] });
  });

  it.each([
    ['has ended', [engine(1, { state: 'exited' })]],
    ['is there no longer', []],
  ])('ends on no other node when its first member to be told of %s (INV-5, INV-8)', (_, then) => {
    for (const order of ['n1', 'n2']) {
      const s = whole('n1', 'n2');
      if (order === 'n1') hello(s, 'n1', [engine(0)], T + 1);
      hello(s, 'n2', [engine(1)], T + 2);
      expect(stops(hello(s, 'n2', then, T + 3))).toEqual(['n2/1']);
      if (order === 'n2') expect(stops(hello(s, 'n1', [engine(0)], T + 4))).toEqual([]);
      expect(s.grants[5_000]!.gave_up).toBeUndefined();
      expect(routesOf(s, RUN).endpoints).toHaveLength(1);
      // Of both members now.
      expect(stops(hello(s, 'n1', [], T + 5))).toEqual(['n1/0']);
    }
  });

  it('is stopped on the node that tells of its end and on no other, and is offered at once then', () => {
    const s = whole('n1', 'n2');
    hello(s, 'n1', [engine(0)], T + 1);
    expect(stops(hello(s, 'n2', [engine(1, { state: 'exited' })], T + 2))).toEqual(['n2/1']);
    expect(routesOf(s, RUN).endpoints).toHaveLength(1);
    ledgerStep(s, [{ kind: 'settled', fence: 5_000, node: 'n2', proof: proof() }], T + 3);
    expect(s.grants[5_000]!.gave_up).toBeUndefined();
    expect(reply(ledgerStep(s, [reserve('z')], T + 4))).toMatchObject({ kind: 'stale', nodes: 2 });
    // Rank 0's own end is another matter.
    expect(stops(hello(s, 'n1', [], T + 5))).toEqual(['n1/0']);
    expect(routesOf(s, RUN).endpoints).toEqual([]);
  });

  it('keeps a member that leaks as that node’s, and is not stopped for it elsewhere', () => {
    const s = whole('n1', 'n2');
    hello(s, 'n1', [engine(0)], T + 1);
    hello(s, 'n2', [engine(1, { state: 'exited' })], T + 2);
    const effects = ledgerStep(s, [{ kind: 'settled', fence: 5_000, node: 'n2', proof: leaked }], T + 3);
    expect(stops(effects)).toEqual([]);
    expect(gpuCounts(s, s.nodes.n2!)).toMatchObject({ leaked: 4 });
    expect(routesOf(s, RUN).endpoints).toHaveLength(1);
  });

  it('takes no member twice, none beyond its size, none into a single replica, and no word from a stranger (INV-8)', () => {
    const s = whole('n1', 'n2', 'evil');
    hello(s, 'n1', [engine(0)], T + 1);
    hello(s, 'evil', [engine(0), engine(2), engine(1, { nodes: 3 })], T + 2);
    expect(on(s, 5_000)).toEqual(['n1']);
    hello(s, 'n2', [engine(1)], T + 3);
    hello(s, 'evil', [engine(1)], T + 4);
    const { nodes: _, ...alone } = engine(0, { replica: 'one', fence: 6_000 });
    hello(s, 'n1', [engine(0), alone], T + 5);
    hello(s, 'evil', [engine(1, { replica: 'one', fence: 6_000 })], T + 6);
    expect([on(s, 5_000), on(s, 6_000)]).toEqual([['n1', 'n2'], ['n1']]);
    const exit = { replica: 'g', fence: 5_000, rank: 1, seq: 1, kind: 'exited' as const, at: '' };
    const event = { ...exit, requested: false, failure: digest(), node: 'evil' };
    expect(stops(ledgerStep(s, [{ kind: 'unclaimed', event, why: 'none' }], T + 7))).toEqual([]);
    const own: LedgerInput = { kind: 'unclaimed', event: { ...event, node: 'n2', seq: 2 }, why: 'none' };
    expect(stops(ledgerStep(s, [own], T + 8))).toEqual(['n2/1']);
  });

  it('is booked whole by its own replica, which knows its members, whoever has told of it', () => {
    const s = whole('n1', 'n2', 'evil');
    hello(s, 'evil', [engine(1, { slots: [7] })], T + 1);
    hello(s, 'n1', [engine(0)], T + 2);
    ledgerStep(s, [assertion('r', 5_000)], T + 3);
    expect(on(s, 5_000)).toEqual(['n1', 'n2']);
    // A member whose GPUs are another's by now: it must stop (INV-1).
    const t = whole('n1', 'n2');
    ledgerStep(t, [single('other', 8)], T + 1);
    hello(t, 'n2', [engine(1)], T + 2);
    expect(reply(ledgerStep(t, [assertion('r', 5_000)], T + 3))).toMatchObject({ kind: 'stale' });
  });
});

describe('what is sick', () => {
  it('is not offered, and what runs on it is let be; its replica is told once where it can’t go on', () => {
    const { s, fence } = granted();
    const fatal = [{ slot: 2, reason: 'it fell off the bus' }];
    const sick = () => node('n2', { usable: maskOf([0, 1, 3, 4, 5, 6, 7]), fatal });
    const effects = ledgerStep(s, [sick()], T + 2);
    expect(effects).toMatchObject([
      { replica: 'g', reply: { kind: 'node', news: 'sick', node: 'n2', fence } },
    ]);
    expect(ledgerStep(s, [sick()], T + 3)).toEqual([]);
    expect(on(s, fence)).toEqual(['n1', 'n2']);
    // Its next generation gets others.
    ledgerStep(s, [renew('r', 2, fence, { n1: proof(), n2: proof() })], T + 4);
    expect(s.grants[s.last_fence]!.members[1]).toMatchObject({ node: 'n2', slots: [0, 1, 3, 4] });
  });

  it('when its engine is claimed is told then, once', () => {
    const s = whole('n1', 'n2');
    const fatal = [{ slot: 2, reason: 'it fell off the bus' }];
    const hellos = [
      node('n1', { hello_at: T + 1, running: [engine(0)] }),
      node('n2', { hello_at: T + 1, running: [engine(1)], fatal }),
    ];
    expect(replies(ledgerStep(s, hellos, T + 1))).toEqual([]);
    const news = replies(ledgerStep(s, [assertion('r', 5_000)], T + 2));
    expect(news).toMatchObject([{ kind: 'ack' }, { news: 'sick', node: 'n2', fence: 5_000 }]);
    expect(replies(ledgerStep(s, [assertion('r', 5_000)], T + 3))).toMatchObject([{ kind: 'ack' }]);
  });

  it('keeps no gang on a fabric that degrades: the running one is let be, the next goes to another', () => {
    const { s, fence } = granted('n3');
    expect(ledgerStep(s, [node('n2', { fabrics: [] })], T + 2)).toEqual([]);
    const effects = ledgerStep(s, [renew('r', 2, fence, { n1: proof(), n2: proof() })], T + 3);
    expect(reply(effects)).toMatchObject({ members: [{ node: 'n1' }, { node: 'n3' }] });
  });
});

describe('a leak that an operator clears', () => {
  const left = () => {
    const { s, fence } = granted();
    ledgerStep(s, [release('r', fence, { n1: leaked, n2: proof() })], T + 2);
    ledgerStep(s, [single('other', 4)], T + 3);
    return { s, fence };
  };

  it('frees the slots that are named, or all that are left, and says whose word it was', () => {
    const { s, fence } = left();
    expect(free(s)).toEqual([0, 8]);
    expect(clearLeak(s, 'n1', [0, 1], 'op', T + 4)).toEqual({
      cleared: [{ replica: 'g', fence, slots: [0, 1] }],
      refused: null,
    });
    expect(free(s)).toEqual([2, 8]);
    ledgerStep(s, [{ kind: 'clear_leak', node: 'n1', slots: null, by: 'op' }], T + 5);
    expect(s.grants[fence]).toBeUndefined();
    expect(s.journal.at(-1)!.text).toContain(
      'slots 2,3 of n1 count as free by the word of op: leaked: GPU-7',
    );
  });

  it('is that of the one hold that was asked about, and not of another one on the same GPUs', () => {
    const { s, fence } = left();
    const other = {
      ...s.grants[fence]!,
      replica: 'old',
      fence: 7,
      members: [{ node: 'n1', rank: 0, slots: [0] }],
    };
    s.grants[7] = other;
    ledgerStep(s, [{ kind: 'clear_leak', node: 'n1', slots: HALF, by: 'op', fence }], T + 4);
    expect(s.grants[fence]).toBeUndefined();
    expect(on(s, 7)).toEqual(['n1']);
    // Told again: that one is over, and the other one's is another word.
    ledgerStep(s, [{ kind: 'clear_leak', node: 'n1', slots: [0], by: 'op', fence }], T + 5);
    expect(on(s, 7)).toEqual(['n1']);
  });

  it('of a gang that is routed still takes that node from its route', () => {
    const s = whole('n1', 'n2');
    ledgerStep(s, [node('n1', { hello_at: T + 1, running: [engine(0)] })], T + 1);
    ledgerStep(s, [node('n2', { hello_at: T + 2, running: [engine(1, { state: 'exited' })] })], T + 2);
    ledgerStep(s, [{ kind: 'settled', fence: 5_000, node: 'n2', proof: leaked }], T + 3);
    expect(routesOf(s, RUN).endpoints).toMatchObject([{ nodes: ['n2'] }]);
    ledgerStep(s, [{ kind: 'clear_leak', node: 'n2', slots: null, by: 'op' }], T + 4);
    expect(routesOf(s, RUN).endpoints[0]).not.toHaveProperty('nodes');
  });

  it('is refused for what a live grant holds, and where nothing is left', () => {
    const { s } = left();
    const refused = (slots: number[] | null, at = 'n1') => clearLeak(s, at, slots, 'op', T + 4);
    expect(refused([0, 4])).toEqual({
      cleared: [],
      refused: expect.stringContaining('slot 4 of n1: held by replica/other'),
    });
    expect(refused([5, 6], 'n2').refused).toContain('held by nothing that was left');
    expect(refused(null, 'n2').refused).toContain('no GPU of n2 is left');
    expect(free(s)).toEqual([0, 8]);
  });
});

it('adopts no process as a replica over several nodes', () => {
  const s = whole('n1', 'n2');
  const effects = ledgerStep(s, [reserve('r', 1, { adopt: { node: 'n1', slots: HALF } })], T + 1);
  expect(reply(effects)).toMatchObject({ kind: 'waiting', hopeless: true });
});

it('says all of a gang of 64 members in messages far below what a payload may have (INV-11)', () => {
  const names = Array.from({ length: 64 }, (_, i) => `${'n'.repeat(60)}-${String(i).padStart(2, '0')}`);
  const s = whole(...names);
  const shape = { ...shapeOf(spec()), nodes: 64, tensor_parallel: 8, pipeline_parallel: 64 };
  const first = reply(ledgerStep(s, [reserve('r', 1, { shape, prefer_nodes: names })], T + 1));
  expect(first).toMatchObject({ kind: 'granted' });
  expect(JSON.stringify(first).length).toBeLessThan(16_384);
  expect(signalFault(SIGNALS.replica.ledger, first)).toBeNull();
  const wide = { shape: { ...shape, nodes: 65 } };
  expect(JSON.stringify(ledgerStep(s, [reserve('z', 1, wide)], T + 2)).length).toBeLessThan(16_384);
});
