// Handles that an agent of another version wrote, or a disk spoilt: the engine goes on in each case (INV-5).
import { readFileSync, writeFileSync } from 'node:fs';
import { afterEach, expect, it } from 'vitest';
import { isAlive, readStat } from '../../agent/supervisor/proc.js';
import { cleanUp, handleFile, makeNode, never, orderFor, treePids, uniqueName } from './harness.js';

afterEach(cleanUp);

/** A ready engine whose agent has ended, with its handle changed. */
async function left(change: (text: string) => string | Buffer) {
  const node = makeNode();
  const order = orderFor(uniqueName());
  const first = await node.supervisor();
  const { pid } = await first.launch(order);
  expect(await first.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
  first.close();
  const file = handleFile(node, order);
  writeFileSync(file, change(readFileSync(file, 'utf8')));
  return { node, order, pid, start: readStat(pid)!.start };
}

for (const [what, change] of [
  ['is empty', () => ''],
  ['is cut off', (text: string) => text.slice(0, text.length / 2)],
  ['is no handle at all', () => 'null'],
  ['is bytes of something else', () => Buffer.from(Array.from({ length: 4_096 }, (_, i) => (i * 7) % 256))],
  ['is of a newer version', (text: string) => text.replace('"version": 1', '"version": 2')],
  ['has a state of a newer version', (text: string) => text.replace('"running"', '"suspended"')],
] as const) {
  it(`whose handle ${what} runs on, keeps the GPUs of the node, and ends by an order of its fence`, async () => {
    const { node, order, pid, start } = await left(change);
    const s = await node.supervisor();
    expect(s.reports()).toMatchObject([{ replica: order.replica, fence: order.fence, pid }]);
    expect(isAlive({ pid, start })).toBe(true);
    const other = orderFor(uniqueName(), { slots: [1] });
    await expect(s.launch(other)).rejects.toMatchObject({ code: 'GPU_HELD' });
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'processes', leaked: [] });
    expect(treePids(node.workDir)).toEqual([]);
    expect(await s.launch(other)).toMatchObject({ adopted: false });
  });
}

it('of an older agent, which had fewer fields, is adopted as it is', async () => {
  const { node, order, pid } = await left(text => {
    const whole = JSON.parse(text);
    const since = ['engine_version', 'launch_mode', 'scope', 'peers', 'left', 'process', 'last_failure'];
    for (const field of since) delete whole[field];
    return JSON.stringify(whole);
  });
  const s = await node.supervisor();
  expect(s.reports()).toMatchObject([{ pid, state: 'ready' }]);
  expect(await s.launch(order)).toMatchObject({ pid, adopted: true, engine_version: null });
  expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
});
