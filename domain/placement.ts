// Placement: which node and slots a shape gets, and why not the others. Pure: the ledger grants with it, `apply` and
// `plan` ask it on a snapshot. INV-3 (fabric names), INV-4 (NVLink islands).
import type { Excluded, GrantMember, NodeFacts, Shape } from '../contracts/messages.js';
import { nearest } from '../contracts/nearest.js';
import { common, countOf, slotsOf, without } from './slots.js';

/** A node with what is free on it: usable, not held, not foreign. */
export interface Candidate {
  facts: Omit<NodeFacts, 'running'>;
  free: number;
  /** Why nothing is granted on it whatever is free, or null. */
  blocked?: string | null;
  cordoned: boolean;
  draining: boolean;
}

export type Placed =
  | { fits: true; members: GrantMember[]; why: string }
  /** `hopeless`: every node that the spec allows was tried and refused, or lacks the engine. `reason` is one sentence. */
  | { fits: false; reason: string; hopeless: boolean; refusals: { reason: string; nodes: string[] }[] };

/**
 * - scope: the spec itself leaves the node out
 * - fatal: tried and refused, or the engine is missing: no use in waiting for this node
 * - size: it can't host this shape as it is
 * - passing: occupied, silent, cordoned: goes away by itself
 */
interface Refusal {
  reason: string;
  kind: 'scope' | 'fatal' | 'size' | 'passing';
}

/** `now`: exclusions that have passed by then don't count. */
export function place(
  shape: Shape,
  nodes: Candidate[],
  exclude: Excluded[],
  prefer: string | null,
  now: number,
): Placed {
  const size = (shape.tensor_parallel * shape.pipeline_parallel) / shape.nodes;
  const refusals: (Refusal & { node: string })[] = [];
  let best: { c: Candidate; slots: number[]; islandNote: string; score: number[] } | null = null;
  for (const c of [...nodes].sort((a, b) => (a.facts.node_id < b.facts.node_id ? -1 : 1))) {
    const r = refuse(shape, size, c, exclude, nodes, now);
    if (r !== null) {
      refusals.push({ ...r, node: c.facts.node_id });
      continue;
    }
    const picked = pickSlots(shape, size, c);
    if ('reason' in picked) {
      refusals.push({ ...picked, node: c.facts.node_id });
      continue;
    }
    // The node of before first, then the one with the least left over: whole nodes stay free for big shapes.
    const score = [c.facts.node_id === prefer ? 0 : 1, countOf(c.free) - size];
    if (
      best === null ||
      score[0]! < best.score[0]! ||
      (score[0] === best.score[0] && score[1]! < best.score[1]!)
    ) {
      best = { c, ...picked, score };
    }
  }
  if (best !== null) {
    const id = best.c.facts.node_id;
    return {
      fits: true,
      members: [{ node: id, rank: 0, slots: best.slots }],
      why: `${id}: slots ${best.slots.join(',')} of ${countOf(best.c.free)} free${best.islandNote}${id === prefer ? '; the node of the generation before' : ''}`,
    };
  }
  return refused(nodes, refusals);
}

function refused(nodes: Candidate[], refusals: (Refusal & { node: string })[]): Placed {
  if (nodes.length === 0)
    return {
      fits: false,
      reason: 'no node has connected yet: start an agent',
      hopeless: false,
      refusals: [],
    };
  const groups = new Map<string, string[]>();
  for (const r of refusals) {
    const at = groups.get(r.reason);
    if (at === undefined) groups.set(r.reason, [r.node]);
    else at.push(r.node);
  }
  const inScope = refusals.filter(r => r.kind !== 'scope');
  const list = [...groups]
    .map(([reason, at]) => ({ reason, nodes: at }))
    .sort((a, b) => b.nodes.length - a.nodes.length);
  const shown = list
    .slice(0, 4)
    .map(g => `${g.nodes.length > 1 ? `${g.nodes.length} nodes` : g.nodes[0]}: ${g.reason}`);
  return {
    fits: false,
    reason: shown.join('; '),
    hopeless: inScope.length > 0 && inScope.every(r => r.kind === 'fatal'),
    refusals: list,
  };
}

function refuse(
  shape: Shape,
  size: number,
  c: Candidate,
  exclude: Excluded[],
  all: Candidate[],
  now: number,
): Refusal | null {
  const { facts } = c;
  const p = shape.placement;
  const scope = (reason: string): Refusal => ({ reason, kind: 'scope' });
  const fatal = (reason: string): Refusal => ({ reason, kind: 'fatal' });
  const no = (reason: string): Refusal => ({ reason, kind: 'size' });
  const notNow = (reason: string): Refusal => ({ reason, kind: 'passing' });
  if (p.nodes.length > 0 && !p.nodes.includes(facts.node_id))
    return scope(`not among placement.nodes (${p.nodes.join(', ')})`);
  for (const [k, v] of Object.entries(p.labels)) {
    if (facts.labels[k] !== v)
      return scope(
        `label ${k} is ${facts.labels[k] === undefined ? 'not set' : `"${facts.labels[k]}"`}, the spec wants "${v}"`,
      );
  }
  const ex = exclude.find(e => e.node === facts.node_id);
  if (ex !== undefined && ex.until === null) return fatal(ex.reason);
  if (ex?.until != null && ex.until > now) {
    return notNow(`left out for a while: ${ex.reason}`);
  }
  const engine = facts.engines.find(e => e.name === shape.engine);
  if (engine === undefined) return fatal(engineMissing(shape.engine, facts, all));
  if (engine.problem !== null) return fatal(`engine "${shape.engine}": ${engine.problem}`);
  if (p.fabric !== null && !facts.fabrics.includes(p.fabric)) {
    return no(
      `not on fabric "${p.fabric}"${facts.fabrics.length > 0 ? ` (it is on ${facts.fabrics.join(', ')})` : ''}`,
    );
  }
  const model = facts.profile.gpu_model;
  if (p.gpu_model !== null && !(model ?? '').toLowerCase().includes(p.gpu_model.toLowerCase())) {
    return no(`its GPUs are ${model ?? 'of unknown model'}, the spec wants "${p.gpu_model}"`);
  }
  const memory = facts.profile.memory_mib;
  if (p.min_gpu_memory_gib !== null && (memory === null || memory < p.min_gpu_memory_gib * 1024)) {
    return no(
      `its GPUs have ${memory === null ? 'unknown memory' : `${Math.floor(memory / 1024)} GiB`}, the spec wants ${p.min_gpu_memory_gib} GiB`,
    );
  }
  if (facts.profile.slots < size) return no(`needs ${size} GPUs, the node has ${facts.profile.slots}`);
  if (c.blocked) return notNow(c.blocked);
  if (facts.state !== 'connected') return notNow(`is ${facts.state}: ${facts.reason}`);
  if (c.cordoned) return notNow('is cordoned');
  if (c.draining) return notNow('is draining');
  if (countOf(c.free) < size)
    return notNow(`needs ${size} GPUs, ${countOf(c.free)} of ${facts.profile.slots} are free`);
  return null;
}

function engineMissing(wanted: string, facts: Candidate['facts'], all: Candidate[]): string {
  const known = [...new Set(all.flatMap(c => c.facts.engines.map(e => e.name)))];
  const near = nearest(wanted, known);
  const has =
    facts.engines.length === 0 ? 'it has none' : `it has ${facts.engines.map(e => e.name).join(', ')}`;
  return `no engine "${wanted}" in its agent.yaml (${has})${near === null ? '' : `, did you mean "${near}"?`}`;
}

/** Slots for one member: each tensor-parallel group within one island where one is big enough (INV-4). */
function pickSlots(
  shape: Shape,
  size: number,
  c: Candidate,
): { slots: number[]; islandNote: string } | Refusal {
  const group = Math.min(shape.tensor_parallel, size);
  if (group === 1) return { slots: slotsOf(c.free).slice(0, size), islandNote: '' };
  let left = c.free;
  const slots: number[] = [];
  for (let i = 0; i < size / group; i++) {
    // The island with the least left over that still takes the group: big islands stay whole.
    const island = c.facts.profile.islands
      .map(mask => common(mask, left))
      .filter(mask => countOf(mask) >= group)
      .sort((a, b) => countOf(a) - countOf(b))[0];
    if (island === undefined) return acrossPcie(shape, size, c);
    const taken = slotsOf(island).slice(0, group);
    slots.push(...taken);
    left = without(
      left,
      taken.reduce((m, s) => m + 2 ** s, 0),
    );
  }
  return { slots: slots.sort((a, b) => a - b), islandNote: '; one NVLink island a tensor-parallel group' };
}

function acrossPcie(
  shape: Shape,
  size: number,
  c: Candidate,
): { slots: number[]; islandNote: string } | Refusal {
  if (shape.placement.allow_pcie) {
    return {
      slots: slotsOf(c.free).slice(0, size),
      islandNote: '; crosses PCIe: placement.allow_pcie is set and no NVLink island is big enough',
    };
  }
  const widest = Math.max(0, ...c.facts.profile.islands.map(m => countOf(common(m, c.free))));
  const everWide = c.facts.profile.islands.some(m => countOf(m) >= shape.tensor_parallel);
  return {
    reason: `tensor_parallel ${shape.tensor_parallel} needs an NVLink island of ${shape.tensor_parallel} GPUs, the largest ${everWide ? 'free ' : ''}one has ${widest}; placement.allow_pcie: true lets it cross PCIe`,
    kind: everWide ? 'passing' : 'size',
  };
}
