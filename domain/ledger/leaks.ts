// Holds that stay because their end could not be proven (INV-2), as operators see them and as they are asked about again.
import type { LeftHold } from '../../contracts/status.js';
import { common, maskOf } from '../slots.js';
import type { Grant, LedgerState } from './state.js';

/** On that node; `slots` null: all, else those that have one of them. */
export function leftHolds(state: LedgerState, node: string, slots: number[] | null = null): LeftHold[] {
  return Object.values(state.grants).flatMap(g =>
    g.members
      .filter(m => m.node === node && g.left[node] !== undefined)
      .filter(m => slots === null || common(maskOf(m.slots), maskOf(slots)) !== 0)
      .map(m => holdOf(g, node, m)),
  );
}

const holdOf = (g: Grant, node: string, m: { rank: number; slots: number[] }): LeftHold => ({
  replica: g.replica,
  fence: g.fence,
  rank: m.rank,
  slots: m.slots,
  since: g.leaks?.[node]?.since ?? null,
  why: g.left[node] ?? '',
  gpus: g.leaks?.[node]?.gpus ?? [],
});
