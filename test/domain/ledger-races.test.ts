// What the ledger is told late, twice, in another order, or by a node that lies (INV-1, INV-5, INV-8).
import { describe, expect, it } from 'vitest';
import type { AssertMsg, EndpointMsg, NodeFacts, RunningEngine } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { emptyLedger, gpuCounts, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep, nextLook } from '../../domain/ledger/step.js';
import { fleetStatusOf, holdersOf, routesOf } from '../../domain/ledger/view.js';
import { shapeOf } from '../../domain/replica/make.js';
import { digest, facts, proof, spec } from './fixtures.js';

const T = 1_000_000;
const RUN = { run_id: 'ledger', continued_run_id: null };

const ids = (run: string) => ({ run_id: run, continued_run_id: null, first_run_id: run });

const reserve = (replica: string, n = 1, over: Record<string, unknown> = {}): LedgerInput => ({
  kind: 'reserve',
  key: `${replica}-run/reserve/${n}`,
  replica,
  ...ids(`${replica}-run`),
  shape: shapeOf(spec()),
  exclude: [],
  prefer: null,
  adopt: null,
  ...over,
});

const renew = (replica: string, n: number, fence: number): LedgerInput =>
  ({
    ...reserve(replica, n),
    kind: 'renew',
    release: { fence, members: [{ node: 'n1', proof: proof() }] },
  }) as LedgerInput;

const serving = (replica: string, fence: number, url = 'http://10.0.0.1:20000') => ({
  model: 'm',
  aliases: [],
  replica,
  fence,
  node: 'n1',
  url,
  key_id: null,
  auth: 'none' as const,
  state: 'ready' as const,
  revision: null,
});

const assertion = (
  replica: string,
  n: number,
  fence: number | null,
  slot = 0,
  over: Partial<AssertMsg> = {},
): AssertMsg => ({
  kind: 'assert',
  key: `${replica}-run/assert/${n}`,
  replica,
  ...ids(`${replica}-run`),
  fence,
  members: fence === null ? [] : [{ node: 'n1', rank: 0, slots: [slot] }],
  why: `n1: slots ${slot}`,
  endpoint: fence === null ? null : serving(replica, fence),
  ...over,
});

const endpoint = (
  replica: string,
  n: number,
  fence: number,
  state: 'ready' | 'draining' | null,
): EndpointMsg => ({
  kind: 'endpoint',
  key: `${replica}-run/endpoint/${n}`,
  replica,
  run_id: `${replica}-run`,
  fence,
  endpoint: state === null ? null : { ...serving(replica, fence), state },
  answer: false,
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

const anew = (replicas: string[], nodes: string[] = ['n1']): LedgerState => {
  const s = emptyLedger('epoch', T);
  ledgerStep(s, [{ kind: 'rebuild', why: 'it began anew' }], T);
  const survey = { replicas: replicas.map(name => ({ name, run_id: `${name}-run`, node: 'n1' })), nodes };
  ledgerStep(s, [{ kind: 'survey', survey }], T);
  return s;
};

type Effects = ReturnType<typeof ledgerStep>;
const stops = (effects: Effects) => effects.filter(e => e.do === 'stop');
const replies = (effects: Effects) => effects.flatMap(e => (e.do === 'reply' ? [e.reply] : []));
const held = (s: LedgerState) => gpuCounts(s, s.nodes.n1!).held;

describe('a ledger that is rebuilt while replicas ask', () => {
  it('offers what runs to a replica that asked before its node said hello, and stops nothing of it', () => {
    const s = anew(['x']);
    ledgerStep(s, [reserve('x')], T + 1);
    const found = ledgerStep(s, [node({ running: [engine('x', 5_000, 3)] })], T + 2);
    expect(replies(found)).toMatchObject([{ kind: 'stale', fence: 5_000, key: 'x-run/reserve/1' }]);
    // Its answer to the ledger's question was on its way: it knew of nothing then.
    const said = ledgerStep(s, [assertion('x', 2, null)], T + 3);
    expect(stops(said)).toEqual([]);
    expect(s.grants[5_000]?.gave_up).toBeUndefined();
    expect(routesOf(s, RUN).endpoints).toMatchObject([{ replica: 'x', fence: 5_000 }]);
  });

  it('gives up, and takes out of the table, what a replica held by its knowledge and no longer holds', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    ledgerStep(s, [endpoint('a', 2, fence, 'ready')], T + 2);
    ledgerStep(s, [{ kind: 'rebuild', why: 'reset: run r begins at an earlier point' }], T + 3);
    const survey = { replicas: [{ name: 'a', run_id: 'a-run', node: 'n1' }], nodes: ['n1'] };
    ledgerStep(s, [{ kind: 'survey', survey }], T + 4);
    expect(stops(ledgerStep(s, [assertion('a', 9, null)], T + 5))).toMatchObject([{ order: { fence } }]);
    expect(routesOf(s, RUN).endpoints).toEqual([]);
  });

  it('holds nothing for an assertion that was overtaken by the release of what it tells', () => {
    const s = anew(['a']);
    ledgerStep(s, [node({ profile: { ...facts().profile, slots: 1 }, usable: 1 })], T + 1);
    ledgerStep(s, [renew('a', 5, 5_000)], T + 2);
    ledgerStep(s, [assertion('a', 4, 5_000)], T + 3);
    expect(Object.values(s.grants).map(g => g.key)).toEqual(['a-run/reserve/5']);
    // Overtaken by what was granted since: no reason to stop that.
    expect(replies(ledgerStep(s, [assertion('a', 4, 5_000)], T + 4))).toMatchObject([{ kind: 'ack' }]);
  });

  it('does not let an older assertion put an engine that drains back into the table', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    ledgerStep(s, [assertion('a', 2, fence), endpoint('a', 3, fence, 'draining')], T + 2);
    ledgerStep(s, [assertion('a', 2, fence)], T + 3);
    expect(routesOf(s, RUN).endpoints).toMatchObject([{ state: 'draining' }]);
  });

  it('asks a replica whose endpoint is of a grant that it does not know', () => {
    const s = anew(['a']);
    ledgerStep(s, [assertion('a', 2, null)], T + 1);
    const effects = ledgerStep(s, [endpoint('a', 3, 5_000, 'ready')], T + 2);
    expect(replies(effects)).toMatchObject([{ kind: 'assert' }]);
    expect(replies(ledgerStep(s, [endpoint('a', 4, 5_000, null)], T + 3))).toEqual([]);
  });

  it('tells a replica that its node is back, which another ledger had called lost', () => {
    const s = anew(['a']);
    ledgerStep(s, [assertion('a', 2, 5_000, 0, { lost: ['n1'] })], T + 1);
    expect(replies(ledgerStep(s, [node()], T + 2))).toMatchObject([{ kind: 'node', news: 'back' }]);
    expect(replies(ledgerStep(s, [node()], T + 3))).toEqual([]);
  });

  it('begins once for each reason, however many control planes have seen it', () => {
    const s = whole();
    const rebuild: LedgerInput = { kind: 'rebuild', why: 'reset: run r begins at an earlier point' };
    ledgerStep(s, [rebuild], T + 1);
    ledgerStep(s, [{ kind: 'survey', survey: { replicas: [], nodes: ['n1'] } }], T + 2);
    ledgerStep(s, [node({ hello_at: T + 3 })], T + 3);
    expect(ledgerStep(s, [rebuild], T + 60_000)).toEqual([]);
    expect(s.rebuilding).toBeNull();
    expect(replies(ledgerStep(s, [reserve('b')], T + 60_001))).toMatchObject([{ kind: 'granted' }]);
  });

  it('counts a node as missing until it has said hello since, so that its control plane says it again', () => {
    const s = whole();
    expect(holdersOf(s, RUN).nodes).toEqual(['n1']);
    ledgerStep(s, [{ kind: 'rebuild', why: 'by hand' }], T + 1);
    expect(holdersOf(s, RUN).nodes).toEqual([]);
    ledgerStep(s, [node({ hello_at: T + 2 })], T + 2);
    expect(holdersOf(s, RUN).nodes).toEqual(['n1']);
  });

  it('waits for no time while it is rebuilt in which it may order nothing', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    ledgerStep(
      s,
      [
        {
          kind: 'release',
          key: 'k',
          replica: 'a',
          fence,
          withdraw: null,
          members: [{ node: 'n1', proof: null }],
        },
      ],
      T + 2,
    );
    ledgerStep(s, [{ kind: 'settle_failed', fence, node: 'n1', sentence: 'no' }], T + 3);
    ledgerStep(s, [{ kind: 'rebuild', why: 'by hand' }], T + 4);
    expect(nextLook(s)).toBeNull();
  });

  it('asks a mute replica again, and frees its node when its workflow is closed by then', () => {
    const s = anew(['mute']);
    ledgerStep(s, [node()], T + 1);
    const late = T + TIMING.rebuildPatience;
    ledgerStep(s, [{ kind: 'look' }], late);
    expect(s.silent).toEqual({ mute: 'n1' });
    const again = nextLook(s)!;
    expect(again).toBeGreaterThan(late);
    expect(ledgerStep(s, [{ kind: 'look' }], again)).toMatchObject([
      { do: 'reply', replica: 'mute', reply: { kind: 'assert' } },
    ]);
    expect(nextLook(s)).toBeGreaterThan(again);
    ledgerStep(s, [{ kind: 'undeliverable', replica: 'mute', fence: null }], again + 1);
    expect(s.silent).toEqual({});
    expect(nextLook(s)).toBeNull();
  });
});

describe('a ledger that begins with an empty database', () => {
  it('takes no route from the routers until the nodes have had the time to say what serves (INV-5)', () => {
    const s = anew([], []);
    // An empty table of version 0 is one that no router takes for a newer one.
    expect(routesOf(s, RUN)).toMatchObject({ version: 0, endpoints: [], rebuilding: false });
    const first = ledgerStep(s, [node({ running: [engine('x', 5_000, 0)] })], T + 100);
    expect(first).toEqual([]);
    expect(routesOf(s, RUN)).toMatchObject({ version: 0, endpoints: [], rebuilding: true });
    expect(replies(ledgerStep(s, [reserve('b')], T + 101))).toMatchObject([{ kind: 'granted' }]);
    ledgerStep(s, [node({ node_id: 'n2', running: [engine('y', 5_001, 0)] })], T + 8_000);
    const until = nextLook(s)!;
    expect(ledgerStep(s, [{ kind: 'look' }], until)).toMatchObject([{ do: 'routes' }]);
    expect(routesOf(s, RUN).endpoints.map(e => e.replica)).toEqual(['x', 'y']);
    expect(routesOf(s, RUN).version).toBeGreaterThanOrEqual(until);
    // Once: what is found later is a route like any other.
    expect(
      ledgerStep(
        s,
        [node({ hello_at: until + 1, running: [engine('x', 5_000, 0), engine('z', 5_002, 1)] })],
        until + 1,
      ),
    ).toMatchObject([{ do: 'routes' }]);
  });

  it('shows the first engine that it starts itself at once', () => {
    const s = anew([], []);
    ledgerStep(s, [node(), reserve('a')], T + 1);
    expect(ledgerStep(s, [endpoint('a', 2, s.last_fence, 'ready')], T + 2)).toMatchObject([{ do: 'routes' }]);
    expect(routesOf(s, RUN).endpoints).toHaveLength(1);
  });
});

describe('a claim', () => {
  const closed = (replica: string, run: string, at: number, status = 'TERMINATED'): LedgerInput => ({
    kind: 'closed',
    closed: [{ replica, first_run_id: run, status, closed_at: at }],
  });
  const later = { key: 'z/reserve/1', ...ids('z') };

  it('outlives a late word that the run before it is closed', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    expect(replies(ledgerStep(s, [reserve('a', 1, later)], T + 60))).toMatchObject([{ kind: 'stale' }]);
    expect(stops(ledgerStep(s, [closed('a', 'a-run', T + 50)], T + 61))).toEqual([]);
    ledgerStep(s, [assertion('a', 2, fence, 0, { ...ids('z'), key: 'z/assert/2' })], T + 62);
    expect(stops(ledgerStep(s, [closed('a', 'a-run', T + 50)], T + 63))).toEqual([]);
    expect(stops(ledgerStep(s, [closed('a', 'z', T + 70)], T + 71))).toHaveLength(1);
  });

  it('that came before its run was closed, and was heard after that, is the closed run’s', () => {
    const word: LedgerInput = {
      kind: 'closed',
      closed: [{ replica: 'a', run_id: 'z', first_run_id: 'z', status: 'TERMINATED', closed_at: T + 50 }],
    };
    for (const claims of [true, false]) {
      const s = whole();
      ledgerStep(s, [reserve('a')], T + 1);
      const fence = s.last_fence;
      if (claims) ledgerStep(s, [reserve('a', 1, later)], T + 40);
      const heardLate = claims
        ? assertion('a', 2, fence, 0, { ...ids('z'), key: 'z/assert/2' })
        : reserve('a', 1, later);
      ledgerStep(s, [heardLate], T + 60);
      expect(stops(ledgerStep(s, [word], T + 61)), claims ? 'claimed' : 'offered').toHaveLength(1);
    }
  });

  it('is not offered while the stop of that engine is under way', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    expect(stops(ledgerStep(s, [closed('a', 'a-run', T + 50)], T + 51))).toHaveLength(1);
    const asked = replies(ledgerStep(s, [reserve('a', 1, later)], T + 60));
    expect(asked.map(r => r.kind)).not.toContain('stale');
  });

  it('of an engine whose stop was ordered meanwhile ends with it: its run is told, and stops it too', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    ledgerStep(s, [closed('a', 'a-run', T + 50)], T + 51);
    ledgerStep(s, [{ kind: 'settle_failed', fence, node: 'n1', sentence: 'no' }], T + 52);
    expect(replies(ledgerStep(s, [reserve('a', 1, later)], T + 60))).toMatchObject([{ kind: 'stale' }]);
    expect(stops(ledgerStep(s, [{ kind: 'look' }], T + 52 + TIMING.settleAgain))).toHaveLength(1);
    const claimed = assertion('a', 2, fence, 0, { ...ids('z'), key: 'z/assert/2' });
    expect(replies(ledgerStep(s, [claimed], T + 90_000))).toMatchObject([{ kind: 'stale', fence }]);
    expect(s.grants[fence]?.gave_up).toBeDefined();
  });

  it('that failed to begin is no word about an engine of a workflow that Temporal has lost', () => {
    const s = whole();
    ledgerStep(s, [node({ running: [engine('x', 5_000, 3)] })], T + 5);
    expect(stops(ledgerStep(s, [closed('x', 'x-run', T + 50, 'FAILED')], T + 60))).toEqual([]);
    expect(stops(ledgerStep(s, [closed('x', 'x-run', T + 50)], T + 61))).toHaveLength(1);
  });

  it("that ended says nothing of an engine that was there before it began: another history's", () => {
    const s = whole();
    ledgerStep(s, [node({ running: [engine('a', 5_000, 3)] })], T + 5);
    const word = (started_at: number): LedgerInput => ({
      kind: 'closed',
      closed: [{ replica: 'a', first_run_id: 'z', status: 'TERMINATED', closed_at: T + 50, started_at }],
    });
    expect(stops(ledgerStep(s, [word(T)], T + 60))).toEqual([]);
    expect(stops(ledgerStep(s, [word(4_000)], T + 61))).toHaveLength(1);
  });

  it('is offered to a run that waits already when the node comes back', () => {
    const s = whole();
    ledgerStep(s, [reserve('a', 1, { shape: shapeOf(spec({ tensor_parallel: 8 })) })], T + 1);
    const fence = s.last_fence;
    ledgerStep(s, [node({ state: 'silent' })], T + 2);
    ledgerStep(s, [reserve('a', 1, later)], T + 3);
    expect(replies(ledgerStep(s, [node()], T + 4))).toMatchObject([{ kind: 'stale', fence }]);
    expect(s.waiting).toEqual([]);
  });
});

describe('a grant', () => {
  it('that a run continued is found by the key that its predecessor asked with', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const again = reserve('a', 1, { run_id: 'a-2', continued_run_id: 'a-run' });
    expect(replies(ledgerStep(s, [again], T + 2))).toMatchObject([{ kind: 'granted', fence: s.last_fence }]);
    expect(Object.keys(s.grants)).toHaveLength(1);
  });

  it('that its replica has received does not end by a withdrawal alone', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    ledgerStep(s, [{ kind: 'delivered', fence }], T + 2);
    const release = { kind: 'release', key: 'k', replica: 'a', fence: null } as const;
    ledgerStep(s, [{ ...release, withdraw: 'a-run/reserve/1', members: [] }], T + 3);
    expect(held(s)).toBe(1);
  });

  it('of a run that asks for another one is given up: who asks holds nothing', () => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    const fence = s.last_fence;
    expect(stops(ledgerStep(s, [reserve('a', 5)], T + 2))).toMatchObject([{ order: { fence } }]);
  });

  it.each([true, false])(
    'that another run left is given up when a newer engine serves, its node being there or back later',
    there => {
      const s = whole();
      ledgerStep(s, [reserve('a'), node({ node_id: 'n2' })], T + 1);
      const fence = s.last_fence;
      ledgerStep(s, [node({ state: 'silent' })], T + 2);
      ledgerStep(s, [reserve('a', 1, { key: 'z/reserve/1', ...ids('z') })], T + 3);
      const newer = s.last_fence;
      expect(s.grants[newer]?.members[0]?.node).toBe('n2');
      const back = () =>
        ledgerStep(s, [node({ hello_at: T + ++seq, running: [engine('a', fence, 0)] })], T + 9);
      expect(stops(back())).toEqual([]);
      if (!there) ledgerStep(s, [node({ state: 'silent' })], T + 9);
      const ready = { ...endpoint('a', 2, newer, 'ready'), key: 'z/endpoint/2', run_id: 'z' };
      const orders = [...stops(ledgerStep(s, [ready], T + 10)), ...(there ? [] : stops(back()))];
      expect(orders).toMatchObject([{ node: 'n1', order: { fence } }]);
    },
  );
});

describe('a node that lies (INV-8)', () => {
  const published = (): { s: LedgerState; fence: number } => {
    const s = whole();
    ledgerStep(s, [reserve('a')], T + 1);
    ledgerStep(s, [endpoint('a', 2, s.last_fence, 'ready')], T + 2);
    return { s, fence: s.last_fence };
  };
  const evil = (running: RunningEngine[], hello_at = T + 3) => node({ node_id: 'evil', hello_at, running });

  it('does not take over the route of a replica that has a workflow', () => {
    const { s, fence } = published();
    ledgerStep(s, [evil([engine('a', fence + 1_000, 0)])], T + 3);
    expect(routesOf(s, RUN).endpoints).toMatchObject([{ replica: 'a', fence, node: 'n1' }]);
  });

  it('does not draw a replica away from an engine that its own node has', () => {
    const s = anew(['a']);
    ledgerStep(s, [node({ running: [engine('a', 5_000, 0)] })], T + 1);
    ledgerStep(s, [evil([engine('a', 5_100, 0)])], T + 2);
    expect(replies(ledgerStep(s, [assertion('a', 9, 5_000)], T + 4))).toMatchObject([{ kind: 'ack' }]);
    expect(routesOf(s, RUN).endpoints).toMatchObject([{ fence: 5_000, node: 'n1' }]);
  });

  it('does not end the unclaimed engine of another node, by joining it or by telling of its exit', () => {
    const s = whole();
    ledgerStep(s, [node({ running: [engine('x', 5_000, 3)] })], T + 5);
    const joined = ledgerStep(s, [evil([engine('x', 5_000, 0, { rank: 1, state: 'exited' })])], T + 6);
    const left = ledgerStep(s, [evil([], T + 7)], T + 7);
    const event = {
      replica: 'x',
      fence: 5_000,
      rank: 0,
      seq: 1,
      kind: 'exited' as const,
      at: '',
      requested: false,
      failure: digest(),
    };
    const told = ledgerStep(
      s,
      [{ kind: 'unclaimed', event: { ...event, node: 'evil' }, why: 'none' }],
      T + 8,
    );
    expect([joined, left, told].flatMap(stops)).toEqual([]);
    const own: LedgerInput = { kind: 'unclaimed', event: { ...event, node: 'n1', seq: 2 }, why: 'none' };
    expect(stops(ledgerStep(s, [own], T + 9)).map(e => e.node)).toContain('n1');
  });

  it('tells of no engine under an impossible name, of no more than it has slots, of no route that is none', () => {
    const s = whole();
    const many = Array.from({ length: 500 }, (_, i) => engine(`m${i}`, 5_000 + i, 0));
    ledgerStep(s, [evil([engine('../x', 4_000, 0), engine('__proto__', 4_001, 0), ...many])], T + 3);
    expect(Object.keys(s.grants).length).toBeLessThanOrEqual(52);
    const url = (text: string, fence: number) =>
      engine(`r${fence}`, fence, 1, {
        serves: { model: 'm', aliases: [], url: text, key_id: null, revision: null },
      });
    const t = whole();
    const bad = [
      'nonsense',
      'http://a b:1',
      'file:///etc/passwd',
      'http://999.1.1.1:80',
      'http://a:99999',
      `http://${'a'.repeat(400)}:1`,
    ];
    ledgerStep(
      t,
      [evil([...bad.map((text, i) => url(text, 4_000 + i)), url('http://[fd00::1]:8000', 4_100)])],
      T + 3,
    );
    expect(routesOf(t, RUN).endpoints.map(e => e.url)).toEqual(['http://[fd00::1]:8000']);
  });
});

it('routes an engine that nobody claims when a later hello tells that it has become ready', () => {
  const s = whole();
  ledgerStep(s, [node({ running: [engine('x', 5_000, 3, { state: 'loading' })] })], T + 5);
  expect(routesOf(s, RUN).endpoints).toEqual([]);
  ledgerStep(s, [node({ hello_at: T + 6, running: [engine('x', 5_000, 3)] })], T + 6);
  expect(routesOf(s, RUN).endpoints).toMatchObject([{ replica: 'x', fence: 5_000 }]);
});

it('does not forget a node that came back in the moment of it', () => {
  const s = whole();
  ledgerStep(s, [reserve('a'), node({ state: 'lost' })], T + 1);
  ledgerStep(s, [node({ hello_at: T + 2 }), { kind: 'forget', node: 'n1', by: 'op' }], T + 2);
  expect(s.nodes.n1).toBeDefined();
  expect(held(s)).toBe(1);
  expect(fleetStatusOf(s).alarms).toEqual([]);
});

it('tells the route anew when anything of it has changed', () => {
  const s = whole();
  ledgerStep(s, [node({ running: [engine('x', 5_000, 3)] })], T + 5);
  ledgerStep(s, [reserve('x')], T + 6);
  const claimed = { ...serving('x', 5_000), model: 'right' };
  ledgerStep(s, [assertion('x', 2, 5_000, 3, { endpoint: claimed })], T + 7);
  expect(routesOf(s, RUN).endpoints).toMatchObject([{ model: 'right' }]);
});
