// INV-2: what makes a GPU free again, with every kind of source; and what keeps an engine off one.
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { afterEach, describe, expect, it, onTestFinished } from 'vitest';
import { judgeGpu, takeBaseline, weakest } from '../../agent/supervisor/gpu-guard.js';
import { describePid, readStat } from '../../agent/supervisor/proc.js';
import type { SupervisorOptions } from '../../agent/supervisor/types.js';
import {
  cleanUp,
  GPU_A,
  GPU_B,
  gpu,
  handleFile,
  makeNode,
  never,
  orderFor,
  uniqueName,
  until,
} from './harness.js';

afterEach(cleanUp);

const base = { uuid: GPU_A, used_mib: 100, foreign: [{ pid: 7, used_mib: 50 }] };
const at = (
  memory_used_mib: number | null,
  processes: { pid: number; used_mib: number | null }[] | null,
) => ({
  ...gpu(GPU_A, 0),
  memory_used_mib,
  processes,
});
const mine = (pid: number) => pid === 42;

describe('a GPU after its engine', () => {
  it('is free with both figures at the baseline', () => {
    expect(judgeGpu(base, at(612, [{ pid: 7, used_mib: 50 }]), mine)).toEqual({ free: true, kind: 'strong' });
  });

  it('is not free while memory is more than 512 MiB over the baseline', () => {
    expect(judgeGpu(base, at(613, [{ pid: 7, used_mib: 50 }]), mine)).toEqual({
      free: false,
      pids: [7],
      used_mib: 613,
    });
  });

  it('is not charged for what strangers took since', () => {
    const grown = [
      { pid: 7, used_mib: 1_050 },
      { pid: 8, used_mib: 2_000 },
    ];
    expect(judgeGpu(base, at(3_612, grown), mine)).toEqual({ free: true, kind: 'strong' });
    expect(judgeGpu(base, at(3_613, grown), mine).free).toBe(false);
  });

  it('is not free while a process of the tree is on its list, whatever the memory says', () => {
    expect(judgeGpu(base, at(0, [{ pid: 42, used_mib: null }]), mine)).toEqual({
      free: false,
      pids: [42],
      used_mib: 0,
    });
  });

  it('is judged by processes without a memory figure, by memory without a list, weakly without either', () => {
    expect(judgeGpu(base, at(null, []), mine)).toEqual({ free: true, kind: 'processes' });
    expect(judgeGpu({ ...base, used_mib: null }, at(9_999, []), mine)).toEqual({
      free: true,
      kind: 'processes',
    });
    expect(judgeGpu(base, at(612, null), mine)).toEqual({ free: true, kind: 'memory' });
    expect(judgeGpu(base, at(613, null), mine).free).toBe(false);
    const blind = { uuid: GPU_A, used_mib: null, foreign: null };
    expect(judgeGpu(blind, at(null, null), mine)).toEqual({ free: true, kind: 'weak' });
    expect(judgeGpu(blind, undefined, mine)).toEqual({ free: true, kind: 'weak' });
  });

  it('is not free while a source that had figures gives none', () => {
    const unknown = { free: false, pids: [], used_mib: null };
    expect(judgeGpu(base, at(null, null), mine)).toEqual(unknown);
    expect(judgeGpu(base, undefined, mine)).toEqual(unknown);
    expect(judgeGpu({ ...base, used_mib: null }, undefined, mine)).toEqual(unknown);
    expect(judgeGpu({ ...base, foreign: null }, undefined, mine)).toEqual(unknown);
  });

  it('has the weakest of several proofs', () => {
    expect(weakest(['strong', 'memory'])).toBe('memory');
    expect(weakest(['memory', 'weak'])).toBe('weak');
    expect(weakest([])).toBe('strong');
  });
});

it('names who is on a GPU without the secrets of its command line, also one that a sentence is cut in', async () => {
  const pad = 'x'.repeat(60);
  const child = spawn(process.execPath, [
    '-e',
    `setInterval(() => {}, 9e5)//${pad}`.slice(0, 60),
    '--api-key',
    'SUPERSECRET',
    `hf_${'a'.repeat(200)}`,
  ]);
  onTestFinished(() => void child.kill('SIGKILL'));
  await until(() => describePid(child.pid!).includes('--api-key'));
  const taken = at(9_000, [{ pid: child.pid!, used_mib: 9_000 }]);
  const refused = (): string => {
    try {
      takeBaseline([GPU_A], [taken], () => false);
      return '';
    } catch (e) {
      return (e as Error).message;
    }
  };
  expect(refused()).toContain(`pid ${child.pid} (${process.execPath}`);
  expect(refused()).not.toMatch(/SUPERSECRET|hf_/);
});

describe('an engine', () => {
  it('whose memory stays is reported as leaked with pid and figure, and its GPU is not given out again', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    await s.launch(order);
    node.gpus[0]!.memory_used_mib = 70_000;
    node.gpus[0]!.processes = [{ pid: 1, used_mib: 400 }];
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({
      leaked: [{ gpu: GPU_A, pids: [1], used_mib: 70_000 }],
    });
    node.gpus[0]!.processes = [{ pid: 1, used_mib: 70_000 }];
    await expect(s.launch(orderFor(uniqueName()))).rejects.toMatchObject({
      code: 'GPU_LEAKED',
      message: expect.stringContaining('pid 1 ('),
    });
  });

  it('is stopped with the proof that the source allows', async () => {
    const node = makeNode();
    node.gpus[0]!.processes = null;
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    await s.launch(order);
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'memory' });
  });

  it('without any figure is proven only when its tree has been gone for a while', async () => {
    const node = makeNode();
    Object.assign(node.gpus[0]!, { processes: null, memory_used_mib: null });
    const s = await node.supervisor({ weakProofMs: 300 });
    const order = orderFor(uniqueName());
    await s.launch(order);
    let looks = 0;
    node.options.gpus.snapshot = async () => {
      looks += 1;
      return { gpus: structuredClone(node.gpus) };
    };
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'weak' });
    expect(looks).toBeGreaterThan(1);
  });

  it('waits for memory that comes back late', async () => {
    const node = makeNode();
    const s = await node.supervisor({ gpuReleaseTimeoutMs: 20_000 });
    const order = orderFor(uniqueName());
    await s.launch(order);
    node.gpus[0]!.memory_used_mib = 70_000;
    const stopping = s.stop({ ...order, reason: 'test' });
    let looks = 0;
    node.options.gpus.snapshot = async () => {
      looks += 1;
      if (looks > 2) node.gpus[0]!.memory_used_mib = 4;
      return { gpus: structuredClone(node.gpus) };
    };
    expect(await stopping).toMatchObject({ proof: 'strong', leaked: [] });
  });

  it('is not proven gone by a driver that does not answer once', async () => {
    const node = makeNode();
    const s = await node.supervisor({ gpuReleaseTimeoutMs: 20_000, weakProofMs: 0 });
    const order = orderFor(uniqueName());
    await s.launch(order);
    let looks = 0;
    node.options.gpus.snapshot = async () => {
      if (++looks === 1) throw new Error('NVML: driver not loaded');
      return { gpus: structuredClone(node.gpus) };
    };
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
  });

  it('leaves its GPU leaked when the driver never answers again', async () => {
    const node = makeNode();
    const s = await node.supervisor({ weakProofMs: 0 });
    const order = orderFor(uniqueName());
    await s.launch(order);
    node.options.gpus.snapshot = () => Promise.reject(new Error('NVML: driver not loaded'));
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({
      leaked: [{ gpu: GPU_A, pids: [], used_mib: null }],
    });
  });

  it('is refused a GPU that is missing, sick, or unknown by slot, with the reason', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    await expect(s.launch(orderFor(uniqueName(), { slots: [5] }))).rejects.toMatchObject({
      code: 'GPU_GONE',
    });
    Object.assign(node.gpus[0]!, { usable: false, reason: 'Xid 79' });
    await expect(s.launch(orderFor(uniqueName()))).rejects.toThrow('Xid 79');
    node.gpus.splice(0, 1);
    await expect(s.launch(orderFor(uniqueName()))).rejects.toMatchObject({ code: 'GPU_GONE' });
  });

  it('is not refused for the little that a desktop takes', async () => {
    const node = makeNode();
    node.gpus[0]!.processes = [{ pid: 1, used_mib: 512 }];
    node.gpus[0]!.memory_used_mib = 600;
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    await s.launch(order);
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
  });

  it('on a GPU that was not granted fails its generation', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    node.gpus[1]!.processes = [{ pid, used_mib: 10 }];
    const result = await s.awaitReady(order, () => {}, never);
    expect(result).toMatchObject({ ready: false });
    expect(result.ready === false && result.failure.sentence).toContain('was not granted');
  });
});

describe('an engine whose handle can not be read', () => {
  /** It runs, and its agent starts anew. */
  async function unreadable(change: Partial<SupervisorOptions> = {}) {
    const node = makeNode();
    const order = orderFor(uniqueName());
    const first = await node.supervisor();
    const { pid } = await first.launch(order);
    first.close();
    writeFileSync(handleFile(node, order), '{');
    return { node, order, pid, s: await node.supervisor(change) };
  }

  it('keeps the GPUs of the node until it is stopped', async () => {
    const { node, order, pid, s } = await unreadable();
    const other = orderFor(uniqueName(), { slots: [1] });
    await expect(s.launch(other)).rejects.toMatchObject({
      code: 'GPU_HELD',
      message: expect.stringContaining(`${order.replica}/1000-0`),
    });
    expect(readStat(pid)).not.toBeNull();
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'processes', leaked: [] });
    expect(readStat(pid)?.state ?? 'Z').toBe('Z');
    expect(await s.launch(other)).toMatchObject({ gpus: [GPU_B] });
    expect((await node.supervisor()).reports()).toMatchObject([{ replica: other.replica }]);
  });

  it('leaves the GPU leaked that still lists its process', async () => {
    const { node, order, pid, s } = await unreadable();
    node.gpus[1]!.processes = [{ pid, used_mib: 9_000 }];
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({
      leaked: [{ gpu: GPU_B, pids: [pid], used_mib: 4 }],
    });
  });

  it('is looked for on the GPUs also when it has ended by itself', async () => {
    const { node, order, pid, s } = await unreadable();
    process.kill(pid, 'SIGKILL');
    await until(() => (readStat(pid)?.state ?? 'Z') === 'Z');
    node.gpus[0]!.processes = [{ pid, used_mib: 9_000 }];
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({
      leaked: [{ gpu: GPU_A, pids: [pid] }],
    });
  });

  it('is proven weakly, after a while, where there are no process lists or no answer', async () => {
    for (const blind of [false, true]) {
      const { node, order, s } = await unreadable({ weakProofMs: 200 });
      let looks = 0;
      node.options.gpus.snapshot = async () => {
        looks++;
        if (blind) throw new Error('NVML: driver not loaded');
        return { gpus: node.gpus.map((g, i) => (i === 0 ? { ...g, processes: null } : g)) };
      };
      expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'weak', leaked: [] });
      expect(looks).toBeGreaterThan(1);
    }
  });
});
