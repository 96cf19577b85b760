// What an idle fleet costs in history events, counted on the real server (INV-11). test/domain/idle-week.test.ts adds
// up a week with these figures and the product's own times.
import type { WorkflowHandle } from '@temporalio/client';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { nodeWorkflowId } from '../../contracts/ids.js';
import { TIMING } from '../../contracts/timing.js';
import { COST } from '../domain/costs.js';
import { eventually, SHORT, TestServer } from './harness.js';
import { eventCounts, runsOf } from './history.js';
import { inventory } from './sim-node.js';

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server?.stop());

const HOUR = 3_600_000;
const total = (counts: Record<string, number>): number => Object.values(counts).reduce((n, c) => n + c, 0);
const settled = (handle: WorkflowHandle) =>
  eventually(
    () => eventCounts(handle),
    c =>
      c.WORKFLOW_TASK_COMPLETED === c.WORKFLOW_TASK_SCHEDULED &&
      (c.ACTIVITY_TASK_SCHEDULED ?? 0) === (c.ACTIVITY_TASK_COMPLETED ?? 0) &&
      (c.SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED ?? 0) === (c.EXTERNAL_WORKFLOW_EXECUTION_SIGNALED ?? 0),
    'nothing is under way',
  );

it('an idle node costs at most 60 events an hour, the ledger beside it none for it, a ready replica none at all', async () => {
  const installation = await server.install();
  const node = await installation.node('n1');
  const replica = await installation.startReplica('steady');
  await replica.reaches('ready');
  await eventually(replica.route, r => r !== undefined, 'its route');
  const handle = installation.client.workflow.getHandle(nodeWorkflowId('n1'));
  const before = await settled(handle);
  const ledger = total(await settled(installation.ledgerHandle()));
  const serving = total(await settled(replica.handle));
  const digests = 6;
  for (let i = 0; i < digests; i++) {
    await installation.fleet.digest('n1', { session: node.session, instance: 'cp', heartbeats: 120 });
    // Ten minutes apart in life: each has its own task.
    await eventually(
      () => eventCounts(handle),
      c => c.WORKFLOW_EXECUTION_SIGNALED === before.WORKFLOW_EXECUTION_SIGNALED! + i + 1,
      'it is in',
    );
    await settled(handle);
  }
  const digest = (total(await settled(handle)) - total(before)) / digests;
  expect(digest).toBe(COST.signal + COST.task);
  // A look finds a node that was heard, and sets the next one.
  const look = COST.timerFired + COST.task + COST.timerStarted;
  const anHour =
    (HOUR / TIMING.nodeDigestInterval) * digest +
    (HOUR / (TIMING.nodeLookInterval - TIMING.nodeDigestInterval)) * look;
  expect(anHour).toBeLessThanOrEqual(60);
  expect(total(await settled(installation.ledgerHandle()))).toBe(ledger);

  // The ledger's own hour: its instances. The replica hears of neither.
  await installation.startLedger();
  const registered = await eventually(
    () => settled(installation.ledgerHandle()),
    c => total(c) > ledger,
    'the instance registered again',
  );
  expect(total(registered) - ledger).toBe(COST.signal + COST.task);
  expect(total(await settled(replica.handle))).toBe(serving);
});

it('a node whose hellos are large continues as new by their bytes, long before its events or signals ask for it', async () => {
  // Case temporal-01, its second run: 40 KB a message.
  const installation = await server.install({ times: { ...SHORT, maxHistoryBytes: 400_000 }, ledger: false });
  const handle = installation.client.workflow.getHandle(nodeWorkflowId('n1'));
  const [gpu] = inventory('n1', 1).gpus;
  const gpus = Array.from({ length: 40 }, (_, i) => ({ ...gpu!, uuid: `GPU-${i}`, reason: 'x'.repeat(900) }));
  const node = await installation.silentNode('n1').hello({ inventory: inventory('n1', 0, { gpus }) });
  const { runId } = await handle.describe();
  for (let i = 0; i < 25; i++)
    await installation.fleet.inventory('n1', {
      session: node.session,
      inventory: inventory('n1', 0, { gpus }),
    });
  const { runs, longest } = await eventually(
    () => runsOf(handle, runId),
    r => r.runs >= 2,
    'there is a second run',
  );
  expect(runs).toBeGreaterThanOrEqual(2);
  expect(longest).toBeLessThan(TIMING.maxEvents / 10);
  expect(Object.keys((await installation.fleet.node('n1')).slots)).toHaveLength(40);
});

it('a look of a node costs a timer and a task, and one whose data plane is watched three events a watch', async () => {
  const installation = await server.install({ times: { ...SHORT, nodeLookInterval: 400 } });
  let watches = 0;
  installation.onSilent = async () => {
    watches++;
    if (watches > 3) return new Promise(() => undefined);
    return { verdict: 'unchanged', evidence: 'the test sees nothing' };
  };
  const node = await installation.silentNode('n1').hello();
  const handle = installation.client.workflow.getHandle(nodeWorkflowId('n1'));
  await installation.fleet.digest('n1', { session: node.session, instance: 'cp', heartbeats: 1 });
  const counts = await eventually(
    () => eventCounts(handle),
    c => c.ACTIVITY_TASK_SCHEDULED === 4,
    'it is silent, and watched the fourth time',
  );
  expect(counts.TIMER_STARTED).toBe(counts.TIMER_FIRED);
  expect(counts.ACTIVITY_TASK_COMPLETED).toBe(3);
  // Whatever shared a task: no more than one for each signal in and out, each look and each watch.
  const causes =
    counts.WORKFLOW_EXECUTION_SIGNALED! +
    counts.EXTERNAL_WORKFLOW_EXECUTION_SIGNALED! +
    counts.TIMER_FIRED! +
    counts.ACTIVITY_TASK_COMPLETED!;
  expect(counts.WORKFLOW_TASK_COMPLETED).toBeLessThanOrEqual(causes);
});
