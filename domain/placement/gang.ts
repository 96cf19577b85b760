// A replica over several nodes: one member a node, all on one fabric by name (INV-3), all with the same engine.
import type { Excluded, GrantMember, Shape } from '../../contracts/messages.js';
import { countOf } from '../slots.js';
import type { Picked } from './islands.js';
import { refused } from './refusals.js';
import { byText, type Candidate, listed, memberSize, type NodeRefusal, type Placed } from './types.js';

/** A node that could host a member. */
export interface Fit {
  c: Candidate;
  picked: Picked;
}

interface Choice {
  fabric: string;
  fits: Fit[];
  /** Of the generation before. */
  kept: number;
  leftOver: number;
  lost: number;
}

/** `before`: the nodes of the generation before, in rank order. */
export function placeGang(
  shape: Shape,
  nodes: Candidate[],
  fits: Fit[],
  refusals: NodeRefusal[],
  exclude: Excluded[],
  before: readonly string[],
): Placed {
  const fabrics = onFabrics(shape, fits);
  const choices = fabrics.flatMap(({ fabric, on }) =>
    [...sameEngine(shape, on).values()]
      .filter(same => same.length >= shape.nodes)
      .map(same => choose(shape, fabric, same, before)),
  );
  const best = choices.sort(
    (a, b) =>
      b.kept - a.kept ||
      a.leftOver - b.leftOver ||
      a.lost - b.lost ||
      byText(a.fabric, b.fabric) ||
      byText(idsOf(a.fits), idsOf(b.fits)),
  )[0];
  if (best !== undefined) return granted(shape, best, before);
  return refused(nodes, refusals, exclude, shape.nodes, tooFew(shape, fabrics));
}

const idOf = (f: Fit): string => f.c.facts.node_id;
const idsOf = (fits: Fit[]): string => fits.map(idOf).sort(byText).join(',');
const leftOver = (shape: Shape, f: Fit): number => countOf(f.c.free) - memberSize(shape);

function onFabrics(shape: Shape, fits: Fit[]): { fabric: string; on: Fit[] }[] {
  const { fabric } = shape.placement;
  const names = fabric === null ? [...new Set(fits.flatMap(f => f.c.facts.fabrics))] : [fabric];
  return names.map(name => ({ fabric: name, on: fits.filter(f => f.c.facts.fabrics.includes(name)) }));
}

type Engine = Candidate['facts']['engines'][number];

const engineOf = (shape: Shape, f: Fit): Engine => f.c.facts.engines.find(e => e.name === shape.engine)!;

/** What a node doesn't know of its engine is not the same as what another one knows. */
function sameEngine(shape: Shape, fits: Fit[]): Map<string, Fit[]> {
  const groups = new Map<string, Fit[]>();
  for (const f of fits) {
    const { type, version, launch_mode } = engineOf(shape, f);
    const key = JSON.stringify([type, version ?? null, launch_mode ?? null]);
    groups.set(key, [...(groups.get(key) ?? []), f]);
  }
  return groups;
}

/** The nodes of before first, then those with the least left over: whole nodes and islands stay free for big shapes. */
function choose(shape: Shape, fabric: string, same: Fit[], before: readonly string[]): Choice {
  const known = (f: Fit): number => (before.includes(idOf(f)) ? 0 : 1);
  const fits = [...same]
    .sort(
      (a, b) =>
        known(a) - known(b) ||
        leftOver(shape, a) - leftOver(shape, b) ||
        a.picked.lost - b.picked.lost ||
        byText(idOf(a), idOf(b)),
    )
    .slice(0, shape.nodes);
  return {
    fabric,
    fits,
    kept: fits.filter(f => known(f) === 0).length,
    leftOver: fits.reduce((n, f) => n + leftOver(shape, f), 0),
    lost: fits.reduce((n, f) => n + f.picked.lost, 0),
  };
}

/** A node keeps the rank that it had, since its page cache holds that rank's weights; the others follow by name. */
function inRankOrder(fits: Fit[], before: readonly string[]): Fit[] {
  const ranks: (Fit | undefined)[] = Array.from({ length: fits.length }, (_, rank) =>
    fits.find(f => idOf(f) === before[rank]),
  );
  const others = fits.filter(f => !ranks.includes(f)).sort((a, b) => byText(idOf(a), idOf(b)));
  return ranks.map(f => f ?? others.shift()!);
}

function granted(shape: Shape, { fabric, fits, kept }: Choice, before: readonly string[]): Placed {
  const ranked = inRankOrder(fits, before);
  const members = ranked.map((f, rank): GrantMember => ({ node: idOf(f), rank, slots: f.picked.slots }));
  const where = ranked.map(f => `${idOf(f)} slots ${f.picked.slots.join(',')} of ${countOf(f.c.free)} free`);
  // With the longest of node names a grant's message is still taken (contracts/signals).
  const shown = listed(where, where.join('').length > 1_000 ? 3 : 8);
  const notes = [...new Set(ranked.map(f => f.picked.note))].sort(byText).join('');
  const { type, version, launch_mode } = engineOf(shape, fits[0]!);
  const engine = [type, version, launch_mode].filter(part => part != null).join(' ');
  const old =
    kept === 0 ? '' : `; ${kept === fits.length ? 'the' : `${kept} of the`} nodes of the generation before`;
  return {
    fits: true,
    members,
    fabric,
    why: `fabric ${fabric}: ${shown}${notes}; all have ${engine}${old}`,
  };
}

function tooFew(
  shape: Shape,
  fabrics: { fabric: string; on: Fit[] }[],
): { reason: string; nodes: string[] }[] {
  return fabrics
    .filter(({ on }) => on.length > 0)
    .sort((a, b) => b.on.length - a.on.length || byText(a.fabric, b.fabric))
    .map(({ fabric, on }) => ({
      reason:
        on.length < shape.nodes
          ? `fabric ${fabric} has ${on.length} usable node${on.length === 1 ? '' : 's'}, ${shape.nodes} are needed`
          : `fabric ${fabric}: ${difference(shape, on)}; ${shape.nodes} alike are needed`,
      nodes: on.map(idOf),
    }));
}

const ASPECTS: [string, (e: Engine) => string][] = [
  ['engine types', e => e.type],
  ['engine versions', e => e.version ?? 'unknown'],
  ['launch modes', e => e.launch_mode ?? 'unknown'],
];

function difference(shape: Shape, on: Fit[]): string {
  const said = ASPECTS.map(([what, of]) => {
    const by = new Map<string, string[]>();
    for (const f of on) {
      const value = of(engineOf(shape, f));
      by.set(value, [...(by.get(value) ?? []), idOf(f)]);
    }
    return by.size === 1
      ? null
      : `${what} differ: ${listed([...by].map(([value, ids]) => `${listed(ids)} ${value}`))}`;
  });
  return said.filter(text => text !== null).join('; ');
}
