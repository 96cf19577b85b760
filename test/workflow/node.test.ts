import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { nodeWorkflowId } from '../../contracts/ids.js';
import { eventually, type Installation, TestServer } from './harness.js';
import { currentDetails } from './history.js';
import { gpuId, inventory, type SimNode } from './sim-node.js';

let server: TestServer;
let installation: Installation;

beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install();
});
afterAll(() => server?.stop());

const gone = (node: SimNode, session: number, reason = 'the connection closed') =>
  installation.fleet.gone(node.id, { session, instance: 'cp', reason });
const digest = (node: SimNode, session: number) =>
  installation.fleet.digest(node.id, { session, instance: 'cp', heartbeats: 3 });
const slotsOf = async (node: SimNode) =>
  (await installation.fleet.query<{ slots: Record<string, string> }>(nodeWorkflowId(node.id), 'welcome'))
    .slots;

describe('a node', () => {
  it('that says hello is in the ledger with what it has, and its slots are numbered', async () => {
    const node = await installation
      .silentNode('n-hello', 2)
      .hello({ proven: false, inventory: inventory('n-hello', 2, { labels: { rack: 'r12' } }) });
    const row = await installation.row(node.id, r => r.state === 'connected', 'is connected');
    expect(row).toMatchObject({
      labels: { rack: 'r12' },
      gpus: { total: 2, free: 2, held: 0, foreign: 0, unusable: 0 },
      conditions: [{ code: 'unproven' }],
    });
    expect(await slotsOf(node)).toEqual({ 0: gpuId(node.id, 0), 1: gpuId(node.id, 1) });
    const handle = installation.client.workflow.getHandle(nodeWorkflowId(node.id));
    expect(await currentDetails(handle)).toMatch(/^\*\*connected\*\* since .*held by cp, session 1/s);
  });

  it('whose stream ended is silent after three intervals, gets no new replica, and is taken again at its next hello', async () => {
    const node = await installation.silentNode('n-silent').start();
    await node.hello({ heartbeat_interval_ms: 100 });
    await gone(node, 1, 'no heartbeat arrived');
    const row = await installation.row(node.id, r => r.state === 'silent', 'is silent');
    expect(row.reason).toBe('no heartbeat for 3 intervals: stream ended: no heartbeat arrived');
    const replica = await installation.startReplica('waits', { placement: { nodes: [node.id] } });
    await eventually(replica.status, s => s.reason.includes('is silent'), 'it says why it waits');
    await node.hello();
    expect((await replica.reaches('ready')).members).toMatchObject([{ node: node.id }]);
    await installation.row(node.id, r => r.state === 'connected', 'is connected again');
  });

  it('whose stream ended and came back within three intervals was never silent', async () => {
    const node = await installation.silentNode('n-blink').hello({ heartbeat_interval_ms: 60_000 });
    await gone(node, 1);
    await node.hello();
    const { state, journal } = await installation.fleet.node(node.id);
    expect(state).toBe('connected');
    expect(journal.map(j => j.text).join()).not.toContain('silent');
  });

  it('that is silent and heard again is connected without a new hello', async () => {
    const node = await installation.silentNode('n-heard').hello({ heartbeat_interval_ms: 50 });
    await gone(node, 1);
    await installation.row(node.id, r => r.state === 'silent', 'is silent');
    await digest(node, 1);
    expect((await installation.row(node.id, r => r.state === 'connected', 'is back')).reason).toBe(
      'heartbeats arrive',
    );
  });

  it('is not moved by anything that an older session says', async () => {
    const node = await installation.silentNode('n-older').hello({ session: 7, heartbeat_interval_ms: 50 });
    await gone(node, 6);
    await digest(node, 6);
    await installation.fleet.inventory(node.id, { session: 6, inventory: inventory(node.id, 1) });
    await node.hello({ session: 5, inventory: inventory(node.id, 1), instance: 'cp-old' });
    expect(await installation.fleet.node(node.id)).toMatchObject({
      session: 7,
      highest_session: 7,
      instance: 'cp',
      state: 'connected',
      silent_at: null,
    });
    expect(Object.keys(await slotsOf(node))).toHaveLength(8);
    await installation.row(node.id, r => r.gpus.free === 8, 'has its eight GPUs');
  });

  it('never gives a slot to another GPU: one that vanished keeps its own, a new one takes the next', async () => {
    const node = await installation.silentNode('n-slots', 3).hello();
    const two = inventory(node.id, 3);
    two.gpus = [two.gpus[2]!, two.gpus[1]!, { ...two.gpus[0]!, uuid: 'GPU-new' }];
    two.gpus[1] = { ...two.gpus[1]!, usable: false, reason: 'fell off the bus' };
    await installation.fleet.inventory(node.id, { session: 1, inventory: two });
    expect(await slotsOf(node)).toEqual({
      0: gpuId(node.id, 0),
      1: gpuId(node.id, 1),
      2: gpuId(node.id, 2),
      3: 'GPU-new',
    });
    // Slot 0 has vanished and slot 1 is sick.
    expect(await installation.row(node.id, r => r.gpus.total === 4, 'has four slots')).toMatchObject({
      gpus: { total: 4, free: 2, unusable: 2 },
    });
    const replica = await installation.startReplica('on-what-is-left', {
      tensor_parallel: 2,
      placement: { nodes: [node.id], allow_pcie: true },
    });
    const launch = node.hold('launch');
    await node.start();
    expect((await launch.called).slots).toEqual([2, 3]);
    await replica.handle.terminate();
  });
});

it('every history of this file replays', async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThanOrEqual(8);
});
