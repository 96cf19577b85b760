// What a supervisor keeps and says over weeks: nothing that grows, no line for every look.
import { afterEach, expect, it } from 'vitest';
import { HandleStore } from '../../agent/state/handle.js';
import { type Context, Runtimes } from '../../agent/supervisor/context.js';
import { pruneRuns } from '../../agent/supervisor/retention.js';
import { tombstone } from '../../agent/supervisor/tombstone.js';
import { cleanUp, makeNode, never, orderFor, uniqueName, until } from './harness.js';

afterEach(cleanUp);

it('says once that the end of an engine can not be recorded, however long the disk stays full', async () => {
  const node = makeNode();
  const errors: string[] = [];
  const disk = { full: true, looks: 0 };
  const s = await node.supervisor({
    log: { info() {}, warn() {}, error: (_, msg) => errors.push(msg) },
    fault: point => {
      if (point !== 'after_exit_seen' || !disk.full) return;
      disk.looks++;
      throw new Error('no space in work_dir');
    },
  });
  const order = orderFor(uniqueName());
  await s.launch(order);
  const stopping = s.stop({ ...order, reason: 'test' });
  await until(() => disk.looks > 5);
  expect(errors).toEqual(['the end of an engine could not be recorded']);
  disk.full = false;
  expect(await stopping).toMatchObject({ proof: 'strong' });
});

it('forgets in memory what is proven stopped', async () => {
  const s = await makeNode().supervisor();
  const { runtimes } = Reflect.get(s, 'ctx') as Context;
  const replica = uniqueName();
  for (const fence of [1_000, 2_000]) {
    const order = orderFor(replica, { fence });
    await s.launch(order);
    await s.awaitReady(order, () => {}, never);
    expect(runtimes.size).toBe(1);
    await s.stop({ ...order, reason: 'test' });
    expect(runtimes.size).toBe(0);
  }
});

it('keeps the record of leaked GPUs however many generations come, and else the first three and the last five', () => {
  const handles = new HandleStore(makeNode().workDir);
  const replica = uniqueName();
  const leak = [{ gpu: 'GPU-x', pids: [7], used_mib: 9_000 }];
  for (let fence = 1; fence <= 12; fence++) {
    const proof = { proof: 'strong' as const, at: '', leaked: fence === 5 ? leak : [] };
    handles.save({ ...tombstone({ replica, fence, rank: 0 }, 'boot'), state: 'stopped', proof });
  }
  pruneRuns({ handles, runtimes: new Runtimes(handles) } as Context);
  expect(handles.all().map(h => h.fence)).toEqual([1, 2, 3, 5, 8, 9, 10, 11, 12]);
});
