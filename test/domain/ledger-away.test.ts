// A replica that asks anew (reset, started again) while the engine of its other run is on a node that isn't heard: what
// may serve is not replaced before its node is lost (INV-5).
import { describe, expect, it } from 'vitest';
import type { NodeFacts, ReserveMsg } from '../../contracts/messages.js';
import { emptyLedger, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep } from '../../domain/ledger/step.js';
import { shapeOf } from '../../domain/replica/make.js';
import { facts, spec } from './fixtures.js';

const T = 10_000;
let seq = 100;
const node = (node_id: string, over: Partial<NodeFacts> = {}): LedgerInput => ({
  kind: 'node',
  facts: facts({ node_id, seq: ++seq, ...over }),
});

const reserve = (run: string, over: Partial<ReserveMsg> = {}): LedgerInput => ({
  kind: 'reserve',
  key: `${run}/reserve/1`,
  replica: 'a',
  run_id: run,
  continued_run_id: null,
  first_run_id: run,
  shape: shapeOf(spec()),
  exclude: [],
  prefer: null,
  adopt: null,
  ...over,
});

const ready: LedgerInput = {
  kind: 'endpoint',
  key: 'first/endpoint/2',
  replica: 'a',
  run_id: 'first',
  fence: T,
  endpoint: {
    model: 'm',
    aliases: [],
    replica: 'a',
    fence: T,
    node: 'n1',
    url: 'http://10.0.0.1:20000',
    key_id: null,
    auth: 'none',
    state: 'ready',
    revision: null,
  },
  answer: false,
};

/** Two nodes; `a` serves on n1 by its first run, and n1 is what `state` says by now. */
function away(state: NodeFacts['state'], routed = true): LedgerState {
  const s = emptyLedger('epoch', 0);
  ledgerStep(s, [node('n1')], T);
  ledgerStep(s, [reserve('first')], T);
  if (routed) ledgerStep(s, [ready], T);
  ledgerStep(s, [node('n2'), node('n1', { state, since: T + 1 })], T + 1);
  return s;
}

const fences = (s: LedgerState): number[] => Object.values(s.grants).map(g => g.fence);

describe('a replica that asks anew while its engine is on a node that is not heard', () => {
  for (const state of ['silent', 'unsupervised', 'incompatible'] as const) {
    it(`waits while the node is ${state}, and is told why`, () => {
      const s = away(state);
      const effects = ledgerStep(s, [reserve('second')], T + 2);
      expect(effects).toMatchObject([{ reply: { kind: 'waiting', hopeless: false } }]);
      expect(JSON.stringify(effects)).toContain(`n1, which is ${state}`);
      expect(fences(s)).toEqual([T]);
    });
  }

  it('does not wait for one that served nobody', () => {
    const s = away('silent', false);
    const effects = ledgerStep(s, [reserve('second')], T + 2);
    expect(effects).toMatchObject([{ reply: { kind: 'granted', members: [{ node: 'n2' }] } }]);
  });

  it('is offered the engine when the node is back', () => {
    const s = away('unsupervised');
    ledgerStep(s, [reserve('second')], T + 2);
    expect(ledgerStep(s, [node('n1')], T + 3)).toMatchObject([{ reply: { kind: 'stale', fence: T } }]);
    expect(fences(s)).toEqual([T]);
  });

  it('gets other GPUs once the node is lost, unless the brake is on', () => {
    const s = away('silent');
    ledgerStep(s, [reserve('second')], T + 2);
    ledgerStep(s, [{ kind: 'brake', on: true, by: 'test' }, node('n1', { state: 'lost' })], T + 3);
    expect(fences(s)).toEqual([T]);
    const effects = ledgerStep(s, [{ kind: 'brake', on: false, by: 'test' }], T + 4);
    expect(effects).toContainEqual(
      expect.objectContaining({ reply: expect.objectContaining({ kind: 'granted' }) }),
    );
    expect(fences(s)).toEqual([T, T + 4]);
  });

  const never = { proof: 'never_started' as const, at: '2026-01-01T00:00:00Z', leaked: [] };

  it('keeps what its other run was granted, whatever it says of its own orders (INV-1)', () => {
    const s = away('unsupervised');
    // Reset, it was told the grant of its other run once more, and its own order for it reached nobody.
    const { kind: _, ...rest } = reserve('second', { first_run_id: 'first' }) as ReserveMsg;
    const release = { fence: T, members: [{ node: 'n1', proof: never }] };
    const effects = ledgerStep(s, [{ ...rest, kind: 'renew', release }], T + 2);
    expect(effects).toMatchObject([{ reply: { kind: 'waiting' } }]);
    expect(ledgerStep(s, [node('n1')], T + 3)).toMatchObject([{ reply: { kind: 'stale', fence: T } }]);
  });

  it('keeps what was routed though it is given back as a grant that came too late (INV-1)', () => {
    const s = away('connected');
    const members = [{ node: 'n1', proof: never }];
    ledgerStep(
      s,
      [{ kind: 'release', key: 'first/release/9', replica: 'a', fence: T, withdraw: null, members }],
      T + 2,
    );
    expect(fences(s)).toEqual([T]);
    expect(Object.values(s.endpoints)).toMatchObject([{ replica: 'a', fence: T }]);
  });
});

it('a run that was reset gives back nothing that its earlier course was granted, by its word that nothing was started', () => {
  const s = away('connected', false);
  const release = (run_id: string): LedgerInput => ({
    kind: 'release',
    key: `${run_id}/release/9`,
    replica: 'a',
    run_id,
    continued_run_id: null,
    first_run_id: 'first',
    fence: T,
    withdraw: null,
    members: [{ node: 'n1', proof: { proof: 'never_started', at: '', leaked: [] } }],
  });
  ledgerStep(s, [release('reset')], T + 2);
  expect(Object.keys(s.grants)).toEqual([String(T)]);
  ledgerStep(s, [release('first')], T + 3);
  expect(Object.keys(s.grants)).toEqual([]);
});
