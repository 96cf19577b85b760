// Run by scripts/record-histories.mjs: lets the workflows live through what matters and writes their histories down.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js';
import { afterAll, beforeAll, it } from 'vitest';
import { nodeWorkflowId } from '../../contracts/ids.js';
import { eventually, type Installation, TestServer } from '../workflow/harness.js';
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
});
