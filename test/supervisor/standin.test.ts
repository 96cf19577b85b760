// The supervisor with the real vLLM renderer, the stand-in engine and the simulated GPUs: what `llmgw dev` runs.
import path from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { SimulatedSource, Simulation } from '../../agent/discovery/simulated.js';
import { renderer } from '../../agent/engines/index.js';
import { readStat } from '../../agent/supervisor/proc.js';
import { cleanUp, makeNode, never, orderFor, treePids, uniqueName, until } from './harness.js';

afterEach(cleanUp);

const bin = path.resolve(import.meta.dirname, '../../bin/llmgw-standin-vllm.mjs');

async function simulated() {
  const node = makeNode();
  const gpuDir = path.join(node.workDir, 'gpus');
  const source = new SimulatedSource(Simulation.parse({ gpus: { count: 2 }, gpu_dir: gpuDir }), uniqueName());
  const uuids = (await source.snapshot()).gpus.map(g => g.uuid);
  const s = await node.supervisor({
    engines: {
      preflight: async () => ({
        engine: { name: 'vllm', type: 'vllm', bin, version: '0.33.0', launch_mode: 'mp' },
        secretEnv: {},
      }),
      renderer,
    },
    gpus: source,
    slots: () => ({ 0: uuids[0]!, 1: uuids[1]! }),
    passEnv: { LLMGW_STANDIN_GPU_DIR: gpuDir, LLMGW_STANDIN_LOAD_MS: '100' },
    secrets: {
      engineKey: async () => ({ key: 'e'.repeat(64), key_id: '00000000' }),
      envFromFiles: async () => ({}),
    },
    gpuReleaseTimeoutMs: 10_000,
  });
  return { node, s, source };
}

it('starts a vLLM, tells its stages, serves behind its key, and gives the GPUs back', async () => {
  const { s, source } = await simulated();
  const order = orderFor(uniqueName(), { slots: [0, 1] });
  const { ports } = await s.launch(order);
  const stages: string[] = [];
  const ready = await s.awaitReady(order, p => stages.push(p.stage), never);
  expect(ready).toMatchObject({ ready: true, model_ids: ['fake-model'] });
  expect(stages.length).toBeGreaterThan(0);
  expect((await fetch(`http://127.0.0.1:${ports.http}/v1/models`)).status).toBe(401);
  expect((await source.snapshot()).gpus.every(g => g.processes!.length > 0)).toBe(true);
  expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
  expect((await source.snapshot()).gpus.every(g => g.processes!.length === 0)).toBe(true);
});

it('clears the workers of a killed API server, which hold GPU memory without a port, before the GPUs are free', async () => {
  const { node, s, source } = await simulated();
  const env = { LLMGW_STANDIN_CHILDREN: '2', LLMGW_STANDIN_CHILDREN_SETSID: '1' };
  const order = orderFor(uniqueName(), { env });
  const { pid } = await s.launch(order);
  expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
  process.kill(pid, 'SIGKILL');
  await until(() => s.pending().length > 0);
  await until(() => readStat(pid) === null);
  expect((await source.snapshot()).gpus[0]!.processes).toHaveLength(2);
  expect(treePids(node.workDir).length).toBeGreaterThanOrEqual(2);
  const next = orderFor(order.replica, { fence: 2_000, generation: 2 });
  await s.launch(next);
  expect((await source.snapshot()).gpus[0]!.processes!.every(p => p.pid !== pid)).toBe(true);
  expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
  expect(await s.awaitReady(next, () => {}, never)).toMatchObject({ ready: true });
});
