// The proxy's rules against a stand-in of Temporal's frontend that shows what reached it.

import * as grpc from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { NODE_ID_HEADER } from '../../lib/tls/identity.js';
import { type FakeUpstream, startFakeUpstream } from '../fakes/temporal-upstream.js';
import { forgeLeaf } from '../pki/forge.js';
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

const api = temporalProto.temporal.api.workflowservice.v1;
const [NODE, OTHER] = NODES;
const { status } = grpc;
const TASK_TOKEN = Buffer.from('the token of Temporal');
/** Field 999, length-delimited, as a newer SDK or server may send it. */
const UNKNOWN_FIELD = Buffer.from([0xba, 0x3e, 3, 1, 2, 3]);

let pki: TestPki;
let upstream: FakeUpstream;
let proxy: RunningProxy;
let node: RawClient;
let other: RawClient;

beforeAll(async () => {
  pki = await makePki();
});
beforeEach(async () => {
  upstream = await startFakeUpstream();
  proxy = await startProxy(pki, { upstream: { address: upstream.address } });
  node = rawClient(proxy.address, pki, NODE);
  other = rawClient(proxy.address, pki, OTHER);
});
afterEach(() => {
  node.close();
  other.close();
  proxy.stop();
  upstream.close();
});
afterAll(() => pki.remove());

const poll = (queue: string, namespace = 'default'): Uint8Array =>
  api.PollActivityTaskQueueRequest.encode({ namespace, taskQueue: { name: queue } }).finish();
const complete = (taskToken: Uint8Array, namespace = 'default'): Uint8Array =>
  api.RespondActivityTaskCompletedRequest.encode({ namespace, taskToken, identity: 'i' }).finish();
const task = (): Buffer =>
  Buffer.concat([
    api.PollActivityTaskQueueResponse.encode({ activityId: '7' }).finish(),
    UNKNOWN_FIELD,
    api.PollActivityTaskQueueResponse.encode({ taskToken: TASK_TOKEN, attempt: 3 }).finish(),
  ]);

/** The token that `client` was handed for a task of its own queue. */
async function pollToken(client: RawClient, nodeId: string): Promise<Uint8Array> {
  upstream.answers.set('PollActivityTaskQueue', task());
  const { answer } = await client.call('PollActivityTaskQueue', poll(`node-${nodeId}`));
  return api.PollActivityTaskQueueResponse.decode(answer).taskToken;
}

describe('methods', () => {
  test('GetSystemInfo and DescribeNamespace of the own namespace are handed on', async () => {
    const describeNs = api.DescribeNamespaceRequest.encode({ namespace: 'default' }).finish();
    expect((await node.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.OK);
    expect((await node.call('DescribeNamespace', describeNs)).code).toBe(status.OK);
    expect(upstream.calls.map(c => c.method)).toEqual(['GetSystemInfo', 'DescribeNamespace']);
  });

  test('a namespace described by id is refused, because the id could be that of another one', async () => {
    const request = api.DescribeNamespaceRequest.encode({ namespace: 'default', id: 'abc' }).finish();
    const { code, details } = await node.call('DescribeNamespace', request);
    expect([code, details]).toEqual([
      status.PERMISSION_DENIED,
      `DescribeNamespace: node ${NODE} may not set id`,
    ]);
  });

  test('the capability that would make the SDK poll a refused queue is left out, the others stay', async () => {
    const capabilities = { workerHeartbeats: true, workerCommands: true };
    const answer = api.DescribeNamespaceResponse.encode({
      namespaceInfo: { name: 'default', capabilities },
    }).finish();
    upstream.answers.set('DescribeNamespace', Buffer.concat([answer, UNKNOWN_FIELD]));
    const request = api.DescribeNamespaceRequest.encode({ namespace: 'default' }).finish();
    const result = await node.call('DescribeNamespace', request);
    const { namespaceInfo } = api.DescribeNamespaceResponse.decode(result.answer);
    expect(namespaceInfo?.name).toBe('default');
    expect(namespaceInfo?.capabilities?.workerHeartbeats).toBe(true);
    expect(namespaceInfo?.capabilities?.workerCommands).toBe(false);
    expect(result.answer.includes(UNKNOWN_FIELD)).toBe(true);
  });

  test('worker heartbeats and shutdowns that name another queue are refused', async () => {
    const heartbeat = (taskQueue: string) =>
      api.RecordWorkerHeartbeatRequest.encode({
        namespace: 'default',
        workerHeartbeat: [{ taskQueue: `node-${NODE}` }, { taskQueue }],
      }).finish();
    const shutdown = (fields: object) =>
      api.ShutdownWorkerRequest.encode({ namespace: 'default', ...fields }).finish();
    expect((await node.call('RecordWorkerHeartbeat', heartbeat(`node-${NODE}`))).code).toBe(status.OK);
    expect((await node.call('RecordWorkerHeartbeat', heartbeat('llmgw'))).code).toBe(
      status.PERMISSION_DENIED,
    );
    expect((await node.call('ShutdownWorker', shutdown({ taskQueue: `node-${NODE}` }))).code).toBe(status.OK);
    for (const fields of [
      { taskQueue: 'llmgw' },
      { stickyTaskQueue: 'someone' },
      { workerHeartbeat: { taskQueue: 'llmgw' } },
    ]) {
      expect((await node.call('ShutdownWorker', shutdown(fields))).code).toBe(status.PERMISSION_DENIED);
    }
  });
});

describe('polling', () => {
  test("another node's queue is refused with both named, and the refusal is logged", async () => {
    const { code, details } = await node.call('PollActivityTaskQueue', poll(`node-${OTHER}`));
    expect(code).toBe(status.PERMISSION_DENIED);
    expect(details).toBe(
      `PollActivityTaskQueue: the certificate is that of node ${NODE}, whose queue is node-${NODE}, but the queue asked for is "node-${OTHER}"`,
    );
    expect(proxy.warnings).toEqual([details]);
    expect(upstream.calls).toEqual([]);
  });

  test.each(['', 'llmgw', `/_sys/node-${NODE}/1`, `node-${NODE}\0`, `NODE-${NODE}`])(
    'the queue %j is not the own one',
    async queue => {
      expect((await node.call('PollActivityTaskQueue', poll(queue))).code).toBe(status.PERMISSION_DENIED);
      expect(upstream.calls).toEqual([]);
    },
  );

  test('another namespace is refused with both named', async () => {
    const { code, details } = await node.call('PollActivityTaskQueue', poll(`node-${NODE}`, 'prod'));
    expect(code).toBe(status.PERMISSION_DENIED);
    expect(details).toContain('"prod"');
    expect(details).toContain('"default"');
  });

  test('a queue given twice is refused: a parser would take the other one', async () => {
    const twice = Buffer.concat([
      poll(`node-${NODE}`),
      api.PollActivityTaskQueueRequest.encode({ taskQueue: { name: `node-${OTHER}` } }).finish(),
    ]);
    expect((await node.call('PollActivityTaskQueue', twice)).code).toBe(status.INVALID_ARGUMENT);
    expect(upstream.calls).toEqual([]);
  });

  test('bytes that are no protobuf message are refused', async () => {
    const { code } = await node.call('PollActivityTaskQueue', Buffer.from([0x0a, 0xff, 0x01]));
    expect(code).toBe(status.INVALID_ARGUMENT);
  });

  test('the task comes back byte for byte, unknown fields included, but for its token', async () => {
    upstream.answers.set('PollActivityTaskQueue', task());
    const { answer } = await node.call('PollActivityTaskQueue', poll(`node-${NODE}`));
    const token = api.PollActivityTaskQueueResponse.decode(answer).taskToken;
    expect(Buffer.from(token).equals(TASK_TOKEN)).toBe(false);
    const [before, after] = [Buffer.from([0x0a, TASK_TOKEN.length]), Buffer.from([0x0a, token.length])];
    const expected = Buffer.concat([
      task().subarray(0, task().indexOf(before)),
      after,
      token,
      task().subarray(task().indexOf(TASK_TOKEN) + TASK_TOKEN.length),
    ]);
    expect(answer.equals(expected)).toBe(true);
  });

  test('a poll that ended without a task stays empty', async () => {
    const { code, answer } = await node.call('PollActivityTaskQueue', poll(`node-${NODE}`));
    expect([code, answer.length]).toEqual([status.OK, 0]);
  });

  test('cancelling a poll cancels it upstream', async () => {
    upstream.answers.set('PollActivityTaskQueue', 'hang');
    const running = node.start('PollActivityTaskQueue', poll(`node-${NODE}`));
    await until(() => expect(upstream.calls).toHaveLength(1));
    running.cancel();
    expect((await running.ended).code).toBe(status.CANCELLED);
    await upstream.calls[0]?.cancelled;
  });

  test('more polls than one connection takes all reach Temporal', async () => {
    upstream.answers.set('PollActivityTaskQueue', 'hang');
    const upstreamOf = { address: upstream.address };
    const many = await startProxy(pki, { upstream: upstreamOf, limits: { polls: 200 } });
    const crowd = rawClient(many.address, pki, NODE);
    const polls = Array.from({ length: 200 }, () =>
      crowd.start('PollActivityTaskQueue', poll(`node-${NODE}`)),
    );
    await until(() => expect(upstream.calls).toHaveLength(200));
    expect(new Set(upstream.calls.map(c => c.peer)).size).toBeGreaterThan(2);
    for (const p of polls) p.cancel();
    await Promise.all(polls.map(p => p.ended));
    crowd.close();
    many.stop();
  });

  test('stopping the proxy ends open polls with UNAVAILABLE, so that the worker comes again', async () => {
    upstream.answers.set('PollActivityTaskQueue', 'hang');
    const running = node.start('PollActivityTaskQueue', poll(`node-${NODE}`));
    await until(() => expect(upstream.calls).toHaveLength(1));
    proxy.proxy.close();
    const { code, details } = await running.ended;
    expect([code, details]).toEqual([status.UNAVAILABLE, 'this control plane instance stops']);
    await upstream.calls[0]?.cancelled;
  });
});

describe('task tokens', () => {
  test.each(['Completed', 'Failed', 'Canceled'])(
    "Respond…%s with the node's own token goes upstream with the real one",
    async how => {
      const token = await pollToken(node, NODE);
      // What the activity gave back is not looked into: a newer SDK may put more into it than this build knows.
      const result = Buffer.concat([Buffer.from([0x12, UNKNOWN_FIELD.length]), UNKNOWN_FIELD]);
      const request = Buffer.concat([complete(token), result]);
      expect((await node.call(`RespondActivityTask${how}`, request)).code).toBe(status.OK);
      const sent = upstream.calls.at(-1)?.request ?? Buffer.alloc(0);
      expect(Buffer.from(api.RespondActivityTaskCompletedRequest.decode(sent).taskToken)).toEqual(TASK_TOKEN);
      expect(sent.includes(result)).toBe(true);
    },
  );

  test('a heartbeat hands on that a cancel was requested', async () => {
    const token = await pollToken(node, NODE);
    const answer = api.RecordActivityTaskHeartbeatResponse.encode({ cancelRequested: true }).finish();
    upstream.answers.set('RecordActivityTaskHeartbeat', Buffer.from(answer));
    const request = api.RecordActivityTaskHeartbeatRequest.encode({
      namespace: 'default',
      taskToken: token,
    }).finish();
    const result = await node.call('RecordActivityTaskHeartbeat', request);
    expect(result.answer.equals(answer)).toBe(true);
  });

  test("another node's token is answered NOT_FOUND and never goes upstream", async () => {
    const token = await pollToken(node, NODE);
    const polled = upstream.calls.length;
    const { code, details } = await other.call('RespondActivityTaskCompleted', complete(token));
    expect([code, details]).toEqual([
      status.NOT_FOUND,
      `RespondActivityTaskCompleted: the task token was not given to node ${OTHER}`,
    ]);
    expect(upstream.calls.length).toBe(polled);
  });

  test("Temporal's own token, an altered and an empty one are NOT_FOUND", async () => {
    const token = Buffer.from(await pollToken(node, NODE));
    const altered = Buffer.from(token);
    altered[altered.length - 1] = (altered.at(-1) ?? 0) ^ 1;
    for (const bad of [TASK_TOKEN, altered, token.subarray(0, 20), Buffer.alloc(0)]) {
      expect((await node.call('RespondActivityTaskCompleted', complete(bad))).code).toBe(status.NOT_FOUND);
    }
  });

  test('a token bound under the previous key is still accepted, under an unknown key it is not', async () => {
    const token = await pollToken(node, NODE);
    const [next, unrelated] = ['b2'.repeat(32), 'c3'.repeat(32)];
    for (const [keys, code] of [
      [[next, TOKEN_KEY], status.OK],
      [[next, unrelated], status.NOT_FOUND],
    ] as const) {
      const second = await startProxy(pki, { upstream: { address: upstream.address }, tokenKeys: [...keys] });
      const client = rawClient(second.address, pki, NODE);
      expect((await client.call('RespondActivityTaskCompleted', complete(token))).code).toBe(code);
      client.close();
      second.stop();
    }
  });
});

describe('what is handed on', () => {
  test('the deadline', async () => {
    await node.call('PollActivityTaskQueue', poll(`node-${NODE}`), {}, new Date(Date.now() + 70_000));
    expect(upstream.calls[0]?.deadlineMs).toBeGreaterThan(30_000);
    expect(upstream.calls[0]?.deadlineMs).toBeLessThanOrEqual(70_000);
  });

  test("the SDK's name and version, no other metadata, and the installation's own key", async () => {
    const cloud = await startProxy(pki, { upstream: { address: upstream.address, apiKey: 'cloud-key' } });
    const client = rawClient(cloud.address, pki, NODE);
    const metadata = { 'client-name': 'temporal-typescript', authorization: 'Bearer stolen', 'x-other': '1' };
    await client.call('GetSystemInfo', Buffer.alloc(0), metadata);
    client.close();
    cloud.stop();
    const sent = upstream.calls[0]?.metadata ?? {};
    expect(sent).toMatchObject({
      'client-name': 'temporal-typescript',
      'temporal-namespace': 'default',
      authorization: 'Bearer cloud-key',
    });
    expect(sent).not.toHaveProperty('x-other');
  });

  test('failures with code, words and binary details', async () => {
    const metadata = new grpc.Metadata();
    metadata.set('grpc-status-details-bin', Buffer.from([1, 2, 250]));
    metadata.set('x-internal', 'secret');
    upstream.answers.set('GetSystemInfo', {
      code: status.RESOURCE_EXHAUSTED,
      details: 'namespace limit 100 %',
      metadata,
    });
    const result = await node.call('GetSystemInfo', Buffer.alloc(0));
    expect([result.code, result.details]).toEqual([status.RESOURCE_EXHAUSTED, 'namespace limit 100 %']);
    expect(result.metadata.get('grpc-status-details-bin')).toEqual([Buffer.from([1, 2, 250])]);
    expect(result.metadata.get('x-internal')).toEqual([]);
  });

  test('messages of more than 4 MB, both ways', async () => {
    const big = Buffer.alloc(6 * 1024 * 1024, 7);
    const payloads = { payloads: [{ data: big }] };
    const answer = api.PollActivityTaskQueueResponse.encode({
      taskToken: TASK_TOKEN,
      input: payloads,
    }).finish();
    upstream.answers.set('PollActivityTaskQueue', Buffer.from(answer));
    const polled = await node.call('PollActivityTaskQueue', poll(`node-${NODE}`));
    expect([polled.code, polled.answer.length > big.length]).toEqual([status.OK, true]);
    const taskToken = api.PollActivityTaskQueueResponse.decode(polled.answer).taskToken;
    const request = { namespace: 'default', taskToken, result: payloads };
    const bytes = api.RespondActivityTaskCompletedRequest.encode(request).finish();
    expect((await node.call('RespondActivityTaskCompleted', bytes)).code).toBe(status.OK);
    expect(upstream.calls.at(-1)?.request.length).toBeGreaterThan(big.length);
  });

  test('an unreachable Temporal is UNAVAILABLE, and the next call after its return succeeds', async () => {
    upstream.close();
    const { code } = await node.call('GetSystemInfo', Buffer.alloc(0));
    expect(code).toBe(status.UNAVAILABLE);
    const back = await startFakeUpstream(upstream.address);
    await expect
      .poll(async () => (await node.call('GetSystemInfo', Buffer.alloc(0))).code, { timeout: 25_000 })
      .toBe(0);
    back.close();
  });
});

describe('who may call', () => {
  test("a server's certificate is no node's", async () => {
    const server = rawClient(proxy.address, pki, 'cp');
    const { code, details } = await server.call('GetSystemInfo', Buffer.alloc(0));
    server.close();
    expect(code).toBe(status.PERMISSION_DENIED);
    expect(details).toContain('server cp');
  });

  test('a certificate of the CA without an identity URI, or with that of another node, is refused', async () => {
    await forgeLeaf(pki.dir, 'bare', { cn: ['bare'], sans: [{ type: 'dns', value: 'bare' }] });
    await forgeLeaf(pki.dir, 'twofaced', {
      cn: [NODE],
      sans: [{ type: 'url', value: `llmgw:node/${OTHER}` }],
    });
    for (const [name, words] of [
      ['bare', 'no SAN URI'],
      ['twofaced', `common name is "${NODE}" but its SAN URI says "llmgw:node/${OTHER}"`],
    ] as const) {
      const client = rawClient(proxy.address, pki, name);
      const { code, details } = await client.call('GetSystemInfo', Buffer.alloc(0));
      client.close();
      expect(code).toBe(status.UNAUTHENTICATED);
      expect(details).toContain(words);
    }
    expect(upstream.calls).toEqual([]);
  });

  test('the header that names a node is ignored where there is a certificate', async () => {
    const { code } = await node.call('PollActivityTaskQueue', poll(`node-${OTHER}`), {
      [NODE_ID_HEADER]: OTHER,
    });
    expect(code).toBe(status.PERMISSION_DENIED);
  });

  test('without TLS nobody is believed unless the installation says so', async () => {
    const plain = await startProxy(null, { upstream: { address: upstream.address } });
    const client = rawClient(plain.address, null, NODE);
    const { code } = await client.call('GetSystemInfo', Buffer.alloc(0), { [NODE_ID_HEADER]: NODE });
    client.close();
    plain.stop();
    expect(code).toBe(status.UNAUTHENTICATED);
  });

  test('without TLS on loopback the header is the identity, and the rules are the same', async () => {
    const plain = await startProxy(null, {
      upstream: { address: upstream.address },
      insecureIdentity: 'loopback',
    });
    const client = rawClient(plain.address, null, NODE);
    const as = (id: string) => ({ [NODE_ID_HEADER]: id });
    expect((await client.call('PollActivityTaskQueue', poll(`node-${NODE}`), as(NODE))).code).toBe(status.OK);
    expect((await client.call('PollActivityTaskQueue', poll(`node-${OTHER}`), as(NODE))).code).toBe(
      status.PERMISSION_DENIED,
    );
    expect((await client.call('GetSystemInfo', Buffer.alloc(0))).code).toBe(status.UNAUTHENTICATED);
    expect((await client.call('GetSystemInfo', Buffer.alloc(0), as('../x'))).code).toBe(
      status.UNAUTHENTICATED,
    );
    client.close();
    plain.stop();
  });
});
