// Workflows that people terminate and reset in the UI, a ledger that is gone, a node that is lost (INV-1, INV-5): no GPU
// gets a second holder, no healthy engine is stopped, nothing waits for ever.
import type { WorkflowUpdateFailedError } from '@temporalio/client';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { FLEET_ID, replicaWorkflowId } from '../../contracts/ids.js';
import type { FleetStatus } from '../../contracts/status.js';
import { eventually, type Installation, TestServer } from './harness.js';
import type { SimNode } from './sim-node.js';

let server: TestServer;
let installation: Installation;
let node: SimNode;

beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server.stop());
beforeEach(async () => {
  installation = await server.install();
  node = await installation.node('n1');
});

const grants = async () => Object.values((await installation.fleet.ledger()).grants);
const fleetStatus = (): Promise<FleetStatus> => installation.fleet.query(FLEET_ID, 'status');
const handleOf = (name: string) => installation.client.workflow.getHandle(replicaWorkflowId(name));
/** As the janitor tells it. */
const closed = async (name: string) => {
  const { status, raw } = await handleOf(name).describe();
  const { firstRunId, closeTime } = raw.workflowExecutionInfo!;
  await installation.ledgerHandle().signal('closed', {
    closed: [
      {
        replica: name,
        first_run_id: firstRunId,
        status: status.name,
        closed_at: Number(closeTime!.seconds) * 1_000 + 999,
      },
    ],
  });
};
/** As a control plane does that finds another ledger. */
const anew = async () => {
  await installation.startLedger();
  await node.hello({ session: node.session });
};

describe('a ledger that was terminated', () => {
  it('begins anew with every grant, endpoint and wait, and no engine is touched', async () => {
    const replicas = await Promise.all(['a', 'b', 'c'].map(n => installation.startReplica(n)));
    const before = await Promise.all(replicas.map(r => r.reaches('ready')));
    const waits = await installation.startReplica('waits', { tensor_parallel: 8 });
    await eventually(
      async () => (await waits.status()).reason,
      reason => reason.includes('needs 8 GPUs'),
      'it waits',
    );
    const { version } = await installation.fleet.routes();
    await installation.ledgerHandle().terminate('by the test');
    await anew();
    await eventually(installation.fleet.routes, t => t.endpoints.length === 3, 'the table is whole');
    expect((await installation.fleet.routes()).version).toBeGreaterThan(version);
    expect((await grants()).map(g => g.fence).sort()).toEqual(before.map(s => s.fence).sort());
    expect(await Promise.all(replicas.map(r => r.status()))).toEqual(
      before.map(s => expect.objectContaining({ phase: 'ready', fence: s.fence, generation: 1 })),
    );
    expect(node.countOf('launch')).toBe(3);
    expect(node.countOf('stop')).toBe(0);
    await Promise.all(replicas.map(r => r.handle.cancel()));
    expect(await waits.reaches('ready')).toMatchObject({ generation: 1 });
  });

  it('while replicas start, restart and end gives no GPU two holders', { timeout: 60_000 }, async () => {
    const names = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'];
    const replicas = await Promise.all(names.map(n => installation.startReplica(n)));
    await eventually(
      async () => node.countOf('launch'),
      n => n >= 3,
      'some have started',
    );
    const first = [...node.engines.values()][0]!;
    const exit = node.exit(first.replica, first.fence);
    await installation.ledgerHandle().terminate('by the test');
    await Promise.all([replicas[9]!.handle.cancel(), anew(), exit]);
    const wanted = names.length - 1;
    await eventually(
      async () => {
        // As a control plane does that has its stream: one that ended unheard leaves the node in doubt until then.
        const { nodes } = await installation.fleet.holders();
        if (!nodes.includes('n1')) await node.hello({ session: node.session });
        const all = await Promise.all(replicas.slice(0, 9).map(r => r.status()));
        return all.filter(s => s.phase === 'ready').length;
      },
      ready => ready >= Math.min(8, wanted),
      'eight of nine serve on eight GPUs',
      40_000,
    );
    const held = (await grants()).flatMap(g => g.members.flatMap(m => m.slots.map(s => `${m.node}/${s}`)));
    expect(new Set(held).size).toBe(held.length);
    const running = [...node.engines.values()].flatMap(e => e.slots);
    expect(new Set(running).size).toBe(running.length);
  });

  it('keeps the engines that no workflow speaks for: held, routed, shown, and claimed by a run of their name', async () => {
    const replica = await installation.startReplica('orphan');
    const { fence } = await replica.reaches('ready');
    await replica.handle.terminate('by the test');
    await installation.ledgerHandle().terminate('by the test');
    await anew();
    await eventually(fleetStatus, s => s.unclaimed.length === 1, 'it is unclaimed');
    // No table while it is rebuilt.
    const table = await eventually(installation.fleet.routes, t => !t.rebuilding, 'it is whole');
    expect(table.endpoints).toMatchObject([{ replica: 'orphan', fence }]);
    await installation.row(
      'n1',
      r => r.gpus.free === 7 && r.conditions.some(c => c.code === 'unclaimed'),
      'shows it',
    );
    const next = await (await installation.startReplica('orphan')).reaches('ready');
    expect(next.fence).toBe(fence);
    expect(node.countOf('stop')).toBe(0);
    expect((await fleetStatus()).unclaimed).toEqual([]);
  });
});

describe('a replica whose run was', () => {
  it('terminated has its engine stopped by the ledger once that is known, and its GPUs given back', async () => {
    const replica = await installation.startReplica('t');
    await replica.reaches('ready');
    await replica.handle.terminate('by the test');
    await closed('t');
    await installation.row('n1', r => r.gpus.free === 8, 'is free');
    expect(node.calls.at(-1)).toMatchObject({
      activity: 'stop',
      reason: expect.stringContaining('terminated'),
    });
    expect((await installation.fleet.routes()).endpoints).toEqual([]);
  });

  it('reset to its beginning claims the engine that runs', async () => {
    const replica = await installation.startReplica('r');
    const { fence } = await replica.reaches('ready');
    await node.exit('r', fence!);
    const second = await replica.reaches('ready', 2);
    await reset('r', 'first');
    const back = await eventually(
      () =>
        installation.fleet
          .query<{ phase: string; fence: number }>(replicaWorkflowId('r'), 'status')
          .catch(() => null),
      s => s?.phase === 'ready' && s.fence === second.fence,
      'it serves with the engine of generation 2',
      40_000,
    );
    expect(back?.fence).toBe(second.fence);
    expect([...node.engines.keys()]).toEqual([second.fence]);
    expect((await grants()).map(g => g.fence)).toEqual([second.fence]);
  });

  it('reset to where it believes in an engine of long ago takes the present one when it is asked', async () => {
    const replica = await installation.startReplica('r');
    const { fence } = await replica.reaches('ready');
    const { runId } = (await handleOf('r').describe()) as { runId: string };
    const events = Number((await handleOf('r').describe()).historyLength);
    await node.exit('r', fence!);
    const second = await replica.reaches('ready', 2);
    expect(runId).toBeTruthy();
    await reset('r', events);
    // As the janitor does, which sees a run that the grant does not know.
    await handleOf('r').signal('ledger', { kind: 'assert', key: '' });
    await eventually(
      () =>
        installation.fleet
          .query<{ phase: string; fence: number }>(replicaWorkflowId('r'), 'status')
          .catch(() => null),
      s => s?.phase === 'ready' && s.fence === second.fence,
      'it serves with the engine of generation 2',
      40_000,
    );
    expect([...node.engines.keys()]).toEqual([second.fence]);
  });
});

/** `at`: the first workflow task, or the last one that ended before this event. No signal is applied again. */
async function reset(name: string, at: 'first' | number): Promise<void> {
  const handle = handleOf(name);
  const { runId } = (await handle.describe()) as { runId: string };
  const history = await handle.fetchHistory();
  const tasks = (history.events ?? [])
    .filter(e => e.workflowTaskCompletedEventAttributes != null)
    .map(e => Number(e.eventId));
  const target = at === 'first' ? tasks[0]! : tasks.filter(id => id <= at).at(-1)!;
  await installation.client.workflowService.resetWorkflowExecution({
    namespace: installation.namespace,
    workflowExecution: { workflowId: replicaWorkflowId(name), runId },
    reason: 'by the test',
    // The id of the event after which the run goes on: that of a completed workflow task.
    workflowTaskFinishEventId: target as never,
    requestId: `${name}-${target}`,
    // RESET_REAPPLY_TYPE_NONE
    resetReapplyType: 2,
  });
}

describe('a node that is lost', () => {
  it('is left after on_node_loss.replace_after, and what it still runs is stopped when it is back', async () => {
    const other = await installation.node('n2');
    const replica = await installation.startReplica('moves', {
      placement: { nodes: [] },
      on_node_loss: { replace_after: '1s' },
    });
    const { fence, members } = await replica.reaches('ready');
    const [home, away] = members[0]!.node === 'n1' ? [node, other] : [other, node];
    await home.end();
    const row = (await installation.fleet.ledger()).nodes[home.id]!;
    const lost = {
      ...row.facts,
      running: [],
      seq: Date.now() + 60_000,
      state: 'lost',
      reason: 'dark',
      since: Date.now(),
    };
    await installation.ledgerHandle().signal('node', lost);
    const next = await replica.reaches('ready', 2);
    expect(next.members[0]!.node).toBe(away.id);
    expect((await grants()).map(g => g.fence).sort()).toEqual([fence, next.fence].sort());
    await home.start();
    await installation
      .ledgerHandle()
      .signal('node', { ...lost, seq: lost.seq + 1, state: 'connected', reason: 'back' });
    await installation.row(home.id, r => r.gpus.free === 8, 'is free');
    expect(home.calls.at(-1)).toMatchObject({ activity: 'stop', fence });
    expect(await replica.status()).toMatchObject({ phase: 'ready', generation: 2 });
  });

  it('is forgotten by an operator only when it does not answer', async () => {
    const refusal = (id: string): Promise<unknown> =>
      installation
        .ledgerHandle()
        .executeUpdate('forget', { args: [{ node: id, by: 'ada' }] })
        .then(
          () => null,
          err => (err as WorkflowUpdateFailedError).cause,
        );
    // The tests before may have taken so long that it is silent by now.
    await node.hello({ session: node.session });
    await installation.row('n1', r => r.state === 'connected', 'is heard');
    expect(await refusal('n1')).toMatchObject({ type: 'NODE_IN_USE' });
    expect(await refusal('n9')).toMatchObject({ type: 'NODE_NOT_FOUND' });
  });
});

it('an operator sets and releases the brake', async () => {
  const brake = (on: boolean) =>
    installation.ledgerHandle().executeUpdate('brake', { args: [{ on, by: 'ada' }] });
  expect(await brake(true)).toMatchObject({ on: true, by: 'operator' });
  expect((await fleetStatus()).brake.on).toBe(true);
  expect(await brake(false)).toMatchObject({ on: false });
});

it('a process that llmgw did not start is adopted with the GPUs that it has', async () => {
  node.looks = { slots: [2], engine: null };
  await installation.client.workflow.start('replica', {
    taskQueue: 'llmgw',
    workflowId: replicaWorkflowId('by-hand'),
    args: [{ model: 'm', engine: 'vllm' }, { adopt: { node: 'n1', pid: 4_711, port: 8_000 } }],
  });
  await eventually(
    () => installation.fleet.query<{ phase: string }>(replicaWorkflowId('by-hand'), 'status'),
    s => s.phase === 'ready',
    'it is adopted',
  );
  expect(await grants()).toMatchObject([{ replica: 'by-hand', members: [{ slots: [2] }] }]);
  expect(node.countOf('launch')).toBe(0);
});

it('every history of this file replays', async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThan(15);
});
