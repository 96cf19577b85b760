import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { loadAgentConfigText } from '../../agent/config.js';
import { createDiscovery, type DiscoveryConfig } from '../../agent/discovery/index.js';
import { Inventory } from '../../contracts/inventory.js';
import { type SimulationFiles, writeSimulation } from '../../dev/standin/simulation.js';
import { alive, endAll, ready, start, until } from '../standin/harness.js';

let dir: string;
let files: SimulationFiles;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-sim-'));
  files = writeSimulation(dir);
});
afterEach(async () => {
  await endAll();
  rmSync(dir, { recursive: true });
});

function config(text = ''): DiscoveryConfig {
  const yaml = `node_id: local\nserver: http://127.0.0.1:7443\nengines: {vllm: {bin: ${files.bin}}}\n${text}`;
  const loaded = loadAgentConfigText(yaml, 'agent.yaml');
  if (!loaded.ok) throw new Error(JSON.stringify(loaded));
  return loaded.config;
}

const discovery = (changes: Partial<DiscoveryConfig> = {}) =>
  createDiscovery({ ...config(), ...changes }, { PATH: process.env.PATH, LLMGW_SIMULATE: files.file });

describe('a simulated node', () => {
  it('has 8 × H100 in one island on sim-ib, and says that it is simulated', async () => {
    const facts = await discovery().discover();
    Inventory.parse({ ...facts, node_id: 'local', agent_version: '0', certificate: null });
    expect(facts).toMatchObject({
      source: 'simulated',
      fabrics: [{ name: 'sim-ib', usable: true, problems: [] }],
    });
    expect(facts.gpus).toHaveLength(8);
    expect(facts.nvlink_islands).toEqual([facts.gpus.map(gpu => gpu.uuid)]);
    expect(facts.engines).toEqual([
      { name: 'vllm', type: 'vllm', version: '0.33.0', launch_mode: 'mp', problems: [] },
    ]);
    expect(facts.conditions.map(condition => condition.code)).toEqual(['simulated']);
    expect(facts.boot_id).toMatch(/^[0-9a-f-]{36}$/);
  });

  it('has the same UUIDs at each start, and others than the next node', async () => {
    const uuids = async (node_id: string) =>
      (await discovery({ node_id }).gpuSnapshot()).gpus.map(gpu => gpu.uuid);
    expect(await uuids('local')).toEqual(await uuids('local'));
    expect(new Set([...(await uuids('local')), ...(await uuids('other'))]).size).toBe(16);
  });

  it('shows what stand-in engines hold while they live', async () => {
    const node = discovery();
    const [first] = (await node.gpuSnapshot()).gpus;
    const engine = await start(
      { GPU_DIR: files.gpuDir },
      { env: { CUDA_VISIBLE_DEVICES: `${first!.uuid},3` }, args: ['-tp', '2'] },
    );
    await ready(engine);
    const held = (await node.gpuSnapshot()).gpus.filter(gpu => gpu.processes!.length > 0);
    expect(held.map(gpu => gpu.index)).toEqual([0, 3]);
    expect(held[0]).toMatchObject({
      memory_used_mib: 60_004,
      processes: [{ pid: engine.child.pid, used_mib: 60_000 }],
    });

    const foreign = (await node.discover()).gpus.map(gpu => gpu.foreign_mib);
    expect(foreign.slice(0, 4)).toEqual([60_000, 0, 0, 60_000]);
    const own = await node.discover(pid => pid === engine.child.pid);
    expect(own.gpus[0]!.foreign_mib).toBe(0);

    engine.child.kill('SIGKILL');
    await engine.ended;
    expect(existsSync(join(files.gpuDir, `${engine.child.pid}.json`))).toBe(true);
    expect((await node.gpuSnapshot()).gpus[0]).toMatchObject({ memory_used_mib: 4, processes: [] });
    await until(() => !existsSync(join(files.gpuDir, `${engine.child.pid}.json`)));
  });

  it('does not take a process with a reused pid for a holder', async () => {
    const entry = { pid: process.pid, start_time: 1, gpus: ['0'], used_mib: 60_000 };
    writeFileSync(join(files.gpuDir, `${process.pid}.json`), JSON.stringify(entry));
    expect((await discovery().gpuSnapshot()).gpus[0]!.processes).toEqual([]);
    expect(alive(process.pid)).toBe(true);
  });

  it('may only join a control plane on this machine', () => {
    expect(() => discovery({ server: 'http://llmgw-server.internal:7443' })).toThrow(
      /LLMGW_SIMULATE is set but server is http:\/\/llmgw-server.internal:7443/,
    );
  });

  it('names the file and the key that are wrong', () => {
    writeFileSync(files.file, 'gpus: {count: many}\ngpu_dir: /tmp\n');
    expect(() => discovery()).toThrow(/LLMGW_SIMULATE: .*simulation\.json: gpus\.count: /);
  });

  it('keeps the fabrics that agent.yaml names, checked against the simulated ports', async () => {
    const fabrics = config('fabrics: [{name: ib-x, hcas: [mlx5_9]}]').fabrics;
    const facts = await discovery({ fabrics }).discover();
    expect(facts.fabrics.map(fabric => [fabric.name, fabric.usable])).toEqual([
      ['ib-x', false],
      ['sim-ib', true],
    ]);
    expect(facts.conditions.map(condition => condition.code)).toContain('fabric_degraded');
  });
});

it('hosts nothing with skip_gpus', async () => {
  const skipping = config('discovery: {skip_gpus: true}');
  const node = createDiscovery(skipping, { PATH: process.env.PATH, LLMGW_SIMULATE: files.file });
  expect(await node.discover()).toMatchObject({ source: 'none', gpus: [], nvlink_islands: [] });
  expect(await node.gpuSnapshot()).toEqual({ gpus: [] });
});
