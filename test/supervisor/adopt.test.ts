// An engine that lives goes on under another order: that of a later run of its replica, or as an engine of llmgw at all.
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { SimulatedSource, Simulation } from '../../agent/discovery/simulated.js';
import { renderer } from '../../agent/engines/index.js';
import { readStat } from '../../agent/supervisor/proc.js';
import type { SupervisorOptions } from '../../agent/supervisor/types.js';
import type { MemberOrder } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import { specHash } from '../../contracts/spec.js';
import { reservedPort } from '../fakes/ports.js';
import { cleanUp, handleFile, makeNode, never, orderFor, uniqueName, until } from './harness.js';

const later = (order: MemberOrder, change: Partial<MemberOrder> = {}) => ({
  ...order,
  generation: 7,
  ...change,
});
const claimOf = (order: MemberOrder) => ({ ...order, process: null });
const gone = (pid: number) => (readStat(pid)?.state ?? 'Z') === 'Z';

describe('a later run of a replica that claims its engine', () => {
  afterEach(cleanUp);

  it('finds it ready at once under its own order, and orders go on as for any engine', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const first = orderFor(uniqueName());
    const { pid, ports } = await s.launch(first);
    await s.awaitReady(first, () => {}, never);
    const order = later(first);
    expect(await s.adopt(claimOf(order))).toMatchObject({ pid, ports, adopted: true });
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
    expect(await s.launch(order)).toMatchObject({ pid, adopted: true });
    expect(JSON.parse(readFileSync(handleFile(node, order), 'utf8'))).toMatchObject({ generation: 7, order });
    await expect(s.launch(first)).rejects.toMatchObject({ code: 'FENCE_CONFLICT' });
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
    expect(gone(pid)).toBe(true);
  });

  it('claims it twice as once, also over a restart of the agent, and while it loads', async () => {
    const node = makeNode();
    const before = await node.supervisor();
    const first = orderFor(uniqueName(), { env: { FAKE_LOAD_MS: '200' } });
    const { pid } = await before.launch(first);
    const order = later(first);
    const once = await before.adopt(claimOf(order));
    expect(await before.adopt(claimOf(order))).toEqual(once);
    before.close();
    const s = await node.supervisor();
    expect(await s.adopt(claimOf(order))).toEqual(once);
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
    await expect(s.launch(first)).rejects.toMatchObject({ code: 'FENCE_CONFLICT' });
  });

  it('is refused when it has another spec or other GPUs, and the engine keeps its order', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const first = orderFor(uniqueName());
    const { pid } = await s.launch(first);
    const spec = { ...first.spec, args: ['--max-model-len', '8192'] };
    for (const change of [{ spec }, { slots: [1] }]) {
      await expect(s.adopt(claimOf(later(first, change)))).rejects.toMatchObject({ code: 'FENCE_CONFLICT' });
    }
    expect(await s.launch(first)).toMatchObject({ pid, adopted: true });
  });

  it('is told that there is none when it was never there, never started, stopped, has failed or ended', async () => {
    const node = makeNode();
    const s = await node.supervisor({ deadAfterMs: 0, healthIntervalMs: 20 });
    const unknown = { code: 'ENGINE_UNKNOWN' };
    const never1 = orderFor(uniqueName());
    await expect(s.adopt(claimOf(never1))).rejects.toMatchObject(unknown);
    const prepared = orderFor(uniqueName());
    await s.prepare(prepared);
    await expect(s.adopt(claimOf(prepared))).rejects.toMatchObject(unknown);
    await s.stop({ ...prepared, reason: 'test' });
    await expect(s.adopt(claimOf(prepared))).rejects.toMatchObject(unknown);
    const dead = path.join(node.workDir, 'dead');
    const failing = orderFor(uniqueName(), { env: { FAKE_DEAD_FILE: dead } });
    const { pid } = await s.launch(failing);
    await s.awaitReady(failing, () => {}, never);
    writeFileSync(dead, '');
    await until(() => s.pending().length > 0);
    await expect(s.adopt(claimOf(later(failing)))).rejects.toMatchObject(unknown);
    process.kill(pid, 'SIGKILL');
    await until(() => gone(pid));
    await expect(s.adopt(claimOf(later(failing)))).rejects.toMatchObject(unknown);
  });

  it('is refused when the node has seen a newer fence of the replica', async () => {
    const s = await makeNode().supervisor();
    const first = orderFor(uniqueName());
    const { pid } = await s.launch(first);
    await expect(s.launch({ ...first, fence: 2_000, slots: [1] })).rejects.toMatchObject({
      code: 'GPU_HELD',
    });
    await expect(s.adopt(claimOf(first))).rejects.toMatchObject({ code: 'STALE_FENCE' });
    expect(gone(pid)).toBe(false);
  });
});

describe('an engine in a report', () => {
  afterEach(cleanUp);
  const on = (announced: string | null): Partial<SupervisorOptions> => ({
    network: async () => ({ mgmtAddr: '127.0.0.1', announced, mgmtInterface: null, fabricHcas: [] }),
    secrets: { engineKey: async () => ({ key: 'k', key_id: 'kid' }), envFromFiles: async () => ({}) },
  });

  it('tells what routers need, at the address that was announced when it was prepared', async () => {
    const node = makeNode();
    const s = await node.supervisor(on('fd00::7'));
    const order = orderFor(uniqueName());
    const { ports } = await s.launch(order);
    const serves = {
      model: 'fake-model',
      aliases: [],
      url: `http://[fd00::7]:${ports.http}`,
      key_id: 'kid',
      revision: specHash(order.spec),
    };
    expect(s.reports()).toMatchObject([{ serves }]);
    s.close();
    expect((await node.supervisor(on('10.0.0.9'))).reports()).toMatchObject([{ serves }]);
  });

  it('serves nothing that can be told where the node has no address', async () => {
    const s = await makeNode().supervisor(on(null));
    await s.launch(orderFor(uniqueName()));
    expect(s.reports()).toMatchObject([{ serves: null }]);
  });
});

const bin = path.resolve(import.meta.dirname, '../../bin/llmgw-standin-vllm.mjs');

describe('a process that an operator started', () => {
  const byHand: ChildProcess[] = [];
  const gpuDirs: string[] = [];
  afterEach(() => {
    for (const child of byHand.splice(0)) child.kill('SIGKILL');
    for (const dir of gpuDirs.splice(0)) {
      for (const file of existsSync(dir) ? readdirSync(dir) : []) {
        const { pid, start_time } = JSON.parse(readFileSync(path.join(dir, file), 'utf8'));
        if (readStat(pid)?.start === String(start_time)) process.kill(pid, 'SIGKILL');
      }
      rmSync(dir, { recursive: true, force: true });
    }
    cleanUp();
  });

  async function scene(change: Partial<SupervisorOptions> = {}) {
    const node = makeNode();
    const gpuDir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-gpus-'));
    gpuDirs.push(gpuDir);
    const source = new SimulatedSource(
      Simulation.parse({ gpus: { count: 2 }, gpu_dir: gpuDir }),
      uniqueName(),
    );
    const uuids = (await source.snapshot()).gpus.map(g => g.uuid);
    const options: Partial<SupervisorOptions> = {
      engines: {
        preflight: async () => ({
          engine: { name: 'vllm', type: 'vllm', bin, version: '0.33.0', launch_mode: 'mp' },
          secretEnv: {},
        }),
        renderer,
      },
      gpus: source,
      slots: () => ({ 0: uuids[0]!, 1: uuids[1]! }),
      passEnv: { LLMGW_STANDIN_GPU_DIR: gpuDir },
      network: async () => ({
        mgmtAddr: '127.0.0.1',
        announced: '127.0.0.1',
        mgmtInterface: null,
        fabricHcas: [],
      }),
      gpuReleaseTimeoutMs: 10_000,
      ...change,
    };
    /** `vllm serve`, as an operator types it. */
    async function vllm(o: { env?: Record<string, string>; host?: string; own?: boolean } = {}) {
      const port = await reservedPort();
      const host = o.host ?? '127.0.0.1';
      const args = [bin, 'serve', 'fake-model', '--host', host, '--port', String(port)];
      const env = {
        PATH: process.env.PATH,
        CUDA_VISIBLE_DEVICES: '0',
        LLMGW_STANDIN_GPU_DIR: gpuDir,
        ...o.env,
      };
      const child = spawn(process.execPath, args, { env, stdio: 'ignore', detached: o.own !== false });
      byHand.push(child);
      const up = () =>
        fetch(`http://127.0.0.1:${port}/health`).then(
          r => r.ok,
          () => false,
        );
      while (!(await up())) await new Promise(resolve => setTimeout(resolve, 10));
      return { pid: child.pid!, port };
    }
    return { node, source, uuids, options, vllm, s: await node.supervisor(options) };
  }

  it('becomes an engine: served from where it is, ready at once, kept over restarts, stopped with proof', async () => {
    const { node, s, source, uuids, options, vllm } = await scene();
    const named = await vllm();
    const order = orderFor(uniqueName());
    expect(await s.look(named)).toEqual({ slots: [0], engine: null });
    const adopted = await s.adopt({ ...order, process: named });
    expect(adopted).toEqual({
      gpus: [uuids[0]],
      ports: { http: named.port },
      mgmt_addr: '127.0.0.1',
      key_id: null,
      stop_ms: expect.any(Number),
      engine_version: '0.33.0',
      launch_mode: 'mp',
      pid: named.pid,
      adopted: true,
    });
    expect(await s.look(named)).toEqual({
      slots: [0],
      engine: { replica: order.replica, fence: order.fence },
    });
    s.close();
    const next = await node.supervisor(options);
    expect(await next.adopt({ ...order, process: named })).toEqual(adopted);
    expect(await next.awaitReady(order, () => {}, never)).toMatchObject({
      ready: true,
      pid: named.pid,
      model_ids: ['fake-model'],
    });
    expect(next.reports()).toMatchObject([
      { state: 'ready', pid: named.pid, serves: { url: `http://127.0.0.1:${named.port}`, key_id: null } },
    ]);
    expect(next.ownsPid(named.pid)).toBe(true);
    expect(await next.tail(order.replica)).toEqual([expect.stringContaining('no log of this engine')]);
    expect(await next.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
    expect(gone(named.pid)).toBe(true);
    expect((await source.snapshot()).gpus[0]!.processes).toEqual([]);
    expect(next.pending()).toEqual([]);
  });

  it('is claimed by a later run like any engine', async () => {
    const { s, vllm } = await scene();
    const named = await vllm();
    const order = orderFor(uniqueName());
    await s.adopt({ ...order, process: named });
    const again = later(order);
    expect(await s.adopt(claimOf(again))).toMatchObject({ pid: named.pid, adopted: true });
    expect(await s.awaitReady(again, () => {}, never)).toMatchObject({ ready: true, pid: named.pid });
  });

  it('whose end, while the agent is away too, is told once, and that nothing is known of its output', async () => {
    const { node, s, options, vllm } = await scene();
    const named = await vllm();
    const order = orderFor(uniqueName());
    await s.adopt({ ...order, process: named });
    s.close();
    process.kill(named.pid, 'SIGKILL');
    await until(() => gone(named.pid));
    const next = await node.supervisor(options);
    expect(next.pending()).toMatchObject([
      {
        seq: 1,
        failure: {
          class: 'retry',
          exit: { code: null, signal: null },
          sentence: expect.stringContaining('its output are not known'),
          tail: [],
        },
      },
    ]);
    expect(await next.awaitReady(order, () => {}, never)).toMatchObject({ ready: false });
    const generation2 = later(order, { fence: 2_000 });
    await next.launch(generation2);
    expect(await next.awaitReady(generation2, () => {}, never)).toMatchObject({ ready: true });
    expect(next.pending()).toHaveLength(1);
  });

  it('is ended with all that it started, also what an earlier agent saw of it and its own end let go', async () => {
    const { node, s, source, options, vllm } = await scene();
    const env = {
      LLMGW_STANDIN_CHILDREN: '2',
      LLMGW_STANDIN_CHILDREN_SETSID: '1',
      LLMGW_STANDIN_NEVER_END_ON_TERM: 'always',
    };
    const deaf = await vllm({ env, own: false });
    const first = orderFor(uniqueName());
    await s.adopt({ ...first, process: deaf });
    expect(await s.stop({ ...first, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
    expect((await source.snapshot()).gpus[0]!.processes).toEqual([]);

    const killed = await vllm({ env });
    const second = orderFor(uniqueName());
    await s.adopt({ ...second, process: killed });
    s.close();
    process.kill(killed.pid, 'SIGKILL');
    await until(() => gone(killed.pid));
    expect((await source.snapshot()).gpus[0]!.processes).toHaveLength(2);
    const next = await node.supervisor(options);
    expect(await next.stop({ ...second, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
    expect((await source.snapshot()).gpus[0]!.processes).toEqual([]);
  });

  const refusal = (p: Promise<unknown>): Promise<{ code: string; message: string }> =>
    p.then(
      () => {
        throw new Error('it was taken');
      },
      e => e,
    );

  it('is refused with what is wrong: no process, init, the agent, no listener, the listener of another', async () => {
    const { s, vllm } = await scene();
    const order = orderFor(uniqueName());
    const [one, other] = [await vllm(), await vllm({ env: { CUDA_VISIBLE_DEVICES: '1' } })];
    const free = await reservedPort();
    const cases: [{ pid: number; port: number }, string][] = [
      [{ pid: 4_194_304, port: one.port }, 'there is no process 4194304'],
      [{ pid: 1, port: one.port }, 'pid 1 is the init'],
      [{ pid: process.pid, port: one.port }, 'is this agent'],
      [{ pid: process.ppid, port: one.port }, 'this agent'],
      [{ pid: one.pid, port: free }, `nothing listens on port ${free}`],
      [{ pid: one.pid, port: other.port }, `listened on by pid ${other.pid}`],
    ];
    for (const [named, words] of cases) {
      for (const job of [s.look(named), s.adopt({ ...order, process: named })]) {
        expect(await refusal(job)).toMatchObject({
          code: 'ADOPT_REFUSED',
          message: expect.stringContaining(words),
        });
      }
    }
    expect(s.reports()).toEqual([]);
  });

  it('is refused when it serves something else, wants a key, has other GPUs, or fits no engine of the node', async () => {
    const { s, node, options, vllm } = await scene();
    const order = (change: object = {}, slots = [0]) => {
      const o = orderFor(uniqueName(), { slots });
      return { ...o, spec: { ...o.spec, ...change } };
    };
    const named = await vllm();
    const locked = await vllm({ env: { VLLM_API_KEY: 'x' } });
    const both = await vllm({ env: { CUDA_VISIBLE_DEVICES: '0,1' } });
    const bare = await vllm({ env: { CUDA_VISIBLE_DEVICES: '' } });
    const cases: [() => Promise<unknown>, string][] = [
      [() => s.adopt({ ...order(), process: locked }), 'without --api-key'],
      [() => s.adopt({ ...order({ served_model_name: 'qwen' }), process: named }), 'serves fake-model'],
      [() => s.adopt({ ...order({ aliases: ['best'] }), process: named }), 'the spec says best'],
      [() => s.adopt({ ...order({}, [1]), process: named }), 'the slots 1 that were granted'],
      [() => s.adopt({ ...order(), process: both }), 'the process has the GPUs'],
      [() => s.adopt({ ...order(), process: bare }), '(none)'],
      [() => s.look(bare), 'none of the GPUs'],
    ];
    for (const [job, words] of cases) {
      const error = await refusal(job());
      expect(error.message).toContain(words);
      expect(error.code).toBe('ADOPT_REFUSED');
    }
    const preflight = () => Promise.reject(new LlmgwError('ENGINE_MISSING', 'no engine vllm here'));
    const without = await node.supervisor({ ...options, engines: { preflight, renderer } });
    expect(await refusal(without.adopt({ ...order(), process: named }))).toMatchObject({
      code: 'ADOPT_REFUSED',
      message: expect.stringContaining('no engine vllm here'),
    });
  });

  it('is refused when routers could not reach it, and taken when it listens on every address', async () => {
    const network = async () => ({
      mgmtAddr: '127.0.0.2',
      announced: '127.0.0.2',
      mgmtInterface: null,
      fabricHcas: [],
    });
    const { s, vllm } = await scene({ network });
    const order = orderFor(uniqueName());
    expect(await refusal(s.adopt({ ...order, process: await vllm() }))).toMatchObject({
      code: 'ADOPT_REFUSED',
      message: expect.stringContaining('start the engine with --host 127.0.0.2'),
    });
    const everywhere = await vllm({ host: '0.0.0.0', env: { CUDA_VISIBLE_DEVICES: '1' } });
    const open = { ...order, slots: [1] };
    expect(await refusal(s.adopt({ ...open, process: everywhere }))).toMatchObject({
      code: 'FENCE_CONFLICT',
    });
    const fresh = { ...open, fence: 2_000 };
    expect(await s.adopt({ ...fresh, process: everywhere })).toMatchObject({ mgmt_addr: '127.0.0.2' });
    expect(s.reports()).toMatchObject([{ serves: { url: `http://127.0.0.2:${everywhere.port}` } }]);
  });

  it('is refused when it is an engine of llmgw, its child, or taken by another replica in the same moment', async () => {
    const { s, vllm } = await scene();
    const ours = orderFor(uniqueName(), { slots: [1] });
    const { pid, ports } = await s.launch(ours);
    await s.awaitReady(ours, () => {}, never);
    const named = { pid, port: ports.http! };
    expect(await s.look(named)).toEqual({ slots: [1], engine: { replica: ours.replica, fence: ours.fence } });
    const order = orderFor(uniqueName(), { slots: [1] });
    for (const taken of [pid, readStat(pid)!.ppid]) {
      expect(await refusal(s.adopt({ ...order, process: { pid: taken, port: named.port } }))).toMatchObject({
        code: 'ADOPT_REFUSED',
        message: expect.stringContaining(`replica ${ours.replica}, fence ${ours.fence}`),
      });
    }
    const third = await vllm({ env: { CUDA_VISIBLE_DEVICES: '1' } });
    expect(await refusal(s.adopt({ ...order, process: third }))).toMatchObject({
      code: 'ADOPT_REFUSED',
      message: expect.stringContaining(`held by replica ${ours.replica}`),
    });
    const free = await vllm();
    const race = [orderFor(uniqueName()), orderFor(uniqueName())].map(o => s.adopt({ ...o, process: free }));
    const results = await Promise.allSettled(race);
    expect(results.map(r => r.status).sort()).toEqual(['fulfilled', 'rejected']);
    expect(results.find(r => r.status === 'rejected')!.reason).toMatchObject({ code: 'ADOPT_REFUSED' });
  });

  it('is proven gone by memory alone where the node has no process lists', async () => {
    const { source, node, options, vllm } = await scene();
    const blind = {
      snapshot: async () => ({ gpus: (await source.snapshot()).gpus.map(g => ({ ...g, processes: null })) }),
    };
    const s = await node.supervisor({ ...options, gpus: blind });
    const named = await vllm();
    expect(await s.look(named)).toEqual({ slots: [], engine: null });
    const order = orderFor(uniqueName());
    await s.adopt({ ...order, process: named });
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'memory', leaked: [] });
  });
});
