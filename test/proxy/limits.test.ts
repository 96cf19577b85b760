// What one node can take: calls, polls, rate, sizes and log lines are bounded by node, and the others don't notice.

import { gzipSync } from 'node:zlib';
import * as grpc from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { Admission, NODE_LIMITS, type NodeLimits } from '../../server/temporal-proxy/admission.js';
import { RefusalLog } from '../../server/temporal-proxy/refusal-log.js';
import { bindToken } from '../../server/temporal-proxy/task-token.js';
import { type FakeUpstream, startFakeUpstream } from '../fakes/temporal-upstream.js';
import {
  makePki,
  NODES,
  type RawClient,
  type RunningProxy,
  rawClient,
  startProxy,
  type TestPki,
  TOKEN_KEY,
  until,
} from './harness.js';
import { frame, pathOf, type RawHttp2, rawHttp2 } from './raw-http2.js';

const api = temporalProto.temporal.api.workflowservice.v1;
const { status } = grpc;
const [NODE, OTHER] = NODES;
const MiB = 1024 * 1024;
const taskToken = bindToken(TOKEN_KEY, NODE, Buffer.from('the token of Temporal'));

let pki: TestPki;
let upstream: FakeUpstream;
let proxy: RunningProxy;
let node: RawClient;
let other: RawClient;
let raw: RawHttp2;

beforeAll(async () => {
  pki = await makePki();
});
beforeEach(async () => {
  upstream = await startFakeUpstream();
  await start({});
});
afterEach(() => {
  stop();
  upstream.close();
});
afterAll(() => pki.remove());

async function start(limits: Partial<NodeLimits>): Promise<void> {
  proxy = await startProxy(pki, { upstream: { address: upstream.address }, limits });
  node = rawClient(proxy.address, pki, NODE);
  other = rawClient(proxy.address, pki, OTHER);
  raw = rawHttp2(proxy.address, pki, NODE);
}
function stop(): void {
  for (const client of [node, other, raw]) client.close();
  proxy.stop();
}
async function restart(limits: Partial<NodeLimits>): Promise<void> {
  stop();
  await start(limits);
}

const poll = (id: string): Uint8Array =>
  api.PollActivityTaskQueueRequest.encode({
    namespace: 'default',
    taskQueue: { name: `node-${id}` },
  }).finish();
const complete = (bytes: number): Uint8Array =>
  api.RespondActivityTaskCompletedRequest.encode({
    namespace: 'default',
    taskToken,
    result: { payloads: [{ data: Buffer.alloc(bytes) }] },
  }).finish();

test('of four hundred polls of one node a few reach Temporal, and another node is served meanwhile', async () => {
  upstream.answers.set('PollActivityTaskQueue', 'hang');
  const ended = { refused: 0 };
  const polls = Array.from({ length: 400 }, () => {
    const call = node.start('PollActivityTaskQueue', poll(NODE));
    void call.ended.then(({ code }) => {
      if (code === status.RESOURCE_EXHAUSTED) ended.refused += 1;
    });
    return call;
  });
  const theirs = other.start('PollActivityTaskQueue', poll(OTHER));
  await until(() => expect(ended.refused).toBe(400 - NODE_LIMITS.polls));
  await until(() => expect(upstream.calls).toHaveLength(NODE_LIMITS.polls + 1));
  expect((await other.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
  // One line for all of them.
  expect(proxy.warnings).toEqual([
    `PollActivityTaskQueue: node ${NODE} has ${NODE_LIMITS.polls} polls open, more are not taken`,
  ]);

  // What has ended makes room.
  for (const call of polls) call.cancel();
  upstream.answers.set('PollActivityTaskQueue', Buffer.alloc(0));
  await until(async () => {
    expect((await node.call('PollActivityTaskQueue', poll(NODE))).code).toBe(status.OK);
  });
  theirs.cancel();
});

test('calls at a time are bounded, those whose message never comes included', async () => {
  await restart({ calls: 3 });
  const open = [1, 2, 3].map(() => raw.send(pathOf('GetSystemInfo'), Buffer.alloc(0), {}, false));
  await until(async () => {
    const { code, details } = await node.call('GetSystemInfo', Buffer.alloc(0));
    expect([code, details]).toEqual([
      status.RESOURCE_EXHAUSTED,
      `GetSystemInfo: node ${NODE} has 3 calls open, more are not taken`,
    ]);
  });
  expect((await other.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
  for (const call of open) call.cancel();
  await until(async () => {
    expect((await node.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
  });
});

test('calls a second are bounded by node', async () => {
  await restart({ burst: 3, perSecond: 0.001 });
  const codes: string[] = [];
  for (let i = 0; i < 5; i++)
    codes.push(status[(await node.call('GetSystemInfo', Buffer.alloc(0))).code] ?? '');
  expect(codes).toEqual(['OK', 'OK', 'OK', 'RESOURCE_EXHAUSTED', 'RESOURCE_EXHAUSTED']);
  expect((await other.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
  expect(upstream.calls).toHaveLength(4);
});

test('the allowance comes back with time, up to its bound', () => {
  let now = 0;
  const admission = new Admission({ ...NODE_LIMITS, burst: 10, perSecond: 5 }, () => now);
  const take = (): number => {
    for (let n = 0; ; n++) {
      const entry = admission.enter(NODE, false);
      if (!entry.ok) return n;
      entry.leave();
    }
  };
  expect(take()).toBe(10);
  now += 1_000;
  expect(take()).toBe(5);
  now += 3_600_000;
  expect(take()).toBe(10);
});

test('a few large messages are held at a time; the next is read when one has gone', async () => {
  await restart({ messages: 2 });
  upstream.answers.set('RespondActivityTaskCompleted', 'hang');
  const calls = [1, 2, 3].map(() => node.call('RespondActivityTaskCompleted', complete(MiB)));
  await until(() => expect(upstream.calls).toHaveLength(2));
  // Other nodes have places of their own.
  expect((await other.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
  expect(upstream.calls).toHaveLength(3);
  upstream.calls[0]?.answer(Buffer.alloc(0));
  await until(() => expect(upstream.calls).toHaveLength(4));
  for (const call of upstream.calls.slice(1)) call.answer(Buffer.alloc(0));
  expect((await Promise.all(calls)).map(c => c.code)).toEqual([status.OK, status.OK, status.OK]);
});

test('short messages do not wait for one another', async () => {
  await restart({ messages: 1 });
  upstream.answers.set('PollActivityTaskQueue', 'hang');
  const polls = [1, 2, 3].map(() => node.start('PollActivityTaskQueue', poll(NODE)));
  await until(() => expect(upstream.calls).toHaveLength(3));
  for (const call of polls) call.cancel();
});

test('a message beyond the bound is refused in either direction, and the next call is served', async () => {
  const up = await node.call('RespondActivityTaskCompleted', complete(16 * MiB));
  expect(up.code).toBe(status.RESOURCE_EXHAUSTED);
  expect(upstream.calls).toEqual([]);
  const huge = api.PollActivityTaskQueueResponse.encode({
    taskToken: Buffer.from('t'),
    input: { payloads: [{ data: Buffer.alloc(16 * MiB) }] },
  });
  upstream.answers.set('PollActivityTaskQueue', Buffer.from(huge.finish()));
  expect((await node.call('PollActivityTaskQueue', poll(NODE))).code).toBe(status.RESOURCE_EXHAUSTED);
  expect((await node.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
});

test('a request that carries no payload is short, or refused', async () => {
  for (const method of [
    'GetSystemInfo',
    'PollActivityTaskQueue',
    'ShutdownWorker',
    'RecordWorkerHeartbeat',
  ]) {
    const { code, details } = await node.call(method, complete(MiB));
    expect([method, code]).toEqual([method, status.INVALID_ARGUMENT]);
    expect(details).toContain('65536 are allowed');
  }
  expect(upstream.calls).toEqual([]);
});

test('a message of millions of tiny fields is refused before it is taken apart', async () => {
  const tiny = Buffer.alloc(15 * MiB);
  for (let i = 0; i < tiny.length; i += 2) tiny[i] = 0x08;
  const before = process.memoryUsage().heapUsed;
  const { code, details } = await node.call('RespondActivityTaskCompleted', tiny);
  expect([code, details]).toEqual([
    status.INVALID_ARGUMENT,
    `RespondActivityTaskCompleted of node ${NODE}: it has more than 1000 fields`,
  ]);
  // Taken apart, it would be 7,864,320 objects: more than half a gigabyte.
  expect(process.memoryUsage().heapUsed - before).toBeLessThan(200 * MiB);
});

test('a message that unpacks to more than the bound is refused', async () => {
  const bomb = frame(gzipSync(Buffer.alloc(64 * MiB)), 1);
  expect(bomb.length).toBeLessThan(MiB);
  const { grpcStatus } = await raw.send(pathOf('RespondActivityTaskCompleted'), bomb, {
    'grpc-encoding': 'gzip',
  }).ended;
  expect(grpcStatus).toBe(status.RESOURCE_EXHAUSTED);
  const honest = frame(gzipSync(complete(1_000)), 1);
  const fine = await raw.send(pathOf('RespondActivityTaskCompleted'), honest, { 'grpc-encoding': 'gzip' })
    .ended;
  expect(fine.grpcStatus).toBe(status.OK);
  expect(upstream.calls).toHaveLength(1);
});

test('who is refused is told so before anything of the message is read', async () => {
  const start = frame(Buffer.alloc(10), 0, 10 * MiB);
  const { grpcStatus } = await raw.send(pathOf('StartWorkflowExecution'), start, {}, false).ended;
  expect(grpcStatus).toBe(status.PERMISSION_DENIED);
});

test('a call has exactly one message', async () => {
  const one = frame(poll(NODE));
  for (const body of [Buffer.alloc(0), Buffer.concat([one, one]), Buffer.concat([one, frame(poll(OTHER))])]) {
    const { grpcStatus } = await raw.send(pathOf('PollActivityTaskQueue'), body).ended;
    expect(grpcStatus).toBe(status.INVALID_ARGUMENT);
  }
  expect(upstream.calls).toEqual([]);
});

test('the same refusal is written once in ten seconds, with how many were like it', () => {
  const lines: unknown[] = [];
  let now = 0;
  const log = new RefusalLog(
    { warn: (fields: unknown, text: unknown) => void lines.push([fields, text]) } as never,
    () => now,
  );
  const refusal = { method: 'StartWorkflowExecution', node: NODE, code: 'PERMISSION_DENIED' };
  for (let i = 0; i < 1_000; i++) log.write({ ...refusal, peer: `10.0.0.1:${i}` }, 'not open');
  log.write({ ...refusal, peer: '10.0.0.1:1', code: 'NOT_FOUND' }, 'no such task');
  now += 10_000;
  log.write({ ...refusal, peer: '10.0.0.1:1' }, 'not open');
  expect(lines).toEqual([
    [{ ...refusal, peer: '10.0.0.1:0' }, 'not open'],
    [{ ...refusal, peer: '10.0.0.1:1', code: 'NOT_FOUND' }, 'no such task'],
    [{ ...refusal, peer: '10.0.0.1:1', alike: 999 }, 'not open'],
  ]);
});
