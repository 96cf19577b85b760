// Case temporal-10: 200 replicas at once on 25 nodes. Claims are signals, taken in batches of one workflow task each: no
// update's limit is in the way, and none is placed twice.
import { expect, it } from 'vitest';
import { TIMING } from '../../contracts/timing.js';
import { emptyLedger, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep } from '../../domain/ledger/step.js';
import { shapeOf } from '../../domain/replica/make.js';
import { readCase } from '../config/case.js';
import { facts, spec } from './fixtures.js';

const { expect: wanted } = readCase('temporal-10-limits-pending');
const REPLICAS = 200;
const NODES = 25;

const claim = (i: number, key = 1): LedgerInput => ({
  kind: 'reserve',
  key: `run-${i}/reserve/${key}`,
  replica: `r-${i}`,
  run_id: `run-${i}`,
  continued_run_id: null,
  first_run_id: `run-${i}`,
  shape: shapeOf(spec()),
  exclude: [],
  prefer: null,
  adopt: null,
});

/** The same numbers for the same seed. */
function* numbers(seed: number): Generator<number> {
  for (let x = seed; ; ) {
    x = (x * 1_103_515_245 + 12_345) % 2 ** 31;
    yield x;
  }
}

function held(s: LedgerState): string[] {
  return Object.values(s.grants).flatMap(g =>
    g.members.flatMap(m => m.slots.map(slot => `${m.node}/${slot}`)),
  );
}

it.each([1, 2, 3])('all are placed and none twice, whatever the batches and repeats (seed %i)', seed => {
  const random = numbers(seed);
  const below = (n: number) => random.next().value! % n;
  const s = emptyLedger('e', 0);
  const messages: LedgerInput[] = Array.from({ length: REPLICAS }, (_, i) => claim(i));
  // Sent again before the answer came, as the outbox does.
  for (let i = 0; i < REPLICAS; i += 3) messages.push(claim(i));
  for (let i = 0; i < NODES; i++) messages.push({ kind: 'node', facts: facts({ node_id: `n${i}`, seq: 1 }) });
  for (let i = messages.length - 1; i > 0; i--) {
    const j = below(i + 1);
    [messages[i], messages[j]] = [messages[j]!, messages[i]!];
  }
  const granted = new Map<string, number>();
  for (let now = 1; messages.length > 0; now++) {
    for (const e of ledgerStep(s, messages.splice(0, 1 + below(40)), now)) {
      if (e.do !== 'reply' || e.reply.kind !== 'granted') continue;
      expect(granted.get(e.replica) ?? e.reply.fence).toBe(e.reply.fence);
      granted.set(e.replica, e.reply.fence);
    }
  }
  expect(granted.size === REPLICAS).toBe(wanted.all_placed);
  expect(s.waiting).toEqual([]);
  const slots = held(s);
  expect(slots).toHaveLength(REPLICAS);
  expect(slots.length - new Set(slots).size).toBe(wanted.double_claims);
});

it('heartbeats are no signals: a thousand nodes tell the workflows of one in ten minutes', () => {
  expect(TIMING.nodeDigestInterval).toBeGreaterThanOrEqual(100 * TIMING.heartbeatInterval);
  expect(wanted.heartbeats).toContain('not stored as signals');
});
