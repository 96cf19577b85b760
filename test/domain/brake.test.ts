// The loss of nodes: who is told of it, and the brake that keeps a bad day from becoming a worse one (INV-5).
import { describe, expect, it } from 'vitest';
import type { NodeFacts } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { emptyLedger, gpuCounts, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep } from '../../domain/ledger/step.js';
import { brakeOf, fleetStatusOf } from '../../domain/ledger/view.js';
import { shapeOf } from '../../domain/replica/make.js';
import { facts, spec } from './fixtures.js';

let seq = 1_000;
const node = (id: string, state: NodeFacts['state'], since = 0): LedgerInput => ({
  kind: 'node',
  facts: facts({ node_id: id, seq: ++seq, state, since, reason: state }),
});

const fleetOf = (count: number): LedgerState => {
  const s = emptyLedger('epoch', 0);
  ledgerStep(
    s,
    Array.from({ length: count }, (_, i) => node(`n${i}`, 'connected')),
    1_000,
  );
  return s;
};

/** A replica on `at`. */
const place = (s: LedgerState, name: string, at: string): number => {
  const want = {
    kind: 'reserve' as const,
    key: `${name}/reserve/1`,
    replica: name,
    run_id: name,
    continued_run_id: null,
    first_run_id: name,
    shape: shapeOf(spec({ placement: { nodes: [at] } })),
    exclude: [],
    prefer: null,
    adopt: null,
  };
  ledgerStep(s, [want], 2_000);
  return s.last_fence;
};

const news = (effects: ReturnType<typeof ledgerStep>) =>
  effects.flatMap(e => (e.do === 'reply' && e.reply.kind === 'node' ? [[e.replica, e.reply.news]] : []));

describe('a node that is lost', () => {
  it('is told to the replicas that it hosts, and that it is back', () => {
    const s = fleetOf(2);
    place(s, 'a', 'n0');
    place(s, 'b', 'n1');
    expect(news(ledgerStep(s, [node('n0', 'silent')], 3_000))).toEqual([]);
    expect(news(ledgerStep(s, [node('n0', 'unsupervised')], 3_100))).toEqual([]);
    expect(news(ledgerStep(s, [node('n0', 'lost', 3_200)], 3_200))).toEqual([['a', 'lost']]);
    expect(news(ledgerStep(s, [{ kind: 'look' }], 3_300))).toEqual([]);
    expect(news(ledgerStep(s, [node('n0', 'connected')], 3_400))).toEqual([['a', 'back']]);
  });

  it('keeps the hold of a replica that gave it up, until it is back and the stop is proven (INV-1)', () => {
    const s = fleetOf(2);
    const fence = place(s, 'a', 'n0');
    ledgerStep(s, [node('n0', 'lost', 3_000)], 3_000);
    const renew = {
      kind: 'renew' as const,
      key: 'a/reserve/2',
      replica: 'a',
      run_id: 'a',
      continued_run_id: null,
      first_run_id: 'a',
      shape: shapeOf(spec()),
      exclude: [],
      prefer: null,
      adopt: null,
      release: { fence, members: [{ node: 'n0', proof: null }] },
    };
    expect(ledgerStep(s, [renew], 4_000)).toMatchObject([
      { reply: { kind: 'granted', members: [{ node: 'n1' }] } },
    ]);
    expect(gpuCounts(s, s.nodes.n0!)).toMatchObject({ free: 7, leaked: 1 });
    expect(ledgerStep(s, [node('n0', 'connected')], 5_000)).toMatchObject([
      { do: 'stop', node: 'n0', order: { replica: 'a', fence } },
    ]);
  });

  it('ends with the word of the operator who forgets it: holds end, replicas go on elsewhere', () => {
    const s = fleetOf(2);
    const fence = place(s, 'a', 'n0');
    ledgerStep(s, [node('n0', 'lost', 3_000)], 3_000);
    expect(news(ledgerStep(s, [{ kind: 'forget', node: 'n0', by: 'ada' }], 4_000))).toEqual([
      ['a', 'forgotten'],
    ]);
    expect(s.grants[fence]).toBeUndefined();
    expect(s.nodes.n0).toBeUndefined();
    expect(s.journal.at(-1)?.text).toContain('forgotten by ada');
  });
});

describe('the brake', () => {
  it('is on when more than a third of the nodes, and at least three, are silent at once', () => {
    const s = fleetOf(9);
    ledgerStep(s, [node('n0', 'silent'), node('n1', 'silent'), node('n2', 'lost', 2_900)], 3_000);
    expect(brakeOf(s).on).toBe(false);
    ledgerStep(s, [node('n3', 'unsupervised')], 3_100);
    expect(brakeOf(s)).toMatchObject({ on: true, by: 'fleet', reason: '4 of 9 nodes are silent at once' });
    const small = fleetOf(2);
    ledgerStep(small, [node('n0', 'silent'), node('n1', 'silent')], 3_000);
    expect(brakeOf(small).on).toBe(false);
  });

  it('holds back what was told already, and tells it again when it is released', () => {
    const s = fleetOf(6);
    place(s, 'a', 'n0');
    expect(news(ledgerStep(s, [node('n0', 'lost', 3_000)], 3_000))).toEqual([['a', 'lost']]);
    expect(news(ledgerStep(s, [node('n1', 'silent'), node('n2', 'silent')], 3_100))).toEqual([['a', 'back']]);
    expect(news(ledgerStep(s, [{ kind: 'brake', on: false, by: 'ada' }], 3_200))).toEqual([['a', 'lost']]);
    expect(brakeOf(s).on).toBe(false);
    ledgerStep(s, [node('n3', 'silent')], 3_300);
    expect(brakeOf(s).on).toBe(true);
  });

  it('is an alarm while it is on, which is over when it is off', () => {
    const s = fleetOf(6);
    ledgerStep(s, [node('n0', 'silent'), node('n1', 'silent'), node('n2', 'silent')], 2_000);
    expect(fleetStatusOf(s).alarms).toMatchObject([
      { text: expect.stringMatching(/^brake: 3 of 6/), over: false },
    ]);
    ledgerStep(s, [node('n0', 'connected'), node('n1', 'connected')], 3_000);
    expect(fleetStatusOf(s).alarms).toMatchObject([{ over: true }]);
  });

  it('goes off by itself when the nodes are back, unless an operator set it', () => {
    const s = fleetOf(6);
    ledgerStep(s, [node('n0', 'silent'), node('n1', 'silent'), node('n2', 'silent')], 3_000);
    expect(brakeOf(s).on).toBe(true);
    ledgerStep(s, [node('n0', 'connected'), node('n1', 'connected')], 3_100);
    expect(brakeOf(s).on).toBe(false);
    ledgerStep(s, [{ kind: 'brake', on: true, by: 'ada' }], 3_200);
    ledgerStep(s, [node('n2', 'connected')], 3_300);
    expect(brakeOf(s)).toMatchObject({ on: true, by: 'operator', reason: 'set by ada' });
  });

  it('does not count nodes that are lost for long', () => {
    const s = fleetOf(4);
    const gone = ['n0', 'n1', 'n2'].map(id => node(id, 'lost', 1_000));
    ledgerStep(s, gone, 2_000 + TIMING.brakeForgets);
    expect(brakeOf(s).on).toBe(false);
  });
});
