// The cases gpu-csv-*, each through the whole source and a program that answers as the case's nvidia-smi does.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, expect, it } from 'vitest';
import { SmiSource } from '../../agent/discovery/smi-source.js';
import type { GpuInventory } from '../../agent/discovery/types.js';
import { casesOf, fieldsOf, readCase } from './cases.js';
import { type Answers, type FakeSmi, fakeSmi, matrix } from './fake-smi.js';

interface Input {
  command: string;
  exit_code: number;
  stdout_lines: string[];
  stdout_raw: string;
  proc_meminfo_lines: string[];
  variants: Record<string, string[]>;
  second_node: string[];
  sequence: { command: string; stdout_lines: string[] }[];
}
interface Wanted {
  index: number;
  uuid?: string;
  pci?: string | null;
  memory_total_mib?: number | null;
  placeable_whole?: boolean;
}

let dir: string;
let smi: FakeSmi;
const done = new Set<string>();
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-case-'));
  smi = fakeSmi(dir);
});
afterEach(() => rmSync(dir, { recursive: true }));
afterAll(() => expect([...done].sort()).toEqual(casesOf('gpu-csv')));

const load = (id: string) => {
  done.add(id);
  return readCase<Input, { gpus: Wanted[] }>(id);
};

async function look(answers: Answers): Promise<GpuInventory> {
  smi.set({ topo: { text: matrix(answers.lines?.length ?? 0, 'NV18') }, ...answers });
  return await new SmiSource(smi.bin, undefined, join(dir, 'meminfo')).inventory();
}

async function looked(id: string): Promise<{ found: GpuInventory; wanted: Wanted[] }> {
  const { input, expect: answer } = load(id);
  const found = await look({
    fields: fieldsOf(input.command),
    lines: input.stdout_lines,
    code: input.exit_code,
  });
  return { found, wanted: answer.gpus };
}

/** As the cases write addresses, and sysfs does. */
const sysfs = (bus: string | null): string | null =>
  bus?.toLowerCase().replace(/^0{4}(?=[0-9a-f]{4}:)/, '') ?? null;

function compare({ found, wanted }: { found: GpuInventory; wanted: Wanted[] }): void {
  expect(found.gpus.map(gpu => gpu.index)).toEqual(wanted.map(gpu => gpu.index));
  for (const [at, gpu] of found.gpus.entries()) {
    const { uuid = gpu.uuid, pci = sysfs(gpu.pci_bus_id), ...figures } = wanted[at]!;
    expect({ uuid: gpu.uuid, pci: sysfs(gpu.pci_bus_id) }).toEqual({ uuid, pci });
    if (figures.memory_total_mib !== undefined) expect(gpu.memory_total_mib).toBe(figures.memory_total_mib);
    if (figures.placeable_whole !== undefined) expect(gpu.usable).toBe(figures.placeable_whole);
    expect(gpu.reason === null).toBe(gpu.usable);
  }
}
const codes = (found: GpuInventory) => found.conditions.map(condition => condition.code);

it('gpu-csv-01: MIG on, off and pending', async () => {
  const seen = await looked('gpu-csv-01-mig-mixed');
  compare(seen);
  expect(seen.found.gpus.map(gpu => gpu.mig)).toEqual([true, false, false]);
  expect(seen.found.gpus.map(gpu => gpu.memory_free_mib)).toEqual([81_500, 81_558, 81_558]);
  expect(seen.found.conditions).toEqual([
    {
      code: 'gpu_mig_pending',
      message: expect.stringMatching(/^GPU 2 .*MIG mode change pending at next reset/),
    },
  ]);
});

it('gpu-csv-03: a Jetson has no UUID, no address and the memory of its host', async () => {
  const { input, expect: answer } = load('gpu-csv-03-jetson-nvgpu');
  writeFileSync(join(dir, 'meminfo'), input.proc_meminfo_lines.join('\n'));
  const found = await look({ fields: fieldsOf(input.command), lines: input.stdout_lines });
  compare({ found, wanted: answer.gpus });
  expect(found.gpus[0]).toMatchObject({
    name: 'Orin (nvgpu)',
    memory_kind: 'unified',
    memory_free_mib: 5_620,
  });
  expect(found.conditions).toEqual([]);
});

it('gpu-csv-05: a GPU that requires a reset is sick, one with a broken fan is not', async () => {
  const { found, wanted } = await looked('gpu-csv-05-requires-reset-vs-unknown-error');
  compare({ found, wanted });
  expect(found.gpus.map(gpu => gpu.reason)).toEqual([
    'it requires a reset',
    null,
    'the driver reports an unknown error',
    null,
  ]);
});

it('gpu-csv-06: a lost GPU renumbers nothing', async () => {
  const { input } = load('gpu-csv-06-lost-gpu-interleaved');
  const fields = fieldsOf(input.command);
  const one = await look({ fields, lines: input.variants.interleaved!, code: input.exit_code });
  expect(one.gpus.map(gpu => gpu.index)).toEqual([0, 2, 3]);
  const none = await look({ fields, lines: input.variants.only_error!, code: input.exit_code });
  expect(none).toMatchObject({ source: 'none', gpus: [] });
  for (const found of [one, none])
    expect(found.conditions[0]).toEqual({
      code: 'gpu_lost',
      message: expect.stringContaining('0000:13:00.0'),
    });
});

it('gpu-csv-08: a driver mismatch is told with what to do', async () => {
  const { input } = load('gpu-csv-08-driver-mismatch');
  const found = await look({ lines: input.stdout_lines, code: input.exit_code });
  expect(found).toMatchObject({ source: 'none', gpus: [] });
  expect(found.conditions).toEqual([
    { code: 'gpu_driver_mismatch', message: expect.stringMatching(/570\.195.*reboot the node or reload/) },
  ]);
});

it('gpu-csv-10: a virtual GPU has the memory of its slice, and is no card in MIG mode', async () => {
  const seen = await looked('gpu-csv-10-vgpu-guest');
  compare(seen);
  expect(seen.found.gpus.map(gpu => [gpu.virtual, gpu.usable])).toEqual([
    [true, true],
    [true, true],
  ]);
  expect(seen.found.conditions).toEqual([]);
});

it('gpu-csv-11: superchips differ in their PCI domain alone', async () => {
  const { input, expect: answer } = load('gpu-csv-11-grace-nonzero-domain');
  const { pci, memory_total_mib, second_node } = answer as unknown as {
    pci: string[];
    memory_total_mib: number[];
    second_node: { memory_total_mib: number; pci: string };
  };
  const fields = fieldsOf(input.command);
  const first = await look({ fields, lines: input.stdout_lines });
  const wanted = pci.map((bus, index) => ({ index, pci: bus, memory_total_mib: memory_total_mib[index]! }));
  compare({ found: first, wanted });
  expect(first.gpus.map(gpu => gpu.compute_capability)).toEqual(['10.0', '10.0', '10.0', '10.0']);
  const second = await look({ fields, lines: input.second_node });
  compare({ found: second, wanted: [{ index: 0, ...second_node }] });
});

it("gpu-csv-13: memory that may not be read is not the host's", async () => {
  const seen = await looked('gpu-csv-13-insufficient-permissions');
  compare(seen);
  expect(codes(seen.found)).toEqual(['gpu_no_permission']);
});

it('gpu-csv-15: an old driver refuses fields', async () => {
  const { input, expect: answer } = load('gpu-csv-15-unknown-field');
  const { sequence } = input;
  const refused = ['fabric.state', 'compute_cap'];
  const fields = fieldsOf(sequence[0]!.command).filter(field => !refused.includes(field));
  const found = await look({ fields, lines: sequence[2]!.stdout_lines, refused });
  compare({ found, wanted: answer.gpus });
  expect(found).toMatchObject({
    driver_version: '418.87.01',
    gpus: [{ compute_capability: null, usable: true }],
  });
});

it('gpu-csv-16: a row that is cut short is told, and renumbers nothing', async () => {
  const { input } = load('gpu-csv-16-many-rows-and-truncated-row');
  const fields = fieldsOf(input.command);
  const found = await look({ fields, raw: input.stdout_raw, topo: { text: matrix(3, 'NV2') } });
  expect(found.gpus.map(gpu => gpu.index)).toEqual([0, 1]);
  expect(found.conditions[0]).toEqual({
    code: 'gpu_row_malformed',
    message: expect.stringMatching(/^line 4 .*GPU 2/),
  });
  expect(found.islands).toEqual([]);
});

it('gpu-csv-18: a GPU whose fabric is not up is not offered, with what to do', async () => {
  const seen = await looked('gpu-csv-18-fabric-in-progress');
  compare(seen);
  expect(seen.found.gpus[0]!.reason).toMatch(/In Progress.*nvidia-fabricmanager/);
});
