// `nvidia-smi topo -m` → NVLink islands: the maximal sets of GPUs in which every pair is linked (INV-4). Sets, not
// connected components: on a cube mesh a component holds pairs that only meet across PCIe.

/** Many drivers underline the header even into a pipe. */
const ANSI = /\x1b\[[0-9;]*m/g;

/**
 * Pairs of GPU indices that both ends show as linked by NVLink. Columns are split at tabs (their names hold spaces)
 * and only GPU columns count: NICs and affinities follow them.
 */
export function nvlinkPairs(text: string): { gpus: number[]; pairs: [number, number][] } {
  const lines = text.replace(ANSI, '').split(/\r?\n/);
  const header = lines.find(line => /^\tGPU\d+(\t|\s*$)/.test(line)) ?? '';
  const columns = header
    .split('\t')
    .map(name => /^GPU(\d+)$/.exec(name.trim())?.[1])
    .map(index => (index === undefined ? null : Number(index)));
  const linked = new Map<number, Set<number>>();
  for (const line of lines) {
    const cells = line.split('\t').map(cell => cell.trim());
    const row = /^GPU(\d+)$/.exec(cells[0] ?? '')?.[1];
    if (row === undefined) continue;
    const peers = columns.flatMap((gpu, at) =>
      gpu !== null && /^NV\d+$/.test(cells[at] ?? '') ? [gpu] : [],
    );
    linked.set(Number(row), new Set(peers));
  }
  const gpus = [...linked.keys()];
  const pairs = gpus.flatMap(a =>
    gpus
      .filter(b => a < b && linked.get(a)!.has(b) && linked.get(b)!.has(a))
      .map((b): [number, number] => [a, b]),
  );
  return { gpus, pairs };
}

/** Maximal cliques of two or more, each sorted, in order of their members (Bron and Kerbosch, with a pivot). */
export function maximalCliques(nodes: number[], pairs: [number, number][]): number[][] {
  const peers = new Map<number, Set<number>>(nodes.map(node => [node, new Set()]));
  for (const [a, b] of pairs) {
    peers.get(a)?.add(b);
    peers.get(b)?.add(a);
  }
  const found: number[][] = [];
  const grow = (clique: number[], candidates: Set<number>, done: Set<number>): void => {
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
  return found.sort((a, b) => a[0]! - b[0]! || a[1]! - b[1]!);
}

const intersect = (a: Set<number>, b: Set<number>): Set<number> =>
  new Set([...a].filter(node => b.has(node)));
const common = (a: Set<number>, b: Set<number>): number => intersect(a, b).size;
