// GPUs that a stop could not prove free (INV-2): looked at again by the next order, and let go by an operator's word.
import { readFileSync, writeFileSync } from 'node:fs';
import { afterEach, describe, expect, it } from 'vitest';
import type { GpuState } from '../../agent/supervisor/types.js';
import { cleanUp, GPU_A, gpu, handleFile, makeNode, orderFor, uniqueName } from './harness.js';

afterEach(cleanUp);

/** Stopped, and the driver goes on listing the engine's pid with its memory. */
async function leaked() {
  const node = makeNode();
  const order = orderFor(uniqueName());
  let looks = 0;
  const snapshot = async () => {
    looks++;
    return { gpus: structuredClone(node.gpus) };
  };
  const s = await node.supervisor({ gpus: { snapshot } });
  const { pid } = await s.launch(order);
  const held: Partial<GpuState> = { memory_used_mib: 70_000, processes: [{ pid, used_mib: 69_000 }] };
  Object.assign(node.gpus[0]!, held);
  const stop = { ...order, reason: 'test' };
  expect(await s.stop(stop)).toMatchObject({ leaked: [{ gpu: GPU_A, pids: [pid], used_mib: 70_000 }] });
  return { node, order, s, pid, stop, count: () => looks };
}

describe('a leaked GPU', () => {
  it('stays leaked as long as the driver lists what has died, also for an agent that starts anew', async () => {
    const { node, s, pid, stop, count } = await leaked();
    const before = count();
    expect(await s.stop(stop)).toMatchObject({ leaked: [{ pids: [pid] }] });
    // One look: whoever asks again has waited.
    expect(count()).toBe(before + 1);
    s.close();
    const next = await node.supervisor();
    expect(await next.stop(stop)).toMatchObject({ leaked: [{ pids: [pid] }] });
    node.gpus[0]!.memory_used_mib = 300;
    expect(await next.stop(stop)).toMatchObject({ leaked: [{ pids: [pid], used_mib: 300 }] });
  });

  it('is proven by a later order when it has come free, once and for all', async () => {
    const { node, s, stop } = await leaked();
    Object.assign(node.gpus[0]!, gpu(GPU_A, 0));
    const proven = await s.stop(stop);
    expect(proven).toMatchObject({ proof: 'strong', leaked: [] });
    node.gpus[0]!.memory_used_mib = 70_000;
    expect(await s.stop(stop)).toEqual(proven);
    expect(await (await node.supervisor()).stop(stop)).toEqual(proven);
  });

  it('is proven although a stranger has taken it since', async () => {
    const { node, s, stop } = await leaked();
    node.gpus[0]!.processes = [{ pid: process.pid, used_mib: 69_900 }];
    expect(await s.stop(stop)).toMatchObject({ proof: 'strong', leaked: [] });
  });

  it('is free after a reboot', async () => {
    const { node, order, s, stop } = await leaked();
    s.close();
    const file = handleFile(node, order);
    writeFileSync(
      file,
      JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), boot_id: 'another-boot' }),
    );
    expect(await (await node.supervisor()).stop(stop)).toMatchObject({ proof: 'rebooted', leaked: [] });
  });

  it('is free by an operator’s word whatever its figures say, and that is on record', async () => {
    const { node, order, s, pid, stop } = await leaked();
    const spoken = await s.stop({ ...stop, by_word: 'ada' });
    expect(spoken).toMatchObject({ proof: 'operator', leaked: [] });
    expect(await s.stop(stop)).toEqual(spoken);
    expect(JSON.parse(readFileSync(handleFile(node, order), 'utf8'))).toMatchObject({ proof: spoken });
    // Another engine isn't put beside 69 GiB all the same: they are a stranger's now, and it would only run out of memory.
    const next = orderFor(uniqueName());
    await expect(s.launch(next)).rejects.toMatchObject({ code: 'GPU_LEAKED' });
    // What the word is for: a figure that is wrong.
    node.gpus[0]!.processes = [{ pid, used_mib: 0 }];
    expect(await s.launch(next)).toMatchObject({ gpus: [GPU_A] });
  });

  it('gets the proof rather than the word where there is one, and the word ends what still runs', async () => {
    const node = makeNode();
    const order = orderFor(uniqueName(), { env: { FAKE_IGNORE_TERM: '1', FAKE_STRAY: '1' } });
    const s = await node.supervisor();
    await s.launch(order);
    const stop = { ...order, reason: 'test', by_word: 'ada' };
    expect(await s.stop(stop)).toMatchObject({ proof: 'strong', leaked: [] });
  });
});
