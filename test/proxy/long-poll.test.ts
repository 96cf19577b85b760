// Long polls through the proxy, by the case from the field: how they wait, end, break off, and outlive an outage.

import { connect, createServer, type Server, type Socket } from 'node:net';
import * as grpc from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import { DefaultLogger, NativeConnection, Runtime, Worker } from '@temporalio/worker';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { readCase } from '../config/case.js';
import { reservedPort } from '../fakes/ports.js';
import { type FakeUpstream, startFakeUpstream } from '../fakes/temporal-upstream.js';
import {
  makePki,
  NODES,
  type RawClient,
  type RunningProxy,
  rawClient,
  startProxy,
  type TestPki,
  until,
} from './harness.js';

const api = temporalProto.temporal.api.workflowservice.v1;
const { status } = grpc;
const [NODE] = NODES;
const TASK_TOKEN = Buffer.from('the token of Temporal');
const { input, expect: expected } = readCase('temporal-11-grpc-proxy-long-poll');
/** The case's own words for what is right, by its words for what is tried. */
const result = (tried: string): string => expected.results[input.proxy_tests.indexOf(tried)];

const POLL = Buffer.from(
  api.PollActivityTaskQueueRequest.encode({
    namespace: 'default',
    taskQueue: { name: `node-${NODE}` },
  }).finish(),
);
/** Temporal sets every time and duration, and the SDK doesn't do without. */
const AT = { nanos: 500_000_000 };
const TASK = Buffer.from(
  api.PollActivityTaskQueueResponse.encode({
    taskToken: TASK_TOKEN,
    activityId: '1',
    activityType: { name: 'greet' },
    workflowExecution: { workflowId: 'w', runId: 'r' },
    workflowType: { name: 'w' },
    attempt: 1,
    scheduledTime: AT,
    currentAttemptScheduledTime: AT,
    startedTime: AT,
    scheduleToCloseTimeout: AT,
    startToCloseTimeout: AT,
    heartbeatTimeout: AT,
  }).finish(),
);
/** What the SDK gives a poll. */
const inSeconds = (s: number): Date => new Date(Date.now() + s * 1_000);

let pki: TestPki;
let upstream: FakeUpstream;
let proxy: RunningProxy;
let node: RawClient;

beforeAll(async () => {
  pki = await makePki();
});
beforeEach(async () => {
  upstream = await startFakeUpstream(`127.0.0.1:${await reservedPort()}`);
  proxy = await startProxy(pki, { upstream: { address: upstream.address } });
  node = rawClient(proxy.address, pki, NODE);
  upstream.answers.set('PollActivityTaskQueue', 'hang');
});
afterEach(() => {
  vi.useRealTimers();
  node.close();
  proxy.stop();
  upstream.close();
});
afterAll(() => pki.remove());

const polls = (): FakeUpstream['calls'] => upstream.calls.filter(c => c.method === 'PollActivityTaskQueue');

/** From here on time stands still for all timers of grpc but those of connections, which exist already. */
async function stopTheClock(): Promise<void> {
  expect((await node.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date'] });
}
const aTurn = (): Promise<void> => new Promise(resolve => setImmediate(resolve));

test(`an idle poll of 65 s: ${result('idle poll 65 s')}`, async () => {
  await stopTheClock();
  const running = node.start('PollActivityTaskQueue', POLL, inSeconds(70));
  while (polls().length === 0) await aTurn();
  expect(polls()[0]?.deadlineMs).toBeGreaterThan(69_000);
  expect(polls()[0]?.deadlineMs).toBeLessThanOrEqual(70_000);
  for (let second = 0; second < 65; second++) {
    await vi.advanceTimersByTimeAsync(1_000);
    // The connections' own pings have to come back between two steps.
    for (let turn = 0; turn < 20; turn++) await aTurn();
  }
  polls()[0]?.answer(Buffer.alloc(0));
  const { code, details, answer } = await running.ended;
  expect([status[code], details, answer.length]).toEqual(['OK', '', 0]);
  expect(polls()).toHaveLength(1);
});

test('a poll that nobody answers ends at its own deadline, here and upstream', async () => {
  await stopTheClock();
  const running = node.start('PollActivityTaskQueue', POLL, inSeconds(70));
  while (polls().length === 0) await aTurn();
  let ended = false;
  void running.ended.then(() => {
    ended = true;
  });
  for (let second = 0; second < 72 && !ended; second++) {
    await vi.advanceTimersByTimeAsync(1_000);
    for (let turn = 0; turn < 20; turn++) await aTurn();
  }
  expect((await running.ended).code).toBe(status.DEADLINE_EXCEEDED);
  await polls()[0]?.cancelled;
});

test('a call without a deadline gets one: it would be open upstream for ever', async () => {
  await node.call('GetSystemInfo', Buffer.alloc(0));
  expect(upstream.calls[0]?.deadlineMs).toBeLessThanOrEqual(120_000);
});

test(`a cancelled poll: ${result('client cancels poll at 5 s then task is added')}`, async () => {
  await stopTheClock();
  const running = node.start('PollActivityTaskQueue', POLL, inSeconds(70));
  while (polls().length === 0) await aTurn();
  running.cancel();
  // No timer has run: it is the cancellation that travels, not a deadline or a look now and then.
  await polls()[0]?.cancelled;
  vi.useRealTimers();
  expect((await running.ended).code).toBe(status.CANCELLED);

  const other = node.start('PollActivityTaskQueue', POLL, inSeconds(70));
  await until(() => expect(polls()).toHaveLength(2));
  polls()[1]?.answer(TASK);
  const { answer } = await other.ended;
  expect(api.PollActivityTaskQueueResponse.decode(answer).activityId).toBe('1');
});

test('a poll whose connection is cut is cancelled upstream, and those of other connections are not', async () => {
  const sockets: Socket[] = [];
  const port = Number(proxy.address.split(':')[1]);
  const wire: Server = createServer(from => {
    const to = connect(port, '127.0.0.1');
    sockets.push(from, to);
    for (const socket of [from, to]) socket.on('error', () => {});
    from.pipe(to).pipe(from);
  });
  await new Promise<void>(resolve => wire.listen(0, '127.0.0.1', resolve));
  const cut = rawClient(`localhost:${(wire.address() as { port: number }).port}`, pki, NODE);
  const doomed = cut.start('PollActivityTaskQueue', POLL, inSeconds(70));
  await until(() => expect(polls()).toHaveLength(1));
  const alive = node.start('PollActivityTaskQueue', POLL, inSeconds(70));
  await until(() => expect(polls()).toHaveLength(2));
  for (const socket of sockets) socket.resetAndDestroy();
  await polls()[0]?.cancelled;
  expect((await doomed.ended).code).toBe(status.UNAVAILABLE);
  polls()[1]?.answer(TASK);
  expect((await alive.ended).code).toBe(status.OK);
  cut.close();
  wire.close();
});

test(`a failure with details: ${result('server error NOT_FOUND with grpc-status-details-bin')}`, async () => {
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  const metadata = new grpc.Metadata();
  metadata.set('grpc-status-details-bin', bytes);
  upstream.answers.set('PollActivityTaskQueue', {
    code: status.NOT_FOUND,
    details: 'no such task, naïve 100 %',
    metadata,
  });
  const failed = await node.call('PollActivityTaskQueue', POLL);
  expect([failed.code, failed.details]).toEqual([status.NOT_FOUND, 'no such task, naïve 100 %']);
  expect(failed.metadata.get('grpc-status-details-bin')).toEqual([bytes]);
});

test(`a message of 3.9 MB, both ways: ${result('message of 3.9 MB both ways')}`, async () => {
  const data = Buffer.alloc(3_900_000, 7);
  const task = api.PollActivityTaskQueueResponse.encode({
    taskToken: TASK_TOKEN,
    input: { payloads: [{ data }] },
  });
  upstream.answers.set('PollActivityTaskQueue', Buffer.from(task.finish()));
  const { taskToken, input: given } = api.PollActivityTaskQueueResponse.decode(
    (await node.call('PollActivityTaskQueue', POLL)).answer,
  );
  expect(data.equals(given?.payloads?.[0]?.data ?? new Uint8Array())).toBe(true);
  const done = { namespace: 'default', taskToken, result: { payloads: [{ data }] } };
  const request = api.RespondActivityTaskCompletedRequest.encode(done).finish();
  expect((await node.call('RespondActivityTaskCompleted', request)).code).toBe(status.OK);
  const sent = api.RespondActivityTaskCompletedRequest.decode(
    upstream.calls.at(-1)?.request ?? Buffer.alloc(0),
  );
  expect(data.equals(sent.result?.payloads?.[0]?.data ?? new Uint8Array())).toBe(true);
});

test(`StartWorkflow and another namespace: ${result('node certificate calls StartWorkflow or another namespace')}`, async () => {
  const elsewhere = { namespace: 'prod', taskQueue: { name: `node-${NODE}` } };
  for (const [method, request] of [
    ['StartWorkflowExecution', api.StartWorkflowExecutionRequest.encode({ namespace: 'default' }).finish()],
    ['PollActivityTaskQueue', api.PollActivityTaskQueueRequest.encode(elsewhere).finish()],
  ] as const) {
    expect((await node.call(method, request)).code).toBe(status.PERMISSION_DENIED);
  }
  expect(upstream.calls).toEqual([]);
});

test(`Temporal is down: ${expected.upstream_down}`, async () => {
  Runtime.install({ logger: new DefaultLogger('ERROR', () => {}) });
  const connection = await NativeConnection.connect({
    address: proxy.address,
    tls: {
      serverRootCACertificate: pki.read('ca.pem'),
      clientCertPair: { crt: pki.read(`${NODE}.pem`), key: pki.read(`${NODE}-key.pem`) },
    },
  });
  const worker = await Worker.create({
    connection,
    taskQueue: `node-${NODE}`,
    activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
    activities: { greet: async () => 'back again' },
  });
  const done = worker.run();
  await until(() => expect(polls()).toHaveLength(1));

  upstream.close();
  const down = await node.call('PollActivityTaskQueue', POLL, {}, inSeconds(70));
  expect(down.code).toBe(status.UNAVAILABLE);

  const { address } = upstream;
  upstream = await startFakeUpstream(address);
  upstream.answers.set('PollActivityTaskQueue', 'hang');
  await until(() => expect(polls()).toHaveLength(1));
  polls()[0]?.answer(TASK);
  const completed = () => upstream.calls.find(c => c.method === 'RespondActivityTaskCompleted');
  await until(() => expect(completed()).toBeDefined());
  const { taskToken } = api.RespondActivityTaskCompletedRequest.decode(
    completed()?.request ?? Buffer.alloc(0),
  );
  expect(Buffer.from(taskToken)).toEqual(TASK_TOKEN);
  expect(worker.getState()).toBe('RUNNING');

  // What the worker still has open must not hold its shutdown.
  upstream.answers.set('PollActivityTaskQueue', Buffer.alloc(0));
  worker.shutdown();
  for (const poll of polls().slice(1)) poll.answer(Buffer.alloc(0));
  await done;
  await connection.close();
}, 60_000);
