// A replica that an earlier build left to continue-as-new goes on under this one.
import { expect, it } from 'vitest';
import { carried } from '../../domain/replica/carried.js';
import type { ReplicaState } from '../../domain/replica/state.js';
import { replicaStep } from '../../domain/replica/step.js';
import { statusOf } from '../../domain/replica/view.js';
import { Bench, proof } from './fixtures.js';
import { GangBench } from './gang-bench.js';

const bench = (): Bench => new Bench();

/** As states were before gangs: a member is what people see of it, one loss, the proofs of a back-off apart. */
function older(state: ReplicaState, more: object): ReplicaState {
  const { failing: _, members, ...rest } = structuredClone(state);
  const shown = members.map(({ node, rank, gpus, pid, ports, state }) => ({
    node,
    rank,
    gpus,
    pid,
    ports,
    state,
  }));
  return { ...rest, members: shown, lost: null, proofs: null, ...more } as unknown as ReplicaState;
}

it('that serves, whose node is lost meanwhile', () => {
  const b = bench().ready();
  const loss = { node: b.state.members[0]!.node, at: b.now, until: b.now + 60_000, reason: 'serving' };
  const state = carried(older(b.state, { lost: loss }));
  expect(replicaStep(state, { type: 'resumed' }, b.now)).toContainEqual(
    expect.objectContaining({ do: 'timer', id: 'node_loss' }),
  );
  expect(statusOf(state, b.now).members).toEqual(statusOf(b.state, b.now).members);
  replicaStep(state, { type: 'cancel' }, b.now);
  expect(state.phase).toBe('draining');
});

it('that waits for its next try: what it holds is released with the proof that it had', () => {
  const b = bench().ready();
  const before = older(b.state, {
    phase: 'backing_off',
    deadline: b.now + 5_000,
    after_stop: { next: 'renew' },
    proofs: [{ node: b.state.members[0]!.node, proof: proof() }],
  });
  const state = carried(before);
  replicaStep(state, { type: 'resumed' }, b.now);
  const effects = replicaStep(state, { type: 'timer', id: 'back_off' }, b.now + 5_000);
  expect(effects).toContainEqual(
    expect.objectContaining({
      msg: expect.objectContaining({
        kind: 'renew',
        release: { fence: b.state.fence, members: [{ node: b.state.members[0]!.node, proof: proof() }] },
      }),
    }),
  );
});

it('and one of this build as it is', () => {
  const { state } = new GangBench().ready();
  expect(carried(structuredClone(state))).toEqual(state);
});
