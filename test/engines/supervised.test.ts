// SGLang and a `command` engine under the real supervisor: the stand-ins as programs, on simulated GPUs.
import path from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { SimulatedSource, Simulation } from '../../agent/discovery/simulated.js';
import { renderer } from '../../agent/engines/index.js';
import type { ResolvedEngine } from '../../agent/engines/types.js';
import type { Supervisor } from '../../agent/supervisor/supervisor.js';
import type { MemberOrder, Peer } from '../../contracts/activities.js';
import { alive, PYTHON, RAY, STANDIN, until } from '../standin/harness.js';
import { cleanUp, makeNode, never, orderFor, uniqueName } from '../supervisor/harness.js';

afterEach(cleanUp);

const KEY = 'e'.repeat(64);

async function supervised(engine: ResolvedEngine) {
  const node = makeNode();
  const gpuDir = path.join(node.workDir, 'gpus');
  const source = new SimulatedSource(Simulation.parse({ gpus: { count: 2 }, gpu_dir: gpuDir }), uniqueName());
  const uuids = (await source.snapshot()).gpus.map(g => g.uuid);
  const s = await node.supervisor({
    engines: { preflight: async () => ({ engine, secretEnv: {} }), renderer },
    gpus: source,
    network: async () => ({
      mgmtAddr: '127.0.0.1',
      announced: '127.0.0.1',
      mgmtInterface: 'lo',
      fabricHcas: [],
    }),
    slots: () => ({ 0: uuids[0]!, 1: uuids[1]! }),
    passEnv: { LLMGW_STANDIN_GPU_DIR: gpuDir, LLMGW_STANDIN_HEALTH_MS: '0', LLMGW_STANDIN_LOAD_MS: '100' },
    secrets: {
      engineKey: async () => ({ key: KEY, key_id: '00000000' }),
      envFromFiles: async () => ({}),
    },
    gpuReleaseTimeoutMs: 10_000,
  });
  return { s, source };
}

const sglang: ResolvedEngine = {
  name: 'sglang',
  type: 'sglang',
  bin: PYTHON,
  version: '0.5.23',
  launch_mode: null,
};

const statusOf = async (url: string, headers: Record<string, string> = {}) =>
  (await fetch(url, { headers }).catch(() => null))?.status;

it('runs an SGLang: its stages, its key from a file, its end', async () => {
  const { s, source } = await supervised(sglang);
  const order = orderFor(uniqueName());
  const { ports } = await s.launch(order);
  const stages: string[] = [];
  expect(await s.awaitReady(order, p => stages.push(p.stage), never)).toMatchObject({
    ready: true,
    model_ids: ['fake-model'],
  });
  expect(stages.length).toBeGreaterThan(0);
  const models = `http://127.0.0.1:${ports.http}/v1/models`;
  expect(await statusOf(models)).toBe(401);
  expect(await statusOf(models, { authorization: `Bearer ${KEY}` })).toBe(200);
  expect((await source.snapshot()).gpus[0]!.processes).toHaveLength(1);
  expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
});

/** Two members on this one node, which have met. */
async function gang(s: Supervisor, env: Record<string, string> = {}) {
  const replica = uniqueName();
  const orders = [0, 1].map((rank): MemberOrder => {
    const plain = orderFor(replica, { slots: [rank], env });
    const spec = { ...plain.spec, tensor_parallel: 2, nodes: 2 };
    return { ...plain, rank, nodes: 2, fabric: 'sim-ib', spec };
  });
  const prepared = await Promise.all(orders.map(order => s.prepare(order)));
  const peers = prepared.map(
    ({ ports }, rank): Peer => ({ rank, node: `n${rank}`, mgmt_addr: '127.0.0.1', ports }),
  );
  const [leader, follower] = await Promise.all(orders.map(order => s.spawn({ ...order, peers })));
  const stop = () => Promise.all(orders.map(order => s.stop({ ...order, reason: 'test' })));
  return { orders, prepared, leader: leader!, follower: follower!, stop };
}

const PROVEN = [0, 1].map(() => expect.objectContaining({ proof: 'strong', leaked: [] }));

it('joins two members of an SGLang gang, and ends the one that ignores SIGTERM', async () => {
  const { s } = await supervised(sglang);
  const { orders, prepared, leader, follower, stop } = await gang(s);
  expect(await s.awaitReady(orders[0]!, () => {}, never)).toMatchObject({ ready: true });
  await until(async () => (await statusOf(`http://127.0.0.1:${prepared[1]!.ports.http}/health`)) === 200);
  process.kill(leader.pid, 'SIGKILL');
  await until(() => !alive(leader.pid));
  // It lives on, says 200, and only SIGKILL ends it.
  expect(await stop()).toEqual(PROVEN);
  expect(alive(follower.pid)).toBe(false);
});

it.each<[string, number, Partial<ResolvedEngine>]>([
  // Rank 0 misses the member's connection. Ray's own process outlives its script's: only that end is told.
  ['mp', 2, { launch_mode: 'mp' }],
  ['ray', 1, { launch_mode: 'ray', ray: { bin: RAY, version: '2.60.0', client: false } }],
])('joins two members of a vLLM gang, launch mode %s', async (_mode, ends, how) => {
  const { s, source } = await supervised({
    ...{ name: 'vllm', type: 'vllm', bin: STANDIN, version: '0.33.0', launch_mode: 'mp' },
    ...how,
  });
  const { orders, follower, stop } = await gang(s, { LLMGW_STANDIN_LOST_MS: '10' });
  expect(await s.awaitReady(orders[0]!, () => {}, never)).toMatchObject({ ready: true });
  await until(async () => (await source.snapshot()).gpus.every(gpu => gpu.processes!.length > 0));
  process.kill(follower.pid, 'SIGKILL');
  await until(() => s.pending().length === ends);
  expect(await stop()).toEqual(PROVEN);
});

it('tells why an SGLang did not get ready', async () => {
  const { s } = await supervised(sglang);
  const order = orderFor(uniqueName(), { env: { LLMGW_STANDIN_FAIL: 'kv_cache' } });
  await s.launch(order);
  expect(await s.awaitReady(order, () => {}, never)).toMatchObject({
    ready: false,
    failure: {
      class: 'permanent',
      sentence: expect.stringContaining(
        'SGLang ended itself before it was ready, after a fatal error: no GPU memory',
      ),
    },
  });
  await s.stop({ ...order, reason: 'test' });
});

it('runs a command', async () => {
  const { s } = await supervised({
    name: 'other',
    type: 'command',
    bin: STANDIN,
    version: null,
    launch_mode: null,
    command: {
      argv: [
        STANDIN,
        'serve',
        '{model}',
        '--served-model-name={served_model_name}',
        '--host',
        '{host}',
        '--port={port}',
      ],
      probe: '/ping',
      env: {},
      api_key_env: 'VLLM_API_KEY',
    },
  });
  const order = orderFor(uniqueName());
  const { ports } = await s.launch(order);
  expect(await s.awaitReady(order, () => {}, never)).toMatchObject({
    ready: true,
    model_ids: ['fake-model'],
  });
  expect(await statusOf(`http://127.0.0.1:${ports.http}/v1/models`)).toBe(401);
  expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
});
