// Whoever has Temporal's UI can send any signal: an entity must neither fail nor jam on it.
import { afterAll, beforeAll, expect, it } from 'vitest';
import { FLEET_ID, nodeWorkflowId, replicaWorkflowId, WORKFLOW_QUEUE } from '../../contracts/ids.js';
import { SIGNALS } from '../../contracts/signals.js';
import { eventually, type Installation, TestServer } from './harness.js';

let server: TestServer;
let installation: Installation;
beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install();
});
afterAll(() => server?.stop());

const GARBAGE = [
  null,
  7,
  'text',
  [],
  {},
  { kind: 'reserve' },
  { key: 'k', replica: 'x', shape: null },
  { hello: { session: 'a' } },
];

it('ignores signals that have not their shape, says so, and goes on working', async () => {
  await installation.node('n1');
  const replica = await installation.startReplica('steady');
  await replica.reaches('ready');
  const targets = { fleet: FLEET_ID, node: nodeWorkflowId('n1'), replica: replicaWorkflowId('steady') };
  for (const [type, id] of Object.entries(targets) as [keyof typeof targets, string][]) {
    const handle = installation.client.workflow.getHandle(id);
    for (const name of Object.keys(SIGNALS[type])) {
      for (const garbage of GARBAGE) await handle.signal(name, garbage);
      await handle.signal(name);
    }
    await handle.signal('no_such_signal', {});
  }
  const status = await eventually(
    replica.status,
    s => s.journal.some(j => j.text.includes('ignored a signal')),
    'the replica says what it ignored',
  );
  expect(status.phase).toBe('ready');
  const { journal, grants } = await installation.fleet.ledger();
  expect(journal.some(j => j.text.includes('ignored a signal'))).toBe(true);
  expect(Object.keys(grants)).toHaveLength(1);
  expect((await installation.fleet.node('n1')).state).toBe('connected');
  const next = await installation.startReplica('after');
  await next.reaches('ready');
});

it('starts anew from what a run of before was carried over with, as "start workflow like this one" gives it', async () => {
  const old = await installation.startReplica('old');
  await old.reaches('ready');
  for (const [name, more] of Object.entries({
    'with-null': { state: null },
    'with-number': { state: 5 },
    'with-nothing': { state: {} },
    'with-old': { state: { v: 1, phase: 'ready', name: 'old', fence: 7, journal: [] }, outbox: [] },
  })) {
    await installation.client.workflow.start('replica', {
      taskQueue: WORKFLOW_QUEUE,
      workflowId: replicaWorkflowId(name),
      args: [{ model: 'Qwen/Qwen3-8B', engine: 'vllm' }, more],
    });
    const handle = installation.client.workflow.getHandle(replicaWorkflowId(name));
    await eventually(
      () => handle.query<{ phase: string }>('status'),
      s => s.phase === 'ready',
      `replica/${name} to be ready`,
    );
    await handle.cancel();
    await handle.result().catch(() => undefined);
  }
  await installation.client.workflow.start('node', {
    taskQueue: WORKFLOW_QUEUE,
    workflowId: nodeWorkflowId('n2'),
    args: [{ slots: null, journal: 7 }],
  });
  await installation.node('n2');
  await installation.ledgerHandle().terminate('somebody tries it');
  await installation.client.workflow.start('fleet', {
    taskQueue: WORKFLOW_QUEUE,
    workflowId: FLEET_ID,
    args: [{ state: {} }],
  });
  await eventually(
    async () => (await installation.fleet.ledger()).grants,
    grants => Object.values(grants).some(g => g.replica === 'old'),
    'the ledger to be whole again',
  );
});
