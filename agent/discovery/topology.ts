// `nvidia-smi topo -m` → NVLink islands: the maximal sets of GPUs in which every pair is linked (INV-4). Sets, not
// connected components: on a cube mesh a component holds pairs that only meet across PCIe.
import type { Condition } from '../../contracts/inventory.js';
import { plain } from './cells.js';

export interface Links {
  /** Indices of the GPUs that have a row. */
  gpus: number[];
  /** Those that both ends show as linked by NVLink. */
  pairs: [number, number][];
  /** What keeps the matrix from being believed; null: nothing. */
  fault: string | null;
  /** Pairs of which one end shows NVLink and the other doesn't: a link that is broken. */
  disputed: [number, number][];
}

/**
 * The matrix. Columns are split at tabs (their names hold spaces), or at spaces where someone has replaced the tabs:
 * GPUs come first, so that neither affinities nor NICs shift them. Links are `NV` and their number; every other word
 * (NODE, SYS, SOC, QPI, one of a driver to come) is no link.
 */
export function nvlinkPairs(text: string): Links {
  const lines = plain(text).split('\n');
  const at = lines.findIndex(line => /^\s*GPU\d+(\s|$)/.test(line) && !/^\s*GPU\d+\s+.*\bX\b/.test(line));
  const columns = at === -1 ? [] : headerOf(lines[at]!);
  const linked = new Map<number, Set<number>>();
  let fault = at === -1 ? 'it shows no GPUs' : null;
  for (const line of lines.slice(at + 1)) {
    const row = rowOf(line, lines[at]?.includes('\t') ?? false);
    if (row === null || linked.has(row.gpu)) continue;
    const own = columns.indexOf(row.gpu);
    // The diagonal shows whether the cells are where the header says.
    if (row.cells[own] !== 'X') fault ??= `the row of GPU ${row.gpu} does not fit its columns`;
    const peers = columns.flatMap((gpu, i) =>
      gpu !== null && /^NV[1-9]\d*$/.test(row.cells[i] ?? '') ? [gpu] : [],
    );
    linked.set(row.gpu, new Set(peers));
  }
  const gpus = [...linked.keys()];
  const shown = columns.filter(gpu => gpu !== null);
  if (shown.length !== gpus.length || shown.some(gpu => !linked.has(gpu)))
    fault ??= `it has ${shown.length} columns of GPUs and ${gpus.length} rows`;
  return { gpus, fault, ...pairsOf(gpus, linked) };
}

function headerOf(line: string): (number | null)[] {
  const names = line.includes('\t')
    ? line.split('\t').slice(line.startsWith('\t') ? 1 : 0)
    : line.trim().split(/\s+/);
  return names.map(name => {
    const index = /^GPU(\d{1,4})$/.exec(name.trim())?.[1];
    return index === undefined ? null : Number(index);
  });
}

function rowOf(line: string, tabs: boolean): { gpu: number; cells: string[] } | null {
  const cells = (tabs ? line.split('\t') : line.trim().split(/\s+/)).map(cell => cell.trim());
  const gpu = /^GPU(\d{1,4})$/.exec(cells[0] ?? '')?.[1];
  return gpu === undefined ? null : { gpu: Number(gpu), cells: cells.slice(1) };
}

function pairsOf(gpus: number[], linked: Map<number, Set<number>>): Pick<Links, 'pairs' | 'disputed'> {
  const pairs: [number, number][] = [];
  const disputed: [number, number][] = [];
  for (const a of gpus)
    for (const b of gpus) {
      if (a >= b) continue;
      const [one, other] = [linked.get(a)!.has(b), linked.get(b)!.has(a)];
      if (one && other) pairs.push([a, b]);
      else if (one || other) disputed.push([a, b]);
    }
  return { pairs, disputed };
}

export interface Islands {
  islands: string[][];
  conditions: Condition[];
  /** The matrix and the list are of different GPUs, as when one came or went between the two. */
  doubtful: boolean;
}

/** The islands of the GPUs that are listed. A matrix of other GPUs is of no use: its columns may be numbered anew. */
export function islandsOf(text: string, listed: readonly { index: number; uuid: string }[]): Islands {
  const { gpus, pairs, fault, disputed } = nvlinkPairs(text);
  const uuids = new Map(listed.map(gpu => [gpu.index, gpu.uuid]));
  const same = gpus.length === listed.length && gpus.every(index => uuids.has(index));
  if (fault !== null || !same) {
    const why = gpus.length > 0 && !same ? difference(gpus, listed) : fault;
    const message = `nvidia-smi topo -m can't be used (${why}): NVLink is not counted on, tensor parallel engines need allow_pcie`;
    return { islands: [], conditions: [{ code: 'gpu_topology_unknown', message }], doubtful: true };
  }
  const conditions = disputed.map(([a, b]) => ({
    code: 'gpu_nvlink_broken',
    message: `only one of GPU ${a} and GPU ${b} shows an NVLink between them: it is not counted on (nvidia-smi nvlink -s)`,
  }));
  const islands = maximalCliques(gpus, pairs).map(clique => clique.map(index => uuids.get(index)!));
  return { islands, conditions, doubtful: false };
}

function difference(shown: number[], listed: readonly { index: number }[]): string {
  if (shown.length !== listed.length) return `it shows ${shown.length} GPUs, the list has ${listed.length}`;
  const numbers = (of: number[]) =>
    [...of]
      .sort((a, b) => a - b)
      .slice(0, 16)
      .join(', ');
  return `it shows the GPUs ${numbers(shown)}, the list has ${numbers(listed.map(gpu => gpu.index))}`;
}

/** No machine has more islands than GPUs; a graph that is made up can have exponentially many. */
const MOST_CLIQUES = 512;

/**
 * Maximal cliques of two or more, each sorted, in order of their members (Bron and Kerbosch, with a pivot). None at all
 * where there are more than any hardware has.
 */
export function maximalCliques(nodes: number[], pairs: [number, number][]): number[][] {
  const peers = new Map<number, Set<number>>(nodes.map(node => [node, new Set()]));
  for (const [a, b] of pairs) {
    peers.get(a)?.add(b);
    peers.get(b)?.add(a);
  }
  const found: number[][] = [];
  const grow = (clique: number[], candidates: Set<number>, done: Set<number>): void => {
    if (found.length > MOST_CLIQUES) return;
    if (candidates.size === 0 && done.size === 0) {
      if (clique.length > 1) found.push([...clique].sort((a, b) => a - b));
      return;
    }
    const pivot = [...candidates, ...done].reduce((best, node) =>
      common(peers.get(node)!, candidates) > common(peers.get(best)!, candidates) ? node : best,
    );
    for (const node of [...candidates]) {
      if (peers.get(pivot)!.has(node)) continue;
      const near = peers.get(node)!;
      grow([...clique, node], intersect(candidates, near), intersect(done, near));
      candidates.delete(node);
      done.add(node);
    }
  };
  grow([], new Set(nodes), new Set());
  if (found.length > MOST_CLIQUES) return [];
  return found.sort((a, b) => a[0]! - b[0]! || a[1]! - b[1]!);
}

const intersect = (a: Set<number>, b: Set<number>): Set<number> =>
  new Set([...a].filter(node => b.has(node)));
const common = (a: Set<number>, b: Set<number>): number => intersect(a, b).size;
