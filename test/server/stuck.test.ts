// What is shown of replicas whose workflow can't answer, on a real Temporal and over HTTP: closed, terminated before its
// first task, never started, no worker, a worker whose build can't run it. Case temporal-08.
import { afterAll, beforeAll, expect, it } from 'vitest';
import { replicaWorkflowId, WORKFLOW_QUEUE } from '../../contracts/ids.js';
import type { ReplicaStatus } from '../../contracts/status.js';
import { silentLogger } from '../../lib/log.js';
import { FleetClient } from '../../server/fleet.js';
import { type HttpDeps, httpApp } from '../../server/http/app.js';
import { Replicas } from '../../server/replicas.js';
import { whyStuck } from '../../server/stuck.js';
import { eventually, SHORT, TestServer } from '../workflow/harness.js';

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server?.stop());

/** GET /v1/replicas/<name> as an operator asks it. */
async function get(
  fleet: FleetClient,
  name: string,
): Promise<{ code: number; body: ReplicaStatus & { error?: unknown } }> {
  const deps = {
    replicas: new Replicas(fleet, () => []),
    ready: () => true,
    tokensFile: null,
    tls: null,
    log: silentLogger(),
    instance: 'cp',
  };
  const res = await httpApp(deps as unknown as HttpDeps).inject({
    method: 'GET',
    url: `/v1/replicas/${name}`,
  });
  return { code: res.statusCode, body: res.json() };
}

const start = (fleet: FleetClient, name: string) =>
  fleet.client.workflow.start('replica', {
    taskQueue: WORKFLOW_QUEUE,
    workflowId: replicaWorkflowId(name),
    args: [{ model: 'Qwen/Qwen3-8B', engine: 'vllm' }],
  });

it('where no worker ever was: says so; a terminated one by its description, an unknown one as not found', async () => {
  const fleet = new FleetClient(server.clientFor('installation-11'));
  const ended = await start(fleet, 'never-ran');
  await ended.terminate('by the test');
  await start(fleet, 'waits');
  const waits = await get(fleet, 'waits');
  expect(waits).toMatchObject({ code: 200, body: { phase: 'pending', source: 'describe' } });
  expect(waits.body.reason).toContain('no control plane worker takes the tasks');
  const terminated = await get(fleet, 'never-ran');
  expect(terminated).toMatchObject({ code: 200, body: { phase: 'failed', source: 'describe' } });
  expect(terminated.body.reason).toContain('workflow terminated');
  expect(await get(fleet, 'nobody')).toMatchObject({
    code: 404,
    body: { error: { code: 'REPLICA_NOT_FOUND' } },
  });
});

it('a closed one shows how it ended and what it last knew; one whose task fails, that it is stuck and the cause', {
  timeout: 60_000,
}, async () => {
  const installation = await server.install();
  await installation.node('n1');
  const closed = await installation.startReplica('closed');
  await closed.reaches('ready');
  await closed.handle.cancel();
  await closed.ended();
  const shown = await get(installation.fleet, 'closed');
  expect(shown).toMatchObject({
    code: 200,
    body: { phase: 'stopped', reason: 'stopped as asked', source: 'workflow', generation: 1 },
  });
  expect(shown.body.journal.length).toBeGreaterThan(3);

  const stuck = await installation.startReplica('stuck');
  const { fence } = await stuck.reaches('ready');
  await installation.endControlPlane();
  const breaks = (code: string): string => {
    const broken = code.replace(
      /function isFull\(signals\) \{/,
      '$& throw new Error("a build that is broken");',
    );
    if (broken === code) throw new Error('isFull is not where it was');
    return broken;
  };
  await installation.start(SHORT, 500, breaks);
  await installation.fleet.progress('stuck', { fence: 1, stage: 'of another time', percent: 1 });
  await eventually(
    () => whyStuck(installation.client, replicaWorkflowId('stuck')),
    why => why !== null,
    'its task fails a second time',
  );
  const { code, body } = await get(installation.fleet, 'stuck');
  expect(code).toBe(200);
  expect(body.reason).toMatch(/^stuck: its workflow task fails \(attempt \d+\): a build that is broken/);
  // A control plane that can run it again finds all as it was.
  await installation.endControlPlane();
  await installation.start(SHORT, 500);
  expect(await stuck.reaches('ready')).toMatchObject({ fence, generation: 1 });
});
