// Why a node can't host a member, and what all those reasons come to.
import type { Excluded, Shape } from '../../contracts/messages.js';
import { nearest } from '../../contracts/nearest.js';
import { countOf } from '../slots.js';
import type { Candidate, NodeRefusal, Placed, Refusal } from './types.js';

/** `now`: exclusions that have passed by then don't count. */
export function refuse(
  shape: Shape,
  size: number,
  c: Candidate,
  exclude: Excluded[],
  all: Candidate[],
  now: number,
): Refusal | null {
  return (
    outOfScope(shape, c) ??
    excluded(c, exclude, now) ??
    engineRefusal(shape, c, all) ??
    fabricRefusal(shape, c) ??
    hardware(shape, size, c) ??
    notNow(size, c)
  );
}

const no = (reason: string): Refusal => ({ reason, kind: 'size' });
const fatal = (reason: string): Refusal => ({ reason, kind: 'fatal' });
const passing = (reason: string): Refusal => ({ reason, kind: 'passing' });

function outOfScope({ placement: p }: Shape, { facts }: Candidate): Refusal | null {
  const scope = (reason: string): Refusal => ({ reason, kind: 'scope' });
  if (p.nodes.length > 0 && !p.nodes.includes(facts.node_id))
    return scope(`not among placement.nodes (${p.nodes.join(', ')})`);
  for (const [k, v] of Object.entries(p.labels)) {
    if (facts.labels[k] !== v)
      return scope(
        `label ${k} is ${facts.labels[k] === undefined ? 'not set' : `"${facts.labels[k]}"`}, the spec wants "${v}"`,
      );
  }
  return null;
}

/** Tried, and refused until the spec changes. */
export const isExcludedForGood = (exclude: Excluded[], node: string): boolean =>
  exclude.some(e => e.node === node && e.until === null);

function excluded({ facts }: Candidate, exclude: Excluded[], now: number): Refusal | null {
  const ex = exclude.find(e => e.node === facts.node_id);
  if (ex === undefined) return null;
  if (ex.until === null) return fatal(ex.reason);
  return ex.until > now ? passing(`left out for a while: ${ex.reason}`) : null;
}

function engineRefusal(shape: Shape, { facts }: Candidate, all: Candidate[]): Refusal | null {
  const engine = facts.engines.find(e => e.name === shape.engine);
  if (engine === undefined) return fatal(engineMissing(shape.engine, facts, all));
  return engine.problem === null ? null : fatal(`engine "${shape.engine}": ${engine.problem}`);
}

function engineMissing(wanted: string, facts: Candidate['facts'], all: Candidate[]): string {
  const known = [...new Set(all.flatMap(c => c.facts.engines.map(e => e.name)))];
  // Another node may have the very name.
  const near = known.includes(wanted) ? null : nearest(wanted, known);
  const has =
    facts.engines.length === 0 ? 'it has none' : `it has ${facts.engines.map(e => e.name).join(', ')}`;
  return `no engine "${wanted}" in its agent.yaml (${has})${near === null ? '' : `, did you mean "${near}"?`}`;
}

/** By name, never by address (INV-3). */
function fabricRefusal({ nodes, placement: { fabric } }: Shape, { facts }: Candidate): Refusal | null {
  const has = facts.fabrics.length > 0 ? ` (it is on ${facts.fabrics.join(', ')})` : '';
  if (fabric !== null && !facts.fabrics.includes(fabric))
    return degraded(facts, fabric) ?? no(`not on fabric "${fabric}"${has}`);
  if (nodes === 1) return null;
  if (facts.fabrics.length === 0)
    return (
      degraded(facts, null) ??
      no('on no fabric that is usable, and the members of a multi-node replica share one')
    );
  if (facts.mgmt_addr !== true)
    return no('mgmt_addr is not set in its agent.yaml, and the members of a multi-node replica meet at it');
  return null;
}

/** Fabrics that its agent.yaml has and that aren't usable: a port may come back. `wanted` null: any of them. */
function degraded({ conditions }: Candidate['facts'], wanted: string | null): Refusal | null {
  const said = conditions.flatMap(({ code, message }) => {
    const [, name, problems] = /^fabric (.+?): (.*)$/s.exec(message) ?? [];
    const meant = code === 'fabric_degraded' && name !== undefined && (wanted ?? name) === name;
    const what = problems === undefined || problems.length <= 300 ? problems : `${problems.slice(0, 299)}…`;
    return meant ? [`on fabric "${name}", which is not usable: ${what}`] : [];
  });
  return said.length === 0 ? null : passing(said.slice(0, 2).join(', '));
}

function hardware({ placement: p }: Shape, size: number, { facts }: Candidate): Refusal | null {
  const { gpu_model: model, memory_mib: memory, slots } = facts.profile;
  if (p.gpu_model !== null && !(model ?? '').toLowerCase().includes(p.gpu_model.toLowerCase()))
    return no(`its GPUs are ${model ?? 'of unknown model'}, the spec wants "${p.gpu_model}"`);
  if (p.min_gpu_memory_gib !== null && (memory === null || memory < p.min_gpu_memory_gib * 1024)) {
    const has = memory === null ? 'unknown memory' : `${Math.floor(memory / 1024)} GiB`;
    return no(`its GPUs have ${has}, the spec wants ${p.min_gpu_memory_gib} GiB`);
  }
  return slots < size ? no(`needs ${size} GPUs, the node has ${slots}`) : null;
}

function notNow(size: number, c: Candidate): Refusal | null {
  const { facts } = c;
  if (c.blocked) return passing(c.blocked);
  if (facts.state !== 'connected') return passing(`is ${facts.state}: ${facts.reason}`);
  if (c.cordoned) return passing('is cordoned');
  if (c.draining) return passing('is draining');
  if (countOf(c.free) >= size) return null;
  const sick = facts.profile.slots - countOf(facts.usable);
  return passing(
    `needs ${size} GPUs, ${countOf(c.free)} of ${facts.profile.slots} are free${sick === 0 ? '' : `, ${sick} unusable`}`,
  );
}

/**
 * `first`: what is to be said before the nodes' own reasons.
 *
 * Hopeless, so that its replica fails instead of waiting: every node that the spec allows is refused for good. Or so many
 * of them were tried and refused that fewer than `needed` are left, where there would be enough without that. What
 * today's fleet is only too small for isn't hopeless.
 */
export function refused(
  nodes: Candidate[],
  refusals: NodeRefusal[],
  exclude: Excluded[],
  needed: number,
  first: { reason: string; nodes: string[] }[] = [],
): Placed {
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
  const list = [...groups]
    .map(([reason, at]) => ({ reason, nodes: at }))
    .sort((a, b) => b.nodes.length - a.nodes.length);
  const shown = list.map(g => `${g.nodes.length > 1 ? `${g.nodes.length} nodes` : g.nodes[0]}: ${g.reason}`);
  const allowed = nodes.length - refusals.filter(r => r.kind === 'scope').length;
  const lost = refusals.filter(r => r.kind === 'fatal');
  const left = allowed - lost.length;
  const tried = lost.filter(r => isExcludedForGood(exclude, r.node)).length;
  // A node that fits, of a gang that is too small for it, or that is only busy may yet take it.
  const allTried = tried > 0 && refusals.length === nodes.length && refusals.every(r => r.kind !== 'passing');
  return {
    fits: false,
    reason: [...first.slice(0, 2).map(f => f.reason), ...shown.slice(0, 4)].join('; '),
    hopeless: (allowed > 0 && left === 0) || (left < needed && left + tried >= needed),
    refusals: [...first, ...list],
    ...(allTried ? { refused: true as const } : {}),
  };
}
