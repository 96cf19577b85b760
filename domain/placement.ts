// Placement: which nodes and slots a shape gets, and why not the others. Pure: the ledger grants with it, `apply` and
// `plan` ask it on a snapshot. INV-3 (fabric names), INV-4 (NVLink islands).
import type { Excluded, Shape } from '../contracts/messages.js';
import { type Fit, placeGang } from './placement/gang.js';
import { pickSlots } from './placement/islands.js';
import { refuse, refused } from './placement/refusals.js';
import { byText, type Candidate, memberSize, type NodeRefusal, type Placed } from './placement/types.js';
import { countOf } from './slots.js';

export type { Candidate, Placed } from './placement/types.js';

/**
 * `now`: exclusions that have passed by then don't count. `before`: the node of the generation before, or those of all
 * its members in rank order.
 */
export function place(
  shape: Shape,
  nodes: Candidate[],
  exclude: Excluded[],
  before: string | readonly string[] | null,
  now: number,
): Placed {
  const size = memberSize(shape);
  const refusals: NodeRefusal[] = [];
  const fits: Fit[] = [];
  for (const c of [...nodes].sort((a, b) => byText(a.facts.node_id, b.facts.node_id))) {
    const picked = refuse(shape, size, c, exclude, nodes, now) ?? pickSlots(shape, c);
    if ('reason' in picked) refusals.push({ ...picked, node: c.facts.node_id });
    else fits.push({ c, picked });
  }
  const known = typeof before === 'string' ? [before] : (before ?? []);
  if (shape.nodes > 1) return placeGang(shape, nodes, fits, refusals, exclude, known);
  const best = bestOf(fits, known);
  if (best === null) return refused(nodes, refusals, exclude, 1);
  const { c, picked } = best;
  const id = c.facts.node_id;
  return {
    fits: true,
    members: [{ node: id, rank: 0, slots: picked.slots }],
    fabric: null,
    why: `${id}: slots ${picked.slots.join(',')} of ${countOf(c.free)} free${picked.note}${known.includes(id) ? '; the node of the generation before' : ''}`,
  };
}

/** The node of before first, then the one with the least left over: whole nodes and islands stay free for big shapes. */
function bestOf(fits: Fit[], before: readonly string[]): Fit | null {
  const score = ({ c, picked }: Fit) => [
    before.includes(c.facts.node_id) ? 0 : 1,
    countOf(c.free) - picked.slots.length,
    picked.lost,
  ];
  let best: { fit: Fit; score: number[] } | null = null;
  for (const fit of fits) {
    const own = score(fit);
    const by = best === null ? -1 : (own.map((n, i) => n - best!.score[i]!).find(d => d !== 0) ?? 0);
    if (by < 0) best = { fit, score: own };
  }
  return best?.fit ?? null;
}
