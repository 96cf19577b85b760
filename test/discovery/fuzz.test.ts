// Garbage in: no parser throws, each gives its shape back, and no GPU is dropped without a word.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  indexCell,
  numberCell,
  readTable,
  sickness,
  splitCells,
  textCell,
} from '../../agent/discovery/cells.js';
import { checkFabrics } from '../../agent/discovery/fabrics.js';
import { infiniband } from '../../agent/discovery/infiniband.js';
import { migInstances } from '../../agent/discovery/mig.js';
import type { NvidiaSmi, SmiOutput } from '../../agent/discovery/nvidia-smi.js';
import { BASE_FIELDS } from '../../agent/discovery/smi-gpus.js';
import { conditionsOf } from '../../agent/discovery/smi-sentences.js';
import { SmiSource } from '../../agent/discovery/smi-source.js';
import { islandsOf, maximalCliques, nvlinkPairs } from '../../agent/discovery/topology.js';
import { Condition, Gpu, Hca } from '../../contracts/inventory.js';
import { laySysfs } from './cases.js';

const WORDS = [
  '[N/A]', 'N/A', '[Not Supported]', '[Unknown Error]', '[GPU is lost]', '[GPU requires reset]', '[Insufficient',
  '[Insufficient Permissions]', 'ERR!', '[Not Found]', 'Unknown', 'Enabled', '0', '1', '81559', '-1', '1e9', '', ' ', '"', '[',
  ']', 'GPU-aa', 'GPU-bb', 'NVIDIA H100, PCIe', '00000000:18:00.0', 'NVIDIA GB10', 'GRID A100D-40C', '\u0000', '\ufeff', '😀',
]; // biome-ignore format: a list of words
const cell = fc.oneof(fc.constantFrom(...WORDS), fc.string({ maxLength: 12 }));
const line = fc.oneof(
  fc.array(cell, { maxLength: 9 }).map(cells => cells.join(', ')),
  fc
    .tuple(fc.nat(70), fc.array(cell, { maxLength: 7 }))
    .map(([index, cells]) => [index, ...cells].join(', ')),
  fc.constantFrom(
    'Unable to determine the device handle for GPU0000:18:00.0: Unknown Error',
    'Unable to determine the device handle for GPU1: ',
    'No devices were found',
    'WARNING: infoROM is corrupted at gpu 0000:04:00.0',
    'Field "uuid" is not a valid field to query.',
  ),
  fc.string(),
);
const text = fc.array(line, { maxLength: 12 }).map(lines => lines.join('\n'));
const output = fc.record({ code: fc.option(fc.nat(255)), out: text, text, hung: fc.boolean() });

/** Answers each command with something. */
const answering = (outputs: (SmiOutput | null)[]): NvidiaSmi => {
  let at = 0;
  return { run: async () => outputs[at++ % outputs.length] ?? null } as unknown as NvidiaSmi;
};

const runs = (numRuns: number) => ({ numRuns });

describe('nvidia-smi', () => {
  it('cells', () => {
    fc.assert(
      fc.property(fc.string(), text => {
        for (const one of splitCells(text)) {
          for (const figure of [numberCell(one), indexCell(one)])
            expect(figure === null || (Number.isFinite(figure) && figure >= 0)).toBe(true);
          const word = textCell(one);
          expect(word === null || word.length > 0).toBe(true);
          sickness([one]);
        }
      }),
      runs(300),
    );
  });

  it('every line that begins with an index is a row or a fault', () => {
    fc.assert(
      fc.property(text, text => {
        const lines = text.split('\n').filter(one => /^\s*\d{1,9}\s*,/.test(one));
        const { rows, faults } = readTable(text, BASE_FIELDS);
        expect(rows.length + faults.length).toBeGreaterThanOrEqual(lines.length);
        for (const row of rows) expect(Object.keys(row)).toEqual(BASE_FIELDS);
      }),
      runs(300),
    );
  });

  it('sentences', () => {
    fc.assert(
      fc.property(output, fc.nat(3), (output, rows) => {
        for (const condition of conditionsOf(output, rows)) Condition.parse(condition);
        // Without GPUs there is always a reason.
        expect(rows > 0 || conditionsOf(output, 0).length > 0).toBe(true);
      }),
      runs(300),
    );
  });

  it('whatever it answers, each row is a GPU or there is a condition', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.option(output, { freq: 20 }), { minLength: 1, maxLength: 6 }),
        async outputs => {
          const { gpus, islands, conditions } = await new SmiSource('x', answering(outputs)).inventory();
          for (const gpu of gpus) {
            Gpu.omit({ foreign_mib: true }).parse(gpu);
            expect(gpu.usable).toBe(gpu.reason === null);
          }
          expect(new Set(gpus.map(gpu => gpu.uuid)).size).toBe(gpus.length);
          const known = new Set(gpus.map(gpu => gpu.uuid));
          for (const uuid of islands.flat()) expect(known.has(uuid)).toBe(true);
          expect(gpus.length > 0 || conditions.length > 0).toBe(true);
          for (const condition of conditions) Condition.parse(condition);
        },
      ),
      runs(120),
    );
  });

  it('snapshots', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.option(output), { minLength: 1, maxLength: 4 }), async outputs => {
        for (const gpu of (await new SmiSource('x', answering(outputs)).snapshot()).gpus)
          expect(gpu.memory_used_mib === null || gpu.memory_used_mib >= 0).toBe(true);
      }),
      runs(120),
    );
  });

  it('-L', () => {
    fc.assert(
      fc.property(text, text => void expect(migInstances(text)).toBeInstanceOf(Map)),
      runs(120),
    );
  });
});

describe('topo -m', () => {
  const words = fc.constantFrom(
    'X',
    ' X ',
    'NV1',
    'NV18',
    'SYS',
    'NODE',
    'PIX',
    'SOC',
    '',
    'GPU0',
    'GPU1',
    'GPU11',
    'mlx5_0',
  );
  const matrix = fc
    .array(fc.array(fc.oneof(words, fc.string({ maxLength: 5 })), { maxLength: 8 }), { maxLength: 8 })
    .map(rows => rows.map(row => row.join('\t')).join('\n'));

  it('any text', () => {
    fc.assert(
      fc.property(fc.oneof(matrix, fc.string()), fc.nat(4), (text, count) => {
        const { gpus, pairs } = nvlinkPairs(text);
        for (const [a, b] of pairs) expect(gpus.includes(a) && gpus.includes(b) && a < b).toBe(true);
        const listed = Array.from({ length: count }, (_, index) => ({ index, uuid: `GPU-${index}` }));
        const found = islandsOf(text, listed);
        expect(
          found.islands.length === 0 || found.conditions.every(c => c.code === 'gpu_nvlink_broken'),
        ).toBe(true);
      }),
      runs(400),
    );
  });

  it('the cliques of any graph are cliques, maximal, and cover every link', () => {
    const graph = fc.uniqueArray(
      fc.tuple(fc.nat(9), fc.nat(9)).filter(([a, b]) => a < b),
      {
        selector: ([a, b]) => a * 10 + b,
        maxLength: 30,
      },
    );
    fc.assert(
      fc.property(graph, pairs => {
        const nodes = Array.from({ length: 10 }, (_, index) => index);
        const linked = (a: number, b: number) =>
          pairs.some(([x, y]) => x === Math.min(a, b) && y === Math.max(a, b));
        const cliques = maximalCliques(nodes, pairs);
        for (const clique of cliques) {
          for (const a of clique) for (const b of clique) expect(a === b || linked(a, b)).toBe(true);
          const more = nodes.filter(n => !clique.includes(n) && clique.every(member => linked(n, member)));
          expect(more).toEqual([]);
        }
        for (const [a, b] of pairs) expect(cliques.some(c => c.includes(a) && c.includes(b))).toBe(true);
        expect(new Set(cliques.map(c => c.join())).size).toBe(cliques.length);
      }),
      runs(100),
    );
  });
});

describe('sysfs', () => {
  it('any tree', async () => {
    const name = fc.constantFrom('mlx5_0', 'mlx5_bond_0', 'README', 'é', 'a b');
    const attribute = fc.constantFrom('state', 'phys_state', 'rate', 'link_layer', 'other');
    const value = fc.oneof(
      fc.constantFrom('4: ACTIVE', '5: LinkUp', '400 Gb/sec (4X NDR)', 'InfiniBand', ''),
      fc.string(),
    );
    const port = fc.constantFrom('1', '2', 'abc', '0', '999');
    const file = fc
      .tuple(name, port, attribute, value)
      .map(([n, p, a, v]) => [`${n}/ports/${p}/${a}`, v] as const);
    await fc.assert(
      fc.asyncProperty(fc.array(file, { maxLength: 12 }), async files => {
        const root = mkdtempSync(join(tmpdir(), 'llmgw-fuzz-'));
        try {
          laySysfs(root, { files: Object.fromEntries(files) });
          const { ports, conditions } = await infiniband(root);
          for (const one of ports) Hca.parse(one);
          expect(conditions).toEqual([]);
          const hcas = ['mlx5_0', 'mlx5_0:2', 'é:', ''];
          const [fabric] = checkFabrics([{ name: 'ib', hcas, rate_gbps: 400 }], ports);
          expect(fabric!.usable || fabric!.problems.length > 0).toBe(true);
        } finally {
          rmSync(root, { recursive: true });
        }
      }),
      runs(20),
    );
  });
});
