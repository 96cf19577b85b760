// Run by scripts/record-histories.mjs: lets the workflows live through what matters and writes their histories down.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js';
import { afterAll, beforeAll, it } from 'vitest';
import { nodeWorkflowId, replicaWorkflowId, WORKFLOW_QUEUE } from '../../contracts/ids.js';
import { eventually, type Installation, SHORT, TestServer } from '../workflow/harness.js';
import { HISTORIES } from './histories.js';

const ROOT = path.join(import.meta.dirname, '../..');
const SDK = JSON.parse(readFileSync(path.join(ROOT, 'node_modules/@temporalio/worker/package.json'), 'utf8'))
  .version as string;

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server?.stop());

/** The present run of `workflowId`; nothing of the machine that recorded it stays in the file. */
async function record(installation: Installation, workflowId: string, behaviour: string): Promise<void> {
  const history = await installation.client.workflow.getHandle(workflowId).fetchHistory();
  const text = JSON.stringify(JSON.parse(historyToJSON(history)), null, 1)
    .replaceAll(`${ROOT}/`, '')
    .replaceAll(`${process.pid}@${os.hostname()}`, 'recorder');
  mkdirSync(HISTORIES, { recursive: true });
  writeFileSync(path.join(HISTORIES, `${behaviour}_${SDK}.json`), `${text}\n`);
}

it('records a crash, updates, a failure and an end', async () => {
  const installation = await server.install({ times: {} });
  const node = await installation.node('n1', 4);
  const spec = { placement: { nodes: ['n1'] }, restart: { max_failures: 2, backoff_base: '200ms' } };

  const crashed = await installation.startReplica('crashed', spec);
  const { fence } = await crashed.reaches('ready');
  await installation.fleet.progress('crashed', { fence: fence!, stage: 'late', percent: null });
  await node.exit('crashed', fence!);
  await crashed.reaches('ready', 2);
  await crashed.handle.cancel();
  await crashed.ended();
  await record(installation, 'replica/crashed', 'replica-crash-cancel');

  const updated = await installation.startReplica('updated', spec);
  await updated.reaches('ready');
  await updated.apply({ model: 'Qwen/Qwen3-8B', engine: 'vllm', ...spec, tensor_parallel: 2 });
  await updated.reaches('ready', 2);
  await updated.apply({ model: 'Qwen/Qwen3-8B', engine: 'vllm', tensor_parallel: 16 }).catch(() => undefined);
  await updated.restart();
  await updated.reaches('ready', 3);
  await record(installation, 'replica/updated', 'replica-apply-restart');

  const failure = {
    code: 'ENGINE_FAILED',
    class: 'retry' as const,
    sentence: 'CUDA out of memory',
    exit: { code: 1, signal: null },
    tail: [],
    evidence: null,
  };
  node.hold('launch').refuse('SPAWN_FAILED', 'fork: Resource temporarily unavailable');
  node.hold('await_ready').answer({ ready: false, failure });
  const failed = await installation.startReplica('failed', spec);
  await failed.ended();
  await record(installation, 'replica/failed', 'replica-backoff-failed');
  await record(installation, 'fleet', 'fleet-grants');

  await node.hello({ heartbeat_interval_ms: 50 });
  await installation.fleet.gone('n1', {
    session: node.session,
    instance: 'cp',
    reason: 'the connection closed',
  });
  await installation.row('n1', r => r.state === 'silent', 'is silent');
  await node.hello();
  await installation.row('n1', r => r.state === 'connected', 'is back');
  await record(installation, nodeWorkflowId('n1'), 'node-silent-back');
});

it('records a run that continues an earlier one', async () => {
  const installation = await server.install({ times: { maxSignals: 10 } });
  const node = await installation.node('n1', 4);
  const replica = await installation.startReplica('continued');
  const { fence } = await replica.reaches('ready');
  const first = await replica.handle.describe();
  for (let i = 0; i < 12; i++)
    await installation.fleet.progress('continued', { fence: 1, stage: 'of another time', percent: i });
  const continued = await eventually(
    () => replica.handle.describe(),
    d => d.runId !== first.runId,
    'it continued as new',
  );
  await node.exit('continued', fence!);
  await replica.reaches('ready', 2);
  await replica.handle.cancel();
  await replica.ended();
  if ((await replica.handle.describe()).runId !== continued.runId) throw new Error('it continued once more');
  await record(installation, 'replica/continued', 'replica-continued');

  for (const [id, signal, behaviour] of [
    ['fleet', 'node', 'fleet-continued'],
    [nodeWorkflowId('n1'), 'gone', 'node-continued'],
  ] as const) {
    const entity = installation.client.workflow.getHandle(id);
    const { runId } = await entity.describe();
    // What isn't of its shape is noted: each of them is a task, until the next run has had some of its own.
    for (let i = 0; (await entity.describe()).runId === runId; i++)
      await entity.signal(signal, { garbage: i });
    await node.hello();
    await record(installation, id, behaviour);
  }
});

it('records a ledger that is lost, told everything again, settles, brakes and forgets; and the node that it forgets', async () => {
  const installation = await server.install({ times: SHORT });
  const node = await installation.node('n1', 4);
  const away = await installation.silentNode('n2', 2).hello({ heartbeat_interval_ms: 50 });
  const kept = await installation.startReplica('kept', { placement: { nodes: ['n1'] } });
  const left = await installation.startReplica('left', { placement: { nodes: ['n1'] } });
  await kept.reaches('ready');
  await left.reaches('ready');
  await installation.ledgerHandle().terminate('lost');
  await installation.startLedger();
  await node.hello({ session: node.session });
  await away.hello({ session: away.session, heartbeat_interval_ms: 50 });
  await eventually(installation.fleet.routes, t => t.endpoints.length === 2, 'the table is whole');

  await left.handle.terminate('left');
  const { raw, closeTime } = await left.handle.describe();
  const { firstRunId } = raw.workflowExecutionInfo!;
  await installation.fleet.closed({
    closed: [
      {
        replica: 'left',
        first_run_id: firstRunId!,
        status: 'TERMINATED',
        closed_at: closeTime!.getTime() + 999,
      },
    ],
  });
  await installation.row('n1', r => r.gpus.free === 3, 'has what was left back');
  await installation.fleet.brake(true, 'ada');
  await installation.fleet.brake(false, 'ada');

  const verdicts = ['serving', 'unchanged', 'dark'] as const;
  let seen = 0;
  installation.onSilent = async () =>
    seen < verdicts.length
      ? { verdict: verdicts[seen++]!, evidence: 'the recorder' }
      : new Promise(() => undefined);
  await installation.fleet.gone('n2', {
    session: away.session,
    instance: 'cp',
    reason: 'the connection closed',
  });
  await installation.row('n2', r => r.state === 'lost', 'is lost');
  await installation.fleet.forget('n2', 'ada');
  await eventually(
    async () => (await installation.client.workflow.getHandle(nodeWorkflowId('n2')).describe()).status.name,
    status => status === 'COMPLETED',
    'its workflow has ended',
  );
  await record(installation, nodeWorkflowId('n2'), 'node-unsupervised-lost-forgotten');
  await record(installation, 'replica/kept', 'replica-asserts');
  await record(installation, 'fleet', 'fleet-rebuilt-settles-brakes-forgets');
});

it('records a claim, an adoption, a reset and the loss of a node', async () => {
  const installation = await server.install({ times: SHORT });
  const node = await installation.node('n1', 4);
  const other = await installation.node('n2', 4);
  const on = { placement: { nodes: ['n1'] } };
  const before = await installation.startReplica('claims', on);
  const { fence } = await before.reaches('ready');
  await before.handle.terminate('lost');
  const claims = await installation.startReplica('claims', on);
  if ((await claims.reaches('ready')).fence !== fence) throw new Error('it did not claim the engine');
  await record(installation, 'replica/claims', 'replica-claims');

  node.looks = { slots: [2], engine: null };
  await installation.client.workflow.start('replica', {
    taskQueue: WORKFLOW_QUEUE,
    workflowId: replicaWorkflowId('adopts'),
    args: [{ model: 'm', engine: 'vllm' }, { adopt: { node: 'n1', pid: 4_711, port: 8_000 } }],
  });
  const phaseOf = (name: string) =>
    installation.fleet
      .query<{ phase: string; fence: number }>(replicaWorkflowId(name), 'status')
      .catch(() => null);
  await eventually(
    () => phaseOf('adopts'),
    s => s?.phase === 'ready',
    'it is adopted',
  );
  await record(installation, 'replica/adopts', 'replica-adopts');

  const handle = claims.handle;
  const { runId } = await handle.describe();
  const first = ((await handle.fetchHistory()).events ?? []).find(
    e => e.workflowTaskCompletedEventAttributes != null,
  );
  await installation.client.workflowService.resetWorkflowExecution({
    namespace: installation.namespace,
    workflowExecution: { workflowId: 'replica/claims', runId },
    reason: 'recorded',
    workflowTaskFinishEventId: first!.eventId!,
    requestId: 'recorded',
    // RESET_REAPPLY_TYPE_NONE
    resetReapplyType: 2,
  });
  await eventually(
    () => phaseOf('claims'),
    s => s?.phase === 'ready' && s.fence === fence,
    'it serves again',
  );
  await record(installation, 'replica/claims', 'replica-reset');

  const moves = await installation.startReplica('moves', {
    placement: { nodes: ['n1', 'n2'] },
    tensor_parallel: 2,
    on_node_loss: { replace_after: '1s' },
  });
  const placed = await moves.reaches('ready');
  const home = placed.members[0]!.node === 'n1' ? node : other;
  installation.onSilent = async ({ believed }) =>
    believed === 'silent' ? { verdict: 'dark', evidence: 'the recorder' } : new Promise(() => undefined);
  await home.hello({ session: home.session, heartbeat_interval_ms: 50 });
  await installation.fleet.gone(home.id, { session: home.session, instance: 'cp', reason: 'it burns' });
  await moves.reaches('ready', 2);
  await record(installation, 'replica/moves', 'replica-node-lost');
});

it('records a gang: a refusal, a member that ends, a stop that is ordered again, an end', async () => {
  const installation = await server.install({ times: SHORT });
  const nodes = await Promise.all(
    ['n1', 'n2', 'n3', 'n4'].map(async id => {
      const node = installation.silentNode(id);
      node.fabrics = ['ib-a'];
      return (await node.start()).hello();
    }),
  );
  const [n1, n2] = nodes;
  n1!.hold('prepare').refuse('MODEL_MISSING', 'no /models/x');
  const gang = await installation.startReplica('gang', {
    nodes: 3,
    tensor_parallel: 3,
    restart: { max_failures: 5, backoff_base: '200ms' },
  });
  const { fence } = await gang.reaches('ready');
  n2!.hold('stop').refuse('NODE_UNREACHABLE', 'not now');
  await n2!.exit('gang', fence!);
  await gang.reaches('ready', 3);
  await gang.restart();
  await gang.reaches('ready', 4);
  await gang.handle.cancel();
  await gang.ended();
  await record(installation, 'replica/gang', 'replica-gang');
});
