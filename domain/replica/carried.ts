// A state that a run of an earlier build hands over: what it doesn't have is filled in. The workflow would throw on it
// otherwise, task after task, and its engine serve on with nobody to look after it.
import type { StopProof } from '../../contracts/engine.js';
import { member, membersOf } from './core.js';
import type { Loss, Member, ReplicaState } from './state.js';

/** Before members had their own proofs and losses: one loss, and the proofs of a back-off apart. */
type Older = Omit<ReplicaState, 'lost' | 'members' | 'failing'> & {
  lost?: Loss[] | { node: string; at: number; until: number | null; reason: string } | null;
  members: (Partial<Member> & Pick<Member, 'node' | 'rank'>)[];
  failing?: ReplicaState['failing'];
  proofs?: { node: string; proof: StopProof }[] | null;
};

export function carried(given: ReplicaState): ReplicaState {
  const { proofs, lost, members, ...rest } = given as unknown as Older;
  const state: ReplicaState = {
    ...rest,
    failing: rest.failing ?? null,
    lost: Array.isArray(lost)
      ? lost
      : lost == null
        ? []
        : [{ node: lost.node, at: lost.at, until: lost.until, said: lost.reason, before: lost.reason }],
    members: membersOf(rest.grant?.members ?? []),
  };
  for (const known of members) {
    const m = member(state, known.rank);
    if (m === undefined) state.members.push({ ...blank(known), ...known });
    else Object.assign(m, known);
  }
  for (const { node, proof } of proofs ?? [])
    for (const m of state.members) if (m.node === node) m.proof ??= proof;
  return state;
}

const blank = ({ node, rank }: Pick<Member, 'node' | 'rank'>): Member =>
  membersOf([{ node, rank, slots: [] }])[0]!;
