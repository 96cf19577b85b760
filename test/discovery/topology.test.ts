import { describe, expect, it } from 'vitest';
import { maximalCliques, nvlinkPairs } from '../../agent/discovery/topology.js';
import { readCase } from './cases.js';

const CASES = [
  'gpu-topo-01-dgx-a100-nv12',
  'gpu-topo-05-a100-pcie-nv12-crossed-pairs',
  'gpu-topo-06-v100-hybrid-cube-mesh',
  'gpu-topo-08-ansi-header-single-gpu',
];

const sorted = (cliques: number[][]): string[] => cliques.map(clique => clique.join()).sort();

describe('NVLink islands are the maximal sets in which every pair is linked (INV-4)', () => {
  it.each(CASES)('%s', name => {
    const { input, expect: wanted } = readCase<
      { stdout_lines: string[] },
      { gpu_count: number; nvlink_maximal_cliques: number[][] }
    >(name);
    const { gpus, pairs } = nvlinkPairs(`${input.stdout_lines.join('\n')}\n`);
    expect(gpus).toHaveLength(wanted.gpu_count);
    // An island has two GPUs at least: one alone needs no link.
    const islands = wanted.nvlink_maximal_cliques.filter(clique => clique.length > 1);
    expect(sorted(maximalCliques(gpus, pairs))).toEqual(sorted(islands));
  });

  it('believes a link only when both ends show it', () => {
    const text = '\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNODE\t X \n';
    expect(nvlinkPairs(text).pairs).toEqual([]);
  });
});
