import { describe, expect, it } from 'vitest';
import { islandsOf, maximalCliques, nvlinkPairs } from '../../agent/discovery/topology.js';
import { casesOf, readCase } from './cases.js';
import { matrix } from './fake-smi.js';

const sorted = (cliques: number[][]): string[] => cliques.map(clique => clique.join()).sort();
const listed = (count: number) =>
  Array.from({ length: count }, (_, index) => ({ index, uuid: `GPU-${index}` }));

interface Input {
  stdout_lines: string[];
  csv_indices?: number[];
}
interface Answer {
  gpu_count?: number;
  nvlink_components: number[][];
  /** Where the components aren't cliques, or all are of one GPU. */
  nvlink_maximal_cliques?: number[][];
  all_pairs_nvlink: boolean;
}

describe('NVLink islands are the maximal sets in which every pair is linked (INV-4)', () => {
  it.each(casesOf('gpu-topo'))('%s', name => {
    const { input, expect: wanted } = readCase<Input, Answer>(name);
    const text = `${input.stdout_lines.join('\n')}\n`;
    if (input.csv_indices !== undefined) {
      const { islands, conditions, doubtful } = islandsOf(text, listed(input.csv_indices.length));
      expect({ islands, doubtful }).toEqual({ islands: [], doubtful: true });
      expect(conditions[0]!.message).toContain('it shows 7 GPUs, the list has 8');
      return;
    }
    const { gpus, pairs, fault, disputed } = nvlinkPairs(text);
    expect({ gpus: gpus.length, fault, disputed }).toEqual({
      gpus: wanted.gpu_count,
      fault: null,
      disputed: [],
    });
    // An island has two GPUs at least: one alone needs no link.
    const all = wanted.nvlink_maximal_cliques ?? wanted.nvlink_components;
    const islands = all.filter(clique => clique.length > 1);
    expect(sorted(maximalCliques(gpus, pairs))).toEqual(sorted(islands));
    const every = (gpus.length * (gpus.length - 1)) / 2;
    expect(pairs.length === every && every > 0).toBe(wanted.all_pairs_nvlink);
  });

  it.each([
    ['spaces for tabs', (text: string) => text.replaceAll('\t', '   ').trimStart()],
    ['carriage returns', (text: string) => text.replaceAll('\n', '\r\n')],
    ['a header without its tab', (text: string) => text.trimStart()],
    [
      'colours',
      (text: string) => text.replace('GPU0', '\x1b[4;1mGPU0').replace('Affinity', 'Affinity\x1b[0m'),
    ],
    ['warnings before it', (text: string) => `Warning: GPU stuff\n\n${text}`],
    ['a second matrix', (text: string) => text + text.replaceAll('NV4', 'SYS')],
  ])('with %s are the same', (_, change) => {
    expect(islandsOf(change(matrix(4, 'NV4')), listed(4))).toEqual({
      islands: [listed(4).map(gpu => gpu.uuid)],
      conditions: [],
      doubtful: false,
    });
  });

  it.each(['SYS', 'NODE', 'PHB', 'PXB', 'PIX', 'SOC', 'QPI', 'N/A', 'NVX', 'C2C'])('%s is no link', word => {
    expect(islandsOf(matrix(2, word), listed(2))).toMatchObject({ islands: [], conditions: [] });
  });

  it('believe a link only when both ends show it, and tell the one that is broken', () => {
    const text = matrix(4, 'NV18').replace(/^GPU2.*$/m, 'GPU2\tSYS\tNODE\t X \tSYS\t0-3');
    const { islands, conditions } = islandsOf(text, listed(4));
    expect(islands).toEqual([['GPU-0', 'GPU-1', 'GPU-3']]);
    expect(conditions.map(condition => condition.code)).toEqual(Array(3).fill('gpu_nvlink_broken'));
  });

  it.each([
    ['a row that has slipped', matrix(2, 'NV4').replace(/^GPU1\t/m, 'GPU1\tSYS\t')],
    ['a row cut short', matrix(3, 'NV4').replace(/^GPU2.*$/m, 'GPU2\tNV4')],
    ['a row that is missing', matrix(3, 'NV4').replace(/^GPU2.*\n/m, '')],
    ['no header', matrix(2, 'NV4').replace(/^.*\n/, '')],
    ['other GPUs', matrix(2, 'NV4').replaceAll('GPU1', 'GPU5')],
  ])('are none with %s', (_, text) => {
    const { islands, conditions } = islandsOf(text, listed(text.includes('GPU2') ? 3 : 2));
    expect({ islands, code: conditions[0]?.code }).toEqual({ islands: [], code: 'gpu_topology_unknown' });
  });

  it('are none of a graph that no hardware makes, and soon', () => {
    const nodes = Array.from({ length: 60 }, (_, index) => index);
    const pairs = nodes.flatMap(a =>
      nodes.filter(b => a < b && b !== a + 30).map((b): [number, number] => [a, b]),
    );
    expect(maximalCliques(nodes, pairs)).toEqual([]);
  });
});
