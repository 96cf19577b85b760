// What comes before its workflow is there, between two runs of it, or all at once. Cases temporal-03 and temporal-10.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { nodeWorkflowId, WORKFLOW_QUEUE } from '../../contracts/ids.js';
import type { NodeHello } from '../../contracts/messages.js';
import { eventually, type Installation, SHORT, TestServer } from './harness.js';
import { inventory } from './sim-node.js';

let server: TestServer;
let installation: Installation;
beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install({ ledger: false });
});
afterAll(() => server?.stop());

const hello = (node: string, session: number, gpus: number): NodeHello => ({
  session,
  instance: 'cp',
  peer_addr: null,
  boot_id: 'boot-1',
  protocol_version: 1,
  agent_version: '0.1.0',
  capabilities: [],
  proven: true,
  clock_offset_ms: 0,
  heartbeat_interval_ms: 5_000,
  inventory: inventory(node, gpus),
  engines: [],
});
const say = (node: string, msg: NodeHello) =>
  installation.client.workflow.signalWithStart('node', {
    workflowId: nodeWorkflowId(node),
    taskQueue: WORKFLOW_QUEUE,
    args: [],
    signal: 'hello',
    signalArgs: [msg],
  });

describe('a hello', () => {
  it('that comes before its node workflow exists, twice at once, is handled by a run that knows its state', async () => {
    await Promise.all([say('n-twice', hello('n-twice', 1, 2)), say('n-twice', hello('n-twice', 2, 3))]);
    const state = await eventually(
      () => installation.fleet.node('n-twice').catch(() => null),
      s => s?.session === 2,
      'the later session holds it',
    );
    // Both were seen, by one run: three GPUs, each with one slot.
    expect(state).toMatchObject({ highest_session: 2, state: 'connected' });
    expect(Object.keys(state!.slots)).toHaveLength(3);
    const runs = [];
    for await (const run of installation.client.workflow.list({ query: `WorkflowId = 'node/n-twice'` }))
      runs.push(run.runId);
    expect(new Set(runs).size).toBeLessThanOrEqual(1);
  });

  it('that comes when the run before has ended starts the next one, in the order in which it is told', async () => {
    await say('n-again', hello('n-again', 1, 1));
    const handle = installation.client.workflow.getHandle(nodeWorkflowId('n-again'));
    await handle.terminate('by the test');
    for (let session = 2; session < 8; session++) await say('n-again', hello('n-again', session, session));
    const state = await eventually(
      () => installation.fleet.node('n-again').catch(() => null),
      s => s?.session === 7,
      'the last one holds it',
    );
    expect(state!.slots).toMatchObject({ 0: 'GPU-n-again-0', 6: 'GPU-n-again-6' });
    const connected = state!.journal.map(j => /session (\d+)/.exec(j.text)?.[1]).filter(Boolean);
    expect(connected).toEqual(['2', '3', '4', '5', '6', '7']);
  });

  it('of a node that the ledger hears of before it is there itself is told when it begins', async () => {
    await say('n-early', hello('n-early', 1, 4));
    await installation.startLedger();
    await installation.row('n-early', r => r.gpus.total === 4, 'is in the ledger');
  });

  it('of an agent whose clock is ten minutes off counts from when it was heard (case temporal-13)', async () => {
    for (const [id, offset] of [
      ['n-ahead', 600_000],
      ['n-behind', -600_000],
    ] as const) {
      await say(id, { ...hello(id, 1, 1), clock_offset_ms: offset });
      const state = await eventually(
        () => installation.fleet.node(id).catch(() => null),
        s => s?.session === 1,
        'it is heard',
      );
      expect(state!.state).toBe('connected');
      expect(Math.abs(state!.heard_at - Date.now())).toBeLessThan(60_000);
      expect(state!.hello_at).toBe(state!.heard_at);
    }
  });
});

it('an engine start that is lost with its agent is taken up by the next attempt under the same fence, once (case temporal-06)', async () => {
  const apart = await server.install({ times: { ...SHORT, activityHeartbeatTimeout: 1_000 } });
  const node = await apart.node('n-killed');
  const launch = node.hold('launch');
  const loading = node.hold('await_ready');
  const replica = await apart.startReplica('killed', { placement: { nodes: [node.id] } });
  const order = await launch.called;
  await node.end({ kill: true });
  await node.start();
  await loading.called;
  await node.end({ kill: true });
  await node.start();
  expect(await replica.reaches('ready')).toMatchObject({ generation: 1, fence: order.fence });
  expect(new Set(node.calls.map(c => c.fence))).toEqual(new Set([order.fence]));
  expect([...node.engines.keys()]).toEqual([order.fence]);
  // What the killed attempts would say now finds no task: nothing comes of it.
  launch.refuse('SPAWN_FAILED', 'too late');
  loading.refuse('ENGINE_FAILED', 'too late');
  expect((await replica.status()).phase).toBe('ready');
});
