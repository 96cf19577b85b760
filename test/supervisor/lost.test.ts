// An engine that runs while its handle, or all of work_dir, was taken away.
import { rmSync } from 'node:fs';
import path from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { readStat } from '../../agent/supervisor/proc.js';
import { cleanUp, GPU_A, handleFile, makeNode, never, orderFor, uniqueName, until } from './harness.js';

afterEach(cleanUp);

/** It serves, its agent is away, and what `take` names is gone. */
async function lost(take: (workDir: string, handle: string) => string) {
  const node = makeNode();
  const order = orderFor(uniqueName());
  const agent = await node.supervisor();
  const { pid } = await agent.launch(order);
  await agent.awaitReady(order, () => {}, never);
  agent.close();
  node.gpus[0]!.processes = [{ pid, used_mib: 9_000 }];
  rmSync(take(node.workDir, handleFile(node, order)), { recursive: true });
  return { node, order, pid };
}

it('is reported by its mark when work_dir was emptied, keeps the GPUs, and is claimed by nobody', async () => {
  const { node, order, pid } = await lost(workDir => path.join(workDir, 'engines'));
  rmSync(path.join(node.workDir, 'fences'), { recursive: true });
  const s = await node.supervisor();
  const { replica, fence, rank } = order;
  expect(s.reports()).toMatchObject([{ replica, fence, rank, pid, gpus: [GPU_A], serves: null }]);
  expect(s.ownsPid(pid)).toBe(true);
  await expect(s.launch(orderFor(uniqueName(), { slots: [1] }))).rejects.toMatchObject({ code: 'GPU_HELD' });
  await expect(s.adopt({ ...order, process: null })).rejects.toMatchObject({ code: 'FENCE_CONFLICT' });
  await expect(s.launch(order)).rejects.toMatchObject({ code: 'STALE_FENCE' });
  expect((await makeNode().supervisor()).reports()).toEqual([]);
  s.close();
  expect((await node.supervisor()).reports()).toMatchObject([{ replica, pid }]);
});

it('is told of when it ends, without a line of its log, since nobody knows its secrets', async () => {
  const { node, order, pid } = await lost((_, handle) => handle);
  const s = await node.supervisor();
  expect(s.reports()).toMatchObject([{ replica: order.replica, pid }]);
  process.kill(pid, 'SIGKILL');
  await until(() => s.pending().length > 0);
  expect(s.pending()).toMatchObject([{ seq: 1, failure: { exit: { signal: 'SIGKILL' }, tail: [] } }]);
});

it('is stopped by its fence, with proof', async () => {
  for (const emptied of [true, false]) {
    const { node, order, pid } = await lost((dir, handle) => (emptied ? path.join(dir, 'engines') : handle));
    const s = await node.supervisor();
    node.gpus[0]!.processes = [];
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'processes', leaked: [] });
    expect(readStat(pid)?.state ?? 'Z').toBe('Z');
    expect(s.reports()).toEqual([]);
  }
});
