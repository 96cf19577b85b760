import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { NvidiaSmi } from '../../agent/discovery/nvidia-smi.js';
import { SmiSource } from '../../agent/discovery/smi-source.js';
import { readCase } from './cases.js';
import { type FakeSmi, fakeSmi, row } from './fake-smi.js';

let dir: string;
let smi: FakeSmi;
let source: SmiSource;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-smi-'));
  smi = fakeSmi(dir);
  source = new SmiSource(smi.bin);
});
afterEach(() => rmSync(dir, { recursive: true }));

describe('the inventory', () => {
  it('has every GPU with its figures and islands', async () => {
    smi.set({
      base: { text: row(0) + row(1) },
      optional: { text: 'GPU-0, 9.0, Disabled, Completed\nGPU-1, 9.0, Disabled, [N/A]\n' },
      topo: { text: '\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-3\nGPU1\tNV18\t X \t0-3\n' },
    });
    const { source: name, driver_version, gpus, islands, conditions } = await source.inventory();
    expect({ name, driver_version, islands, conditions }).toEqual({
      name: 'nvidia-smi',
      driver_version: '580.95.05',
      islands: [['GPU-0', 'GPU-1']],
      conditions: [],
    });
    expect(gpus[1]).toEqual({
      index: 1,
      uuid: 'GPU-1',
      name: 'NVIDIA H100 80GB HBM3',
      pci_bus_id: '00000000:19:00.0',
      memory_total_mib: 81_559,
      memory_free_mib: 81_555,
      compute_capability: '9.0',
      mig: false,
      usable: true,
      reason: null,
    });
  });

  it('keeps a sick GPU in its place, with the reason', async () => {
    const lost = { total: '[GPU is lost]', used: '[GPU is lost]', free: '[GPU is lost]' };
    smi.set({ base: { text: row(0) + row(1, lost) + row(2, { free: 'ERR!' }), code: 15 } });
    const { gpus } = await source.inventory();
    expect(gpus.map(gpu => [gpu.index, gpu.usable, gpu.memory_total_mib])).toEqual([
      [0, true, 81_559],
      [1, false, null],
      [2, false, 81_559],
    ]);
    expect(gpus[1]!.reason).toBe('the driver has lost it (reboot the node)');
  });

  it('takes [N/A] for a figure that is not offered, not for a fault', async () => {
    smi.set({ base: { text: row(0, { total: '[N/A]', used: '[N/A]', free: '[N/A]' }) } });
    expect((await source.inventory()).gpus[0]).toMatchObject({ usable: true, memory_total_mib: null });
  });

  it.each([
    ['9.0, Enabled, Completed', 'MIG mode'],
    ['9.0, Disabled, In Progress', 'its NVLink fabric is not up (In Progress)'],
  ])('%s can not be used: %s', async (cells, reason) => {
    smi.set({ base: { text: row(0) }, optional: { text: `GPU-0, ${cells}\n` } });
    expect((await source.inventory()).gpus[0]).toMatchObject({ usable: false, reason });
    expect((await source.snapshot()).gpus[0]).toMatchObject({ usable: false, reason });
  });

  it('keeps a GPU that vanishes as unusable', async () => {
    smi.set({ base: { text: row(0) + row(1) } });
    await source.inventory();
    smi.set({ base: { text: row(0) } });
    expect((await source.inventory()).gpus[1]).toMatchObject({
      uuid: 'GPU-1',
      usable: false,
      reason: 'nvidia-smi no longer lists it',
    });
    expect((await source.snapshot()).gpus[1]).toMatchObject({
      usable: false,
      memory_used_mib: null,
      processes: null,
    });
  });

  it('keeps the rows around the sentence of a lost GPU', async () => {
    const { input } = readCase<{ variants: Record<string, string[]> }, unknown>(
      'gpu-csv-06-lost-gpu-interleaved',
    );
    const sentence = input.variants.interleaved![1]!;
    smi.set({ base: { text: `${row(0)}${sentence}\n${row(2)}${row(3)}`, code: 15 } });
    const { gpus, conditions } = await source.inventory();
    expect(gpus.map(gpu => gpu.index)).toEqual([0, 2, 3]);
    expect(conditions[0]).toEqual({
      code: 'gpu_lost',
      message: 'the driver has lost the GPU at 0000:13:00.0: reboot the node',
    });
    smi.set({ base: { text: `${input.variants.only_error!.join('\n')}\n`, code: 15 } });
    expect((await source.inventory()).conditions.map(condition => condition.code)).toEqual(['gpu_lost']);
  });

  it('reports a driver mismatch as a condition and keeps what it knew', async () => {
    smi.set({ base: { text: row(0) } });
    await source.inventory();
    const { input } = readCase<{ stdout_lines: string[] }, unknown>('gpu-csv-08-driver-mismatch');
    smi.set({ base: { text: `${input.stdout_lines.join('\n')}\n`, code: 18 } });
    const { gpus, conditions } = await source.inventory();
    expect(gpus).toMatchObject([{ uuid: 'GPU-0', usable: false }]);
    expect(conditions).toHaveLength(1);
    expect(conditions[0]!.code).toBe('gpu_driver_mismatch');
    expect(conditions[0]!.message).toContain('570.195');
  });

  it('drops a field that an old driver does not know, once', async () => {
    const { input } = readCase<{ sequence: { stdout_lines: string[] }[] }, unknown>(
      'gpu-csv-15-unknown-field',
    );
    smi.set({
      base: { text: row(0) },
      optional: { text: `${input.sequence[0]!.stdout_lines[0]}\n\n`, code: 2 },
    });
    const { gpus } = await source.inventory();
    expect(gpus[0]).toMatchObject({ usable: true, compute_capability: null });
    await source.inventory();
    const asked = readFileSync(join(dir, 'calls'), 'utf8')
      .split('\n')
      .filter(call => call.includes('fabric.state'));
    expect(asked).toHaveLength(1);
  });

  it.each([
    ['No devices were found', 6, 'gpu_none_found'],
    ["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, 'gpu_driver_absent'],
    ['Failed to initialize NVML: Unknown Error', 255, 'gpu_driver_unresponsive'],
  ])('%s is a condition', async (text, code, condition) => {
    smi.set({ base: { text: `${text}\n`, code } });
    const inventory = await source.inventory();
    expect(inventory).toMatchObject({ source: 'none', gpus: [], conditions: [{ code: condition }] });
  });

  it('does not count on NVLink when topology and list disagree', async () => {
    smi.set({ base: { text: row(0) + row(1) }, topo: { text: '\tGPU0\tCPU Affinity\nGPU0\t X \t0-3\n' } });
    const { islands, conditions } = await source.inventory();
    expect(islands).toEqual([]);
    expect(conditions.map(condition => condition.code)).toEqual(['gpu_topology_unknown']);
  });
});

describe('a machine without nvidia-smi', () => {
  it('has no GPUs, and no condition unless the program was named', async () => {
    const none = new SmiSource('', new NvidiaSmi('/nowhere/nvidia-smi'));
    expect(await none.inventory()).toMatchObject({ source: 'none', gpus: [], conditions: [] });
    const named = new SmiSource('/nowhere/nvidia-smi');
    expect((await named.inventory()).conditions.map(condition => condition.code)).toEqual([
      'gpu_tool_missing',
    ]);
  });
});

describe('a snapshot', () => {
  it('has the processes of each GPU, whatever their names', async () => {
    smi.set({
      base: { text: row(0, { used: '60004' }) + row(1) },
      apps: { text: 'GPU-0, 41, 60000, python, with, commas\nGPU-0, 42, [N/A], [Not Found]\n' },
    });
    expect((await source.snapshot()).gpus).toEqual([
      {
        uuid: 'GPU-0',
        index: 0,
        usable: true,
        reason: null,
        memory_used_mib: 60_004,
        processes: [
          { pid: 41, used_mib: 60_000 },
          { pid: 42, used_mib: null },
        ],
      },
      { uuid: 'GPU-1', index: 1, usable: true, reason: null, memory_used_mib: 4, processes: [] },
    ]);
  });

  it('says that it does not know the processes where the driver does not tell', async () => {
    smi.set({ base: { text: row(0) }, apps: { text: 'Not supported\n', code: 3 } });
    expect((await source.snapshot()).gpus[0]!.processes).toBeNull();
  });

  it('is one look for all who ask at once', async () => {
    smi.set({ base: { text: row(0) } });
    await Promise.all([source.snapshot(), source.snapshot(), source.snapshot()]);
    expect(readFileSync(join(dir, 'calls'), 'utf8').trim().split('\n')).toHaveLength(2);
  });
});

it('gives up on an nvidia-smi that hangs', async () => {
  const sleeper = new NvidiaSmi('/bin/sleep', 50);
  expect(await sleeper.run(['60'])).toMatchObject({ code: null });
});
