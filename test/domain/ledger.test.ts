import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ReserveMsg } from '../../contracts/messages.js';
import { emptyLedger, gpuCounts, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep } from '../../domain/ledger/step.js';
import { nodeRows } from '../../domain/ledger/view.js';
import { shapeOf } from '../../domain/replica/make.js';
import { maskOf, slotsOf } from '../../domain/slots.js';
import { facts, proof, spec } from './fixtures.js';

const reserve = (replica: string, key: string, over: Record<string, unknown> = {}): ReserveMsg => ({
  kind: 'reserve',
  key,
  replica,
  run_id: 'x',
  continued_run_id: null,
  first_run_id: 'x',
  shape: shapeOf(spec(over)),
  exclude: [],
  prefer: null,
  adopt: null,
});

const withNode = (over = {}): LedgerState => {
  const s = emptyLedger('epoch', 0);
  ledgerStep(s, [{ kind: 'node', facts: facts(over) }], 1_000);
  return s;
};

describe('the ledger', () => {
  it('answers a repeated key as it answered the first', () => {
    const s = withNode();
    const [first] = ledgerStep(s, [reserve('a', 'k1')], 5_000);
    const [again] = ledgerStep(s, [reserve('a', 'k1')], 6_000);
    expect(again).toEqual(first);
    expect(Object.keys(s.grants)).toHaveLength(1);
  });

  it('gives each grant a higher fence than any before, and at least the time (INV-6)', () => {
    const s = withNode();
    s.last_fence = 9_000;
    ledgerStep(s, [reserve('a', 'k'), reserve('b', 'k')], 5_000);
    expect(Object.values(s.grants).map(g => g.fence)).toEqual([9_001, 9_002]);
    ledgerStep(s, [reserve('c', 'k')], 50_000);
    expect(s.last_fence).toBe(50_000);
  });

  it('keeps a hold that is released without proof (INV-1)', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'k', { tensor_parallel: 8 })], 5_000);
    ledgerStep(
      s,
      [
        {
          kind: 'release',
          key: 'r',
          replica: 'a',
          fence: 5_000,
          withdraw: null,
          members: [{ node: 'n1', proof: null }],
        },
      ],
      6_000,
    );
    const waiting = ledgerStep(s, [reserve('b', 'k')], 7_000);
    expect(waiting).toMatchObject([{ do: 'reply', reply: { kind: 'waiting' } }]);
    expect(gpuCounts(s, s.nodes.n1!)).toMatchObject({ free: 0, leaked: 8, held: 0 });
  });

  it('keeps GPUs that are leaked although the tree is gone, and says which pid holds them (INV-2)', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'k')], 5_000);
    const leaked = { ...proof(), leaked: [{ gpu: 'GPU-7', pids: [4711], used_mib: 900 }] };
    ledgerStep(
      s,
      [
        {
          kind: 'release',
          key: 'r',
          replica: 'a',
          fence: 5_000,
          withdraw: null,
          members: [{ node: 'n1', proof: leaked }],
        },
      ],
      6_000,
    );
    expect(gpuCounts(s, s.nodes.n1!)).toMatchObject({ free: 7, leaked: 1 });
    expect(nodeRows(s)[0]!.conditions).toMatchObject([
      { code: 'hold_left', message: expect.stringContaining('pid 4711') },
    ]);
  });

  it('has a new run stop first what an earlier run of the same replica left (INV-1, INV-5)', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'k')], 5_000);
    const next = { ...reserve('a', 'k2'), run_id: 'y', first_run_id: 'y' };
    expect(ledgerStep(s, [next], 6_000)).toMatchObject([
      { reply: { kind: 'stale', key: 'k2', fence: 5_000, members: [{ node: 'n1', slots: [0] }] } },
    ]);
    const { kind: _, ...rest } = next;
    const renew = {
      ...rest,
      kind: 'renew' as const,
      key: 'k3',
      release: { fence: 5_000, members: [{ node: 'n1', proof: proof() }] },
    };
    expect(ledgerStep(s, [renew], 7_000)).toMatchObject([
      { reply: { kind: 'granted', key: 'k3', fence: 7_000 } },
    ]);
    expect(Object.keys(s.grants)).toEqual(['7000']);
  });

  it('asks a run once to stop what an earlier run left: GPUs that stay leaked are passed by', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'k')], 5_000);
    const next = { ...reserve('a', 'y/reserve/1'), run_id: 'y', first_run_id: 'y' };
    ledgerStep(s, [next], 6_000);
    const leaked = { ...proof(), leaked: [{ gpu: 'GPU-0', pids: [4711], used_mib: 900 }] };
    const renew = {
      ...next,
      kind: 'renew' as const,
      key: 'y/reserve/2',
      release: { fence: 5_000, members: [{ node: 'n1', proof: leaked }] },
    };
    expect(ledgerStep(s, [renew], 7_000)).toMatchObject([
      { reply: { kind: 'granted', key: 'y/reserve/2', members: [{ node: 'n1', slots: [1] }] } },
    ]);
    expect(
      ledgerStep(s, [{ ...reserve('a', 'z/reserve/1'), run_id: 'z', first_run_id: 'z' }], 8_000),
    ).toMatchObject([{ reply: { kind: 'stale', key: 'z/reserve/1', fence: 7_000 } }]);
  });

  it('takes no notice of a reserve that a newer one of the same run has overtaken', () => {
    const s = withNode();
    const of = (n: number) => ({ ...reserve('a', `x/reserve/${n}`, { tensor_parallel: 16 }) });
    ledgerStep(s, [of(10)], 5_000);
    // Answered all the same: what is not answered is sent again for ever.
    expect(ledgerStep(s, [of(9)], 6_000)).toMatchObject([{ reply: { kind: 'ack', key: 'x/reserve/9' } }]);
    expect(s.waiting.map(w => w.key)).toEqual(['x/reserve/10']);
    ledgerStep(s, [reserve('b', 'x/reserve/4')], 7_000);
    expect(ledgerStep(s, [reserve('b', 'x/reserve/3')], 8_000)).toMatchObject([{ reply: { kind: 'ack' } }]);
    expect(Object.values(s.grants).map(g => g.key)).toEqual(['x/reserve/4']);
  });

  it('does not wait for a node that is away to stop what an earlier run left there', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'k')], 5_000);
    const away = facts({ seq: 2, state: 'silent' });
    const other = facts({ node_id: 'n2' });
    ledgerStep(
      s,
      [
        { kind: 'node', facts: away },
        { kind: 'node', facts: other },
      ],
      5_500,
    );
    const effects = ledgerStep(s, [{ ...reserve('a', 'k2'), run_id: 'y', first_run_id: 'y' }], 6_000);
    expect(effects).toMatchObject([{ reply: { kind: 'granted', members: [{ node: 'n2' }] } }]);
  });

  it('wakes who waits when GPUs come back', () => {
    const s = withNode();
    ledgerStep(
      s,
      [reserve('a', 'k', { tensor_parallel: 8 }), reserve('b', 'k', { tensor_parallel: 4 })],
      5_000,
    );
    const effects = ledgerStep(
      s,
      [
        {
          kind: 'release',
          key: 'r',
          replica: 'a',
          fence: 5_000,
          withdraw: null,
          members: [{ node: 'n1', proof: proof() }],
        },
      ],
      6_000,
    );
    expect(effects).toMatchObject([
      { replica: 'a', reply: { kind: 'ack' } },
      { replica: 'b', reply: { kind: 'granted', members: [{ node: 'n1' }] } },
    ]);
  });

  it('tells every live instance of a new table version, once a batch', () => {
    const s = withNode();
    ledgerStep(
      s,
      [{ kind: 'instance', instance: 'cp1', queue: 'q1', peer_addr: null, version: '0' }, reserve('a', 'k')],
      5_000,
    );
    const endpoint = {
      model: 'm',
      aliases: [],
      replica: 'a',
      fence: 5_000,
      node: 'n1',
      url: 'http://x',
      key_id: null,
      auth: 'none' as const,
      state: 'ready' as const,
      revision: null,
    };
    const effects = ledgerStep(
      s,
      [{ kind: 'endpoint', key: 'e', replica: 'a', run_id: 'x', fence: 5_000, endpoint, answer: true }],
      6_000,
    );
    expect(effects).toMatchObject([{ do: 'reply' }, { do: 'routes', version: 6_000, queues: ['q1'] }]);
  });

  it('lets no endpoint in that arrives after its own end, or without a grant', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'x/reserve/1')], 5_000);
    const endpoint = {
      model: 'm',
      aliases: [],
      replica: 'a',
      fence: 5_000,
      node: 'n1',
      url: 'http://x',
      key_id: null,
      auth: 'none' as const,
      state: 'ready' as const,
      revision: null,
    };
    const msg = (n: number, e: typeof endpoint | null) => ({
      kind: 'endpoint' as const,
      key: `x/endpoint/${n}`,
      replica: 'a',
      run_id: 'x',
      fence: 5_000,
      endpoint: e,
      answer: false,
    });
    ledgerStep(s, [msg(3, null), msg(2, endpoint)], 6_000);
    expect(s.endpoints).toEqual({});
    ledgerStep(
      s,
      [
        {
          kind: 'release',
          key: 'x/release/4',
          replica: 'a',
          fence: 5_000,
          withdraw: null,
          members: [{ node: 'n1', proof: proof() }],
        },
      ],
      7_000,
    );
    ledgerStep(s, [msg(5, endpoint)], 8_000);
    expect(s.endpoints).toEqual({});
  });

  it('keeps a grant that was delivered once, whoever cannot be reached later (INV-1)', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'k')], 5_000);
    ledgerStep(
      s,
      [
        { kind: 'delivered', fence: 5_000 },
        { kind: 'undeliverable', replica: 'a', fence: 5_000 },
      ],
      6_000,
    );
    expect(Object.keys(s.grants)).toEqual(['5000']);
  });

  it('takes a grant back whose workflow never received it', () => {
    const s = withNode();
    ledgerStep(s, [reserve('a', 'k')], 5_000);
    ledgerStep(s, [{ kind: 'undeliverable', replica: 'a', fence: 5_000 }], 6_000);
    expect(s.grants).toEqual({});
  });

  it('never books a GPU twice, whatever comes in whatever order', () => {
    const names = ['a', 'b', 'c', 'd'];
    const op = fc.record({
      who: fc.constantFrom(...names),
      what: fc.constantFrom('reserve', 'release', 'unproven', 'again'),
      tp: fc.constantFrom(1, 2, 4),
    });
    fc.assert(
      fc.property(fc.array(op, { maxLength: 40 }), ops => {
        const s = withNode();
        const lastKey: Record<string, string> = {};
        ops.forEach((o, i) => {
          const mine = Object.values(s.grants).filter(g => g.replica === o.who);
          const input: LedgerInput[] =
            o.what === 'reserve'
              ? [reserve(o.who, `k${i}`, { tensor_parallel: o.tp })]
              : o.what === 'again'
                ? [reserve(o.who, lastKey[o.who] ?? 'k', { tensor_parallel: o.tp })]
                : mine.map(g => ({
                    kind: 'release',
                    key: `r${i}`,
                    replica: o.who,
                    fence: g.fence,
                    withdraw: null,
                    members: g.members.map(m => ({
                      node: m.node,
                      proof: o.what === 'release' ? proof() : null,
                    })),
                  }));
          if (o.what === 'reserve') lastKey[o.who] = `k${i}`;
          ledgerStep(s, input, 10_000 + i);
          const slots = Object.values(s.grants).flatMap(g => g.members.flatMap(m => m.slots));
          expect(new Set(slots).size).toBe(slots.length);
        });
        expect(JSON.parse(JSON.stringify(s))).toEqual(s);
      }),
      { numRuns: 200 },
    );
  });
});

it('turns slots into masks and back', () => {
  expect(slotsOf(maskOf([0, 3, 31, 40]))).toEqual([0, 3, 31, 40]);
});
