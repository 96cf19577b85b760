// Continue-as-new under a flood, and workflows that remember nothing but their history. The limits are the real ones
// in miniature: some ten signals instead of 1,500.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { nodeWorkflowId, replicaWorkflowId } from '../../contracts/ids.js';
import { facts } from '../domain/fixtures.js';
import { eventually, SHORT, TestServer } from './harness.js';
import { runsOf } from './history.js';
import { exitEvent, inventory } from './sim-node.js';

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server?.stop());

const SHORT_RUNS = { ...SHORT, maxSignals: 15, maxEvents: 150 };

/** `count` signals, 20 in flight. */
async function flood(count: number, send: (i: number) => Promise<unknown>): Promise<void> {
  let next = 0;
  const one = async () => {
    while (next < count) await send(next++);
  };
  await Promise.all(Array.from({ length: 20 }, one));
}

describe('under a flood of signals', () => {
  it('the ledger continues as new and loses none: no report, no reservation, no grant, no fence', async () => {
    const installation = await server.install({ times: SHORT_RUNS });
    const node = await installation.node('n1');
    const before = await installation.startReplica('before');
    const { fence } = await before.reaches('ready');
    const first = await installation.ledgerHandle().describe();
    const replicas = ['during-1', 'during-2', 'during-3', 'during-4'];
    const [, ...during] = await Promise.all([
      flood(150, i =>
        installation
          .ledgerHandle()
          .signal('node', facts({ node_id: `other-${i}`, state: 'silent', usable: 0 })),
      ),
      ...replicas.map(async name => (await installation.startReplica(name)).reaches('ready')),
    ]);
    const { nodes, grants, last_fence } = await installation.fleet.ledger();
    expect(Object.keys(nodes)).toHaveLength(151);
    expect(
      Object.values(grants)
        .map(g => g.replica)
        .toSorted(),
    ).toEqual(['before', ...replicas]);
    const fences = during.map(s => s.fence!);
    expect(new Set([fence, ...fences]).size).toBe(5);
    expect(Math.min(...fences)).toBeGreaterThan(fence!);
    expect(last_fence).toBe(Math.max(...fences));
    const slots = Object.values(grants).flatMap(g => g.members.flatMap(m => m.slots));
    expect(new Set(slots).size).toBe(5);
    expect(node.countOf('launch')).toBe(5);
    const { runs } = await runsOf(installation.ledgerHandle(), first.runId);
    expect(runs).toBeGreaterThan(1);
  });

  it('the ledger continues as new although an instance that is gone keeps it waiting', async () => {
    const installation = await server.install({ times: { ...SHORT_RUNS, pushTimeout: 8_000 } });
    await installation.fleet.register({
      instance: 'dead',
      queue: 'llmgw-cp-dead',
      peer_addr: null,
      version: '0',
    });
    await installation.node('n1');
    const replica = await installation.startReplica('shown');
    const { fence } = await replica.reaches('ready');
    const endpoint = await eventually(replica.route, r => r !== undefined, 'its route');
    const first = await installation.ledgerHandle().describe();
    // Each of them changes the table, and so is pushed to the dead one too.
    for (let i = 0; i < 40; i++) {
      await installation.ledgerHandle().signal('endpoint', {
        kind: 'endpoint',
        key: `k/endpoint/${i}`,
        replica: 'shown',
        run_id: 'k',
        fence,
        answer: false,
        endpoint: { ...endpoint, state: i % 2 === 0 ? 'draining' : 'ready' },
      });
    }
    const table = await installation.fleet.routes();
    expect(table.endpoints).toMatchObject([{ replica: 'shown', state: 'ready' }]);
    await eventually(
      () => installation.pushed,
      p => p.includes(table.version),
      'the live one has the last table',
    );
    const { runs } = await runsOf(installation.ledgerHandle(), first.runId);
    expect(runs).toBeGreaterThan(1);
  });

  it('a node continues as new and loses none: every GPU that was ever told has its slot, also while no ledger is there', async () => {
    const installation = await server.install({ times: SHORT_RUNS, ledger: false });
    const node = await installation.silentNode('n1', 0).hello();
    const handle = installation.client.workflow.getHandle(nodeWorkflowId('n1'));
    const first = await handle.describe();
    const [template] = inventory('n1', 1).gpus;
    await flood(45, i =>
      installation.fleet.inventory('n1', {
        session: 1,
        inventory: inventory('n1', 0, { gpus: [{ ...template!, uuid: `GPU-${i}` }] }),
      }),
    );
    const { slots } = await installation.fleet.node('n1');
    expect(Object.values(slots).toSorted()).toEqual(
      Array.from({ length: 45 }, (_, i) => `GPU-${i}`).toSorted(),
    );
    expect((await runsOf(handle, first.runId)).runs).toBeGreaterThan(1);

    // The slots hold over all runs, and the ledger hears of them when it comes.
    const all = Array.from({ length: 45 }, (_, i) => ({ ...template!, uuid: `GPU-${i}` }));
    await node.hello({ inventory: inventory('n1', 0, { gpus: all }) });
    expect((await installation.fleet.node('n1')).slots).toEqual(slots);
    await installation.startLedger();
    await installation.row('n1', r => r.gpus.free === 45, 'is in the ledger with all its GPUs');
  });

  it('a serving replica continues as new, serves on under its fence, and misses no exit', async () => {
    const installation = await server.install({ times: SHORT_RUNS });
    const node = await installation.node('n1');
    const replica = await installation.startReplica('steady');
    const { fence } = await replica.reaches('ready');
    const first = await replica.handle.describe();
    const journal = (await replica.status()).journal.map(j => j.text);
    await flood(100, i =>
      i === 50
        ? installation.fleet.engineEvent('n1', exitEvent('steady', fence!))
        : installation.fleet.progress('steady', { fence: 1, stage: 'of another time', percent: i }),
    );
    const next = await replica.reaches('ready', 2);
    expect(next.fence).toBeGreaterThan(fence!);
    expect(next.restarts.in_window).toBe(1);
    expect(next.journal.map(j => j.text)).toEqual(expect.arrayContaining(journal));
    expect(node.calls.map(c => c.activity)).toEqual([
      'launch',
      'await_ready',
      'stop',
      'launch',
      'await_ready',
    ]);
    const handle = installation.client.workflow.getHandle(replicaWorkflowId('steady'));
    expect((await runsOf(handle, first.runId)).runs).toBeGreaterThan(1);
    expect((await handle.describe()).memo).toMatchObject({ phase: 'ready', node: 'n1' });

    await handle.cancel();
    await expect(handle.result()).rejects.toThrow();
    expect((await handle.describe()).status.name).toBe('CANCELLED');
    await installation.row('n1', r => r.gpus.free === 8, 'is free');
  });

  it('a replica that is cancelled ends as cancelled, however long the ledger keeps it waiting', async () => {
    const installation = await server.install({ times: SHORT_RUNS });
    const node = await installation.node('n1');
    const replica = await installation.startReplica('leaving');
    await replica.reaches('ready');
    await installation.ledgerHandle().terminate();
    await replica.handle.cancel();
    await replica.reaches('draining');
    await flood(40, i =>
      installation.fleet.progress('leaving', { fence: 1, stage: 'of another time', percent: i }),
    );
    expect((await replica.status()).phase).toBe('draining');
    await installation.startLedger();
    expect((await replica.ended()).status).toBe('CANCELLED');
    expect(node.countOf('stop')).toBe(1);
  });
});

it('a replica, its node and the ledger need nothing but their histories: they replay at every single task', async () => {
  const installation = await server.install({ cached: 0 });
  const node = await installation.node('n1');
  const replica = await installation.startReplica('forgetful');
  // Looked at without a query: one that arrives while a workflow is put out of memory is lost in this SDK, with its task.
  const servesFrom = (launches: number) =>
    eventually(
      async () => ({ launches: node.countOf('launch'), memo: (await replica.handle.describe()).memo }),
      seen => seen.launches === launches && seen.memo?.phase === 'ready',
      `launch ${launches} serves`,
    );
  await servesFrom(1);
  await node.exit('forgetful', node.calls[0]!.fence);
  await servesFrom(2);
  await replica.handle.cancel();
  expect((await replica.ended()).status).toBe('CANCELLED');
  expect(node.calls.map(c => c.activity)).toEqual([
    'launch',
    'await_ready',
    'stop',
    'launch',
    'await_ready',
    'stop',
  ]);
});

it('every history of this file replays', async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThan(15);
});
