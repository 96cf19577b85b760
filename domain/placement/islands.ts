// Which slots of a node a member gets: each tensor-parallel group within one NVLink island where one is big enough
// (INV-4), and so that what stays free is as whole as it can be.
import type { Shape } from '../../contracts/messages.js';
import { common, countOf, hasSlot, maskOf, slotsOf, union, without } from '../slots.js';
import { type Candidate, memberSize, type Refusal } from './types.js';

export interface Picked {
  /** In the order of the engine's local ranks: each group's slots lie side by side. */
  slots: number[];
  note: string;
  /** By so much the widest free island of the node gets smaller. */
  lost: number;
}

/** Looks of one search: a node of 16 GPUs takes some hundreds, and no hardware may make a workflow task stand still. */
const SEARCH_STEPS = 20_000;

/**
 * GPUs of a member that talk to each other all the time. A tensor-parallel group that is larger than the member, or that
 * its end cuts, spans members: then its whole share is one.
 */
export function groupSize(shape: Shape): number {
  const size = memberSize(shape);
  return size % shape.tensor_parallel === 0 ? shape.tensor_parallel : size;
}

export function pickSlots(shape: Shape, c: Candidate): Picked | Refusal {
  const size = memberSize(shape);
  const group = groupSize(shape);
  const { islands } = c.facts.profile;
  if (group === 1) return picked(c, singles(islands, c.free, size), '');
  const count = size / group;
  const groups = packGroups(islands, c.free, group, count);
  if (groups !== null) {
    const slots = groups.map(slotsOf).sort((a, b) => a[0]! - b[0]!);
    const what = group < shape.tensor_parallel ? "member's share" : 'tensor-parallel group';
    return picked(c, slots.flat(), `; one NVLink island a ${what}`);
  }
  if (shape.placement.allow_pcie) {
    const note = '; crosses PCIe: placement.allow_pcie is set and no NVLink island is big enough';
    return picked(c, slotsOf(c.free).slice(0, size), note);
  }
  return noIsland(shape, c, group, count);
}

function picked(c: Candidate, slots: number[], note: string): Picked {
  const { islands } = c.facts.profile;
  const lost = widest(islands, c.free) - widest(islands, without(c.free, maskOf(slots)));
  return { slots, note, lost };
}

const widest = (islands: number[], free: number): number =>
  Math.max(0, ...islands.map(mask => countOf(common(mask, free))));

/** GPUs of which each is a group of its own: from the smallest rests of islands, so that the others stay whole. */
function singles(islands: number[], free: number, size: number): number[] {
  let left = free;
  const slots: number[] = [];
  while (slots.length < size) {
    let best = { slot: -1, width: Number.POSITIVE_INFINITY };
    for (const slot of slotsOf(left)) {
      const own = islands.filter(mask => hasSlot(mask, slot));
      const width = widest(own, left);
      if (width < best.width) best = { slot, width };
    }
    slots.push(best.slot);
    left = without(left, 2 ** best.slot);
  }
  return slots.sort((a, b) => a - b);
}

/** `count` disjoint groups, each within an island; null: there are none. */
function packGroups(islands: number[], free: number, group: number, count: number): number[] | null {
  const fits = fitGroups(islands, free, group, count);
  if (fits !== null || countOf(free) < group * count) return fits;
  // Islands that overlap (a cube mesh): what one group takes of them decides what is left for the next.
  const there = islands.map(mask => common(mask, free)).filter(mask => countOf(mask) >= group);
  const covered = there.reduce(union, 0);
  const overlap = there.reduce((n, mask) => n + countOf(mask), 0) > countOf(covered);
  return overlap ? new Search(there, group).find(covered, count) : null;
}

/** Best fit: each group goes to the island with the least left over. Exact where islands are apart. */
function fitGroups(islands: number[], free: number, group: number, count: number): number[] | null {
  let left = free;
  const groups: number[] = [];
  while (groups.length < count) {
    const island = islands
      .map(mask => common(mask, left))
      .filter(mask => countOf(mask) >= group)
      .sort((a, b) => countOf(a) - countOf(b))[0];
    if (island === undefined) return null;
    const taken = maskOf(slotsOf(island).slice(0, group));
    groups.push(taken);
    left = without(left, taken);
  }
  return groups;
}

/** Goes through all ways; the lowest slot is either of a group or of none. */
class Search {
  private steps = 0;
  private readonly dead = new Set<string>();

  constructor(
    private readonly islands: number[],
    private readonly group: number,
  ) {}

  find(left: number, count: number): number[] | null {
    if (count === 0) return [];
    const state = `${left}/${count}`;
    if (countOf(left) < count * this.group || this.dead.has(state) || ++this.steps > SEARCH_STEPS)
      return null;
    const lowest = slotsOf(left)[0]!;
    for (const taken of this.groupsWith(lowest, left)) {
      const rest = this.find(without(left, taken), count - 1);
      if (rest !== null) return [taken, ...rest];
    }
    const without_it = this.find(without(left, 2 ** lowest), count);
    if (without_it === null) this.dead.add(state);
    return without_it;
  }

  private *groupsWith(slot: number, left: number): Generator<number> {
    for (const island of this.islands) {
      if (!hasSlot(island, slot)) continue;
      const others = slotsOf(without(common(island, left), 2 ** slot));
      for (const rest of combinations(others, this.group - 1)) yield rest + 2 ** slot;
    }
  }
}

/** Each as a mask. */
function* combinations(of: number[], n: number, from = 0): Generator<number> {
  if (n === 0) {
    yield 0;
    return;
  }
  for (let i = from; i <= of.length - n; i++)
    for (const rest of combinations(of, n - 1, i + 1)) yield rest + 2 ** of[i]!;
}

function noIsland(shape: Shape, c: Candidate, group: number, count: number): Refusal {
  const { islands } = c.facts.profile;
  // As if nothing were held on it.
  const ever = packGroups(islands, islands.reduce(union, 0), group, count) !== null;
  const what =
    count === 1
      ? `an NVLink island of ${group} GPUs`
      : `${count} groups of ${group} GPUs, each within one NVLink island`;
  const share = group < shape.tensor_parallel ? ` over ${shape.nodes} nodes` : '';
  return {
    reason: `tensor_parallel ${shape.tensor_parallel}${share} needs ${what}, the largest ${ever ? 'free ' : ''}one has ${widest(islands, c.free)}; placement.allow_pcie: true lets it cross PCIe`,
    kind: ever ? 'passing' : 'size',
  };
}
