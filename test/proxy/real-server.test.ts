// The proxy between a real Temporal server and a real activity worker of the SDK, over mTLS.

import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { status } from '@grpc/grpc-js';
import { Context, heartbeat } from '@temporalio/activity';
import type { Client } from '@temporalio/client';
import temporalProto from '@temporalio/proto';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { DefaultLogger, NativeConnection, Runtime, Worker } from '@temporalio/worker';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { makePki, NODES, type RunningProxy, rawClient, startProxy, type TestPki } from './harness.js';

const api = temporalProto.temporal.api.workflowservice.v1;
const [NODE, OTHER] = NODES;

/** Bounds a hang on a loaded machine, and measures nothing. */
const PATIENT = { timeout: 25_000 };

let env: TestWorkflowEnvironment;
let pki: TestPki;
let proxy: RunningProxy;
let client: Client;
const running: { worker: Worker; done: Promise<void>; connection?: NativeConnection }[] = [];

beforeAll(async () => {
  const binary = process.env.LLMGW_TEMPORAL_BIN ?? join(homedir(), '.cache/llmgw/temporal-v1.5.1/temporal');
  if (!existsSync(binary)) {
    throw new Error(
      `${binary} is missing: set LLMGW_TEMPORAL_BIN to a temporal binary, or install one with: go install github.com/temporalio/cli/cmd/temporal@v1.5.1`,
    );
  }
  Runtime.install({ logger: new DefaultLogger('ERROR') });
  env = await TestWorkflowEnvironment.createLocal({
    server: {
      executable: { type: 'existing-path', path: binary },
      log: { format: 'pretty', level: 'error' },
    },
  });
  client = env.client;
  pki = await makePki();
  proxy = await startProxy(pki, { upstream: { address: env.address } });
  const flows = await Worker.create({
    connection: env.nativeConnection,
    taskQueue: 'flows',
    workflowsPath: fileURLToPath(new URL('./worker-workflows.ts', import.meta.url)),
  });
  running.push({ worker: flows, done: flows.run() });
});

afterAll(async () => {
  for (const { worker } of running) if (worker.getState() === 'RUNNING') worker.shutdown();
  for (const { done, connection } of running) {
    await done;
    await connection?.close();
  }
  proxy?.stop();
  await env?.teardown();
  pki?.remove();
});

/** Temporal refuses a long poll without a deadline. */
const inAMinute = (): Date => new Date(Date.now() + 60_000);

/** Of the activity untilTold: the token of its task, and when it may end. */
const observed: { token?: Uint8Array; finish: Promise<void>; end: () => void } = (() => {
  let end = (): void => {};
  const finish = new Promise<void>(resolve => {
    end = resolve;
  });
  return { finish, end };
})();

/** An activity worker as the agent has it: its only connection goes through the proxy. */
async function startNodeWorker(
  node: string,
  queue: string,
): Promise<{ worker: Worker; done: Promise<void> }> {
  const connection = await NativeConnection.connect({
    address: proxy.address,
    tls: {
      serverRootCACertificate: pki.read('ca.pem'),
      clientCertPair: { crt: pki.read(`${node}.pem`), key: pki.read(`${node}-key.pem`) },
    },
  });
  const worker = await Worker.create({
    connection,
    taskQueue: queue,
    // `maxConcurrentActivityTaskPolls` is ignored by SDK 1.24: ten polls a node would be open.
    activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
    // A cancel reaches an activity with the answer to a heartbeat; the default would hold those back for 8 s.
    maxHeartbeatThrottleInterval: '200ms',
    activities: {
      greet: async () => {
        heartbeat('half way');
        return 'hello from the node';
      },
      fail: async () => {
        throw new Error('the engine refused a flag');
      },
      untilTold: async () => {
        // What the node sees of its task, and what anyone sees who watches the node.
        observed.token = Context.current().info.taskToken;
        const beat = setInterval(() => heartbeat('mine'), 200);
        try {
          await observed.finish;
        } finally {
          clearInterval(beat);
        }
        return 'finished by its own node';
      },
      untilCancelled: async () => {
        heartbeat('started');
        const beat = setInterval(() => heartbeat('still here'), 200);
        try {
          await Context.current().cancelled;
        } finally {
          clearInterval(beat);
        }
        return 'never';
      },
    },
  });
  const entry = { worker, done: worker.run(), connection };
  running.push(entry);
  return entry;
}

const start = (activity: string, node: string) =>
  client.workflow.start('callNode', {
    taskQueue: 'flows',
    workflowId: `call-${node}-${activity}-${running.length}`,
    args: [`node-${node}`, activity],
  });

test('an activity worker with the certificate of its node runs, fails and cancels activities, then shuts down', async () => {
  const { worker, done } = await startNodeWorker(NODE, `node-${NODE}`);
  expect(await (await start('greet', NODE)).result()).toBe('hello from the node');

  const failing = await start('fail', NODE);
  await expect(failing.result()).rejects.toMatchObject({
    cause: { cause: { message: 'the engine refused a flag' } },
  });

  const cancelled = await start('untilCancelled', NODE);
  await expect
    .poll(
      async () => (await cancelled.describe()).raw.pendingActivities?.[0]?.heartbeatDetails != null,
      PATIENT,
    )
    .toBe(true);
  await cancelled.signal('stop');
  expect(await cancelled.result()).toBe('canceled');

  worker.shutdown();
  await done;
  // The SDK asked for nothing that the proxy refuses.
  expect(proxy.warnings).toEqual([]);
});

test("another node's certificate can neither poll the queue nor complete the task of a node", async () => {
  const handle = await start('greet', NODE);
  const node = rawClient(proxy.address, pki, NODE);
  const thief = rawClient(proxy.address, pki, OTHER);
  const poll = api.PollActivityTaskQueueRequest.encode({
    namespace: 'default',
    taskQueue: { name: `node-${NODE}` },
    identity: 'test',
  }).finish();

  const stolen = await thief.call('PollActivityTaskQueue', poll);
  expect([stolen.code, stolen.details]).toEqual([
    status.PERMISSION_DENIED,
    expect.stringContaining(`the certificate is that of node ${OTHER}`),
  ]);

  const polled = await node.call('PollActivityTaskQueue', poll, {}, inAMinute());
  const { taskToken } = api.PollActivityTaskQueueResponse.decode(polled.answer);
  const data = Buffer.from('"done by its own node"');
  const complete = api.RespondActivityTaskCompletedRequest.encode({
    namespace: 'default',
    taskToken,
    result: { payloads: [{ metadata: { encoding: Buffer.from('json/plain') }, data }] },
  }).finish();
  expect((await thief.call('RespondActivityTaskCompleted', complete)).code).toBe(status.NOT_FOUND);
  expect((await node.call('RespondActivityTaskCompleted', complete)).code).toBe(status.OK);
  expect(await handle.result()).toBe('done by its own node');
  node.close();
  thief.close();
});

test("a stolen token doesn't touch a running activity: it goes on, keeps its heartbeats, and ends as its node says", async () => {
  const { worker, done } = await startNodeWorker(NODE, `node-${NODE}`);
  const handle = await start('untilTold', NODE);
  await expect.poll(() => observed.token !== undefined, PATIENT).toBe(true);
  const taskToken = Buffer.from(observed.token ?? []);
  const { namespace, identity } = { namespace: 'default', identity: NODE };
  const { pendingActivities } = (await handle.describe()).raw;
  const [activity] = pendingActivities ?? [];
  const lie = {
    payloads: [{ metadata: { encoding: Buffer.from('json/plain') }, data: Buffer.from('"stolen"') }],
  };
  const failure = { message: 'stolen', applicationFailureInfo: { nonRetryable: true } };
  const byId = { namespace, identity, workflowId: handle.workflowId, activityId: activity?.activityId };
  const thief = rawClient(proxy.address, pki, OTHER);
  const attempts: [string, Uint8Array, string][] = [
    [
      'RespondActivityTaskCompleted',
      api.RespondActivityTaskCompletedRequest.encode({
        namespace,
        identity,
        taskToken,
        result: lie,
      }).finish(),
      'NOT_FOUND',
    ],
    [
      'RespondActivityTaskFailed',
      api.RespondActivityTaskFailedRequest.encode({ namespace, identity, taskToken, failure }).finish(),
      'NOT_FOUND',
    ],
    [
      'RespondActivityTaskCanceled',
      api.RespondActivityTaskCanceledRequest.encode({ namespace, identity, taskToken }).finish(),
      'NOT_FOUND',
    ],
    [
      'RecordActivityTaskHeartbeat',
      api.RecordActivityTaskHeartbeatRequest.encode({
        namespace,
        identity,
        taskToken,
        details: lie,
      }).finish(),
      'NOT_FOUND',
    ],
    [
      'RespondActivityTaskCompletedById',
      api.RespondActivityTaskCompletedByIdRequest.encode({ ...byId, result: lie }).finish(),
      'PERMISSION_DENIED',
    ],
    [
      'RespondActivityTaskFailedById',
      api.RespondActivityTaskFailedByIdRequest.encode({ ...byId, failure }).finish(),
      'PERMISSION_DENIED',
    ],
    [
      'RespondActivityTaskCanceledById',
      api.RespondActivityTaskCanceledByIdRequest.encode(byId).finish(),
      'PERMISSION_DENIED',
    ],
    [
      'RecordActivityTaskHeartbeatById',
      api.RecordActivityTaskHeartbeatByIdRequest.encode({ ...byId, details: lie }).finish(),
      'PERMISSION_DENIED',
    ],
  ];
  for (const [method, request, code] of attempts) {
    expect([method, status[(await thief.call(method, request)).code]]).toEqual([method, code]);
  }
  thief.close();

  const now = async () => (await handle.describe()).raw.pendingActivities?.[0];
  await expect
    .poll(async () => String((await now())?.heartbeatDetails?.payloads?.[0]?.data ?? ''), PATIENT)
    .toBe('"mine"');
  expect(await now()).toMatchObject({ attempt: 1, lastWorkerIdentity: NODE });
  observed.end();
  expect(await handle.result()).toBe('finished by its own node');
  worker.shutdown();
  await done;
});

test('a task polled through one control plane is kept alive and completed through another', async () => {
  const second = await startProxy(pki, { upstream: { address: env.address } });
  const [here, there] = [rawClient(proxy.address, pki, NODE), rawClient(second.address, pki, NODE)];
  const handle = await start('greet', NODE);
  const poll = api.PollActivityTaskQueueRequest.encode({
    namespace: 'default',
    taskQueue: { name: `node-${NODE}` },
  }).finish();
  const polled = await here.call('PollActivityTaskQueue', poll, {}, inAMinute());
  const { taskToken } = api.PollActivityTaskQueueResponse.decode(polled.answer);
  const beat = api.RecordActivityTaskHeartbeatRequest.encode({ namespace: 'default', taskToken }).finish();
  expect((await there.call('RecordActivityTaskHeartbeat', beat)).code).toBe(status.OK);
  const data = Buffer.from('"through the other one"');
  const complete = api.RespondActivityTaskCompletedRequest.encode({
    namespace: 'default',
    taskToken,
    result: { payloads: [{ metadata: { encoding: Buffer.from('json/plain') }, data }] },
  }).finish();
  expect((await there.call('RespondActivityTaskCompleted', complete)).code).toBe(status.OK);
  expect(await handle.result()).toBe('through the other one');
  here.close();
  there.close();
  second.stop();
});

test("a worker on another node's queue gets no task, and the log names both", async () => {
  const { worker, done } = await startNodeWorker(OTHER, `node-${NODE}`);
  await expect
    .poll(() => proxy.warnings.join(), PATIENT)
    .toContain(
      `that of node ${OTHER}, whose queue is node-${OTHER}, but the queue asked for is "node-${NODE}"`,
    );
  worker.shutdown();
  await done;
});

test('a poll cancelled on the node frees the task for the next poll', async () => {
  const node = rawClient(proxy.address, pki, NODE);
  const poll = api.PollActivityTaskQueueRequest.encode({
    namespace: 'default',
    taskQueue: { name: `node-${NODE}` },
  }).finish();
  const abandoned = node.start('PollActivityTaskQueue', poll, inAMinute());
  const description = async () =>
    client.workflowService.describeTaskQueue({
      namespace: 'default',
      taskQueue: { name: `node-${NODE}` },
      taskQueueType: temporalProto.temporal.api.enums.v1.TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    });
  await expect.poll(async () => (await description()).pollers?.length ?? 0, PATIENT).toBeGreaterThan(0);
  abandoned.cancel();
  await abandoned.ended;
  const handle = await start('greet', NODE);
  // Had the first poll stayed open upstream, the task would have gone to it, and this poll would be empty.
  const polled = await node.call('PollActivityTaskQueue', poll, {}, inAMinute());
  expect(api.PollActivityTaskQueueResponse.decode(polled.answer).taskToken.length).toBeGreaterThan(0);
  await handle.terminate();
  node.close();
});

test('without a certificate there is no connection', async () => {
  const tls = { serverRootCACertificate: pki.read('ca.pem') };
  await expect(NativeConnection.connect({ address: proxy.address, tls })).rejects.toThrow();
});
