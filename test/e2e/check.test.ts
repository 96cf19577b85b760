// `agent --check --json` and `--check-config --json` as they are built, with a script for nvidia-smi and a folder for
// sysfs. Which inputs have which answers is held in test/discovery and test/config; here, that the command says so.
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Inventory } from '../../contracts/inventory.js';
import { fieldsOf, laySysfs, readCase, type Sysfs } from '../discovery/cases.js';
import { fakeSmi, matrix, row } from '../discovery/fake-smi.js';
import { MAIN } from './harness.js';

let dir: string;
let smi: ReturnType<typeof fakeSmi>;
beforeAll(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'llmgw-check-'));
  mkdirSync(path.join(dir, 'smi'));
  smi = fakeSmi(path.join(dir, 'smi'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function run(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  return new Promise(resolve => {
    const child = execFile(process.execPath, [MAIN, ...args], (_, stdout, stderr) =>
      resolve({ code: child.exitCode ?? -1, stdout, stderr }),
    );
  });
}

function config(text = ''): string {
  const file = path.join(dir, 'agent.yaml');
  const discovery = `discovery: {nvidia_smi: ${smi.bin}, prefer_nvml: false, ib_root: ${dir}/ib}`;
  const base = `node_id: gpu-a-01\nserver: http://127.0.0.1:7443\nsupervisor: {work_dir: ${dir}/work}\n${discovery}\n`;
  writeFileSync(file, base + text);
  return file;
}

async function check(text?: string): Promise<Inventory> {
  const { code, stdout, stderr } = await run('agent', '--config', config(text), '--check', '--json');
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return Inventory.parse(JSON.parse(stdout));
}

describe('agent --check --json', () => {
  it('tells of a lost GPU between the others, of a fabric with a down port, and of islands', async () => {
    const { input } = readCase<{ command: string; variants: Record<string, string[]> }, unknown>(
      'gpu-csv-06-lost-gpu-interleaved',
    );
    smi.set({ fields: fieldsOf(input.command), lines: input.variants.interleaved!, code: 15 });
    laySysfs(path.join(dir, 'ib'), readCase<Sysfs, unknown>('ib-sysfs-03-down-disabled-no-cable').input);
    const lost = await check('fabrics: [{name: ib-a, hcas: [mlx5_0, mlx5_1]}]\n');
    expect(lost.gpus.map(gpu => [gpu.index, gpu.usable])).toEqual([
      [0, true],
      [2, true],
      [3, true],
    ]);
    expect(lost.nvlink_islands).toEqual([]);
    expect(lost.fabrics[0]).toMatchObject({ usable: false, problems: [expect.stringContaining('mlx5_1')] });
    const codes = lost.conditions.map(condition => condition.code);
    expect(codes).toEqual(expect.arrayContaining(['gpu_lost', 'gpu_topology_unknown', 'fabric_degraded']));

    smi.set({ lines: [row(0), row(1)], topo: { text: matrix(2, 'NV18') } });
    const well = await check();
    expect(well).toMatchObject({
      source: 'nvidia-smi',
      nvlink_islands: [['GPU-0', 'GPU-1']],
      conditions: [],
    });
  });

  it('says why there are no GPUs', async () => {
    const { input } = readCase<{ stdout_lines: string[] }, unknown>('gpu-csv-08-driver-mismatch');
    smi.set({ lines: input.stdout_lines, code: 18 });
    const { source, gpus, conditions } = await check();
    expect({ source, gpus, code: conditions[0]?.code }).toEqual({
      source: 'none',
      gpus: [],
      code: 'gpu_driver_mismatch',
    });
  });
});

it('agent --check prints a table, and what to do at its end', async () => {
  smi.set({ lines: [row(0)] });
  const { code, stdout } = await run(
    'agent',
    '--config',
    config('fabrics: [{name: a, hcas: [mlx9]}]\n'),
    '--check',
  );
  expect(code).toBe(0);
  expect(stdout).toMatch(/^ {2}GPU 0 {2}NVIDIA H100 80GB HBM3 .*usable$/m);
  expect(stdout).toMatch(/^ {2}ports 20000-21999: /m);
  expect(stdout).toMatch(/^to look at:\n {2}fabric_degraded: .*mlx9.*correct fabrics/m);
});

it('--check-config --json has every fault with its place', async () => {
  const file = config('heartbeat_interval: 5\nhearbeat: 5s\nlabels: {rack: 012}\n');
  const { code, stdout } = await run('agent', '--config', file, '--check-config', '--json');
  expect(code).toBe(2);
  const { ok, errors } = JSON.parse(stdout);
  expect(ok).toBe(false);
  expect(errors.map((e: { line: number; key: string }) => [e.line, e.key])).toEqual([
    [5, 'heartbeat_interval'],
    [6, 'hearbeat'],
    [7, 'labels.rack'],
  ]);
});
