// How far a replica has loaded, by what is known of its members: the model is there when its last part is.
import type { LoadProgress } from '../../contracts/activities.js';
import type { ReplicaStatus } from '../../contracts/status.js';
import { isGang, named } from './core.js';

/** What is known of one member. */
export interface MemberLoad extends Omit<LoadProgress, 'at'> {
  node: string;
  rank: number;
}

/** The least far of the known that tell a figure; where nobody does, `otherwise`. Of a gang, it is named. */
export function slowest(
  of: { members: readonly unknown[] },
  known: MemberLoad[],
  otherwise: MemberLoad,
): Omit<LoadProgress, 'at'> {
  const told = known.filter(m => m.percent !== null);
  const m = told.reduce((a, b) => (b.percent! < a.percent! ? b : a), told[0] ?? otherwise);
  const { node: _, rank: __, ...load } = m;
  return isGang(of) ? { ...load, stage: `${named(of, m)}: ${load.stage}` } : load;
}

export const shown = ({ stage, percent, eta_ms, at }: LoadProgress): ReplicaStatus['progress'] => ({
  stage,
  percent,
  eta_s: eta_ms === undefined ? null : Math.round(eta_ms / 1000),
  at,
});
