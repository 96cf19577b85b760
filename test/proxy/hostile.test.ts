// A node that its agent no longer rules: a valid certificate, and a client that sends what it likes.

import * as grpc from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import type protobuf from 'protobufjs';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { RULES } from '../../server/temporal-proxy/rules.js';
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
  WORKFLOW_SERVICE,
} from './harness.js';

const [NODE, OTHER] = NODES;
const OWN_QUEUE = `node-${NODE}`;
const TASK_TOKEN = Buffer.from('the token of Temporal');
const { status } = grpc;

const OPEN = [
  'DescribeNamespace',
  'GetSystemInfo',
  'PollActivityTaskQueue',
  'RecordActivityTaskHeartbeat',
  'RecordWorkerHeartbeat',
  'RespondActivityTaskCanceled',
  'RespondActivityTaskCompleted',
  'RespondActivityTaskFailed',
  'ShutdownWorker',
];

/** Everything that the SDK's protobuf files know: at run time the generated namespaces are reflection objects. */
const root = (temporalProto as unknown as { root: protobuf.Root }).root;
const services = new Map<string, protobuf.Service>();
(function walk(space: protobuf.NamespaceBase): void {
  for (const child of space.nestedArray) {
    if ('methods' in child) services.set(child.fullName.slice(1), child as protobuf.Service);
    if ('nestedArray' in child) walk(child as protobuf.NamespaceBase);
  }
})(root);
const requestOf = (method: string): protobuf.Type =>
  root.lookupType(`temporal.api.workflowservice.v1.${method}Request`);
const encode = (method: string, fields: object): Buffer =>
  Buffer.from(requestOf(method).encode(requestOf(method).fromObject(fields)).finish());

let pki: TestPki;
let upstream: FakeUpstream;
let proxy: RunningProxy;
let node: RawClient;

beforeAll(async () => {
  pki = await makePki();
});
beforeEach(async () => {
  upstream = await startFakeUpstream();
  proxy = await startProxy(pki, { upstream: { address: upstream.address } });
  node = rawClient(proxy.address, pki, NODE);
});
afterEach(() => {
  node.close();
  proxy.stop();
  upstream.close();
});
afterAll(() => pki.remove());

const ownToken = (): Buffer => bindToken(TOKEN_KEY, NODE, TASK_TOKEN);

/** A request of each open method that the proxy hands on. */
const honest = (): Record<string, object> => ({
  GetSystemInfo: {},
  DescribeNamespace: { namespace: 'default' },
  PollActivityTaskQueue: { namespace: 'default', taskQueue: { name: OWN_QUEUE, kind: 1 }, identity: NODE },
  RespondActivityTaskCompleted: { namespace: 'default', taskToken: ownToken(), identity: NODE },
  RespondActivityTaskFailed: { namespace: 'default', taskToken: ownToken(), identity: NODE },
  RespondActivityTaskCanceled: { namespace: 'default', taskToken: ownToken(), identity: NODE },
  RecordActivityTaskHeartbeat: { namespace: 'default', taskToken: ownToken(), identity: NODE },
  ShutdownWorker: { namespace: 'default', taskQueue: OWN_QUEUE, identity: NODE },
  RecordWorkerHeartbeat: {
    namespace: 'default',
    identity: NODE,
    workerHeartbeat: [{ taskQueue: OWN_QUEUE, workerIdentity: NODE, workerInstanceKey: 'k' }],
  },
});
const WITH_NAMESPACE = OPEN.filter(m => m !== 'GetSystemInfo');
const WITH_TOKEN = OPEN.filter(m => requestOf(m).fields.taskToken !== undefined);
const WITH_IDENTITY = OPEN.filter(m => requestOf(m).fields.identity !== undefined);

/** What reached Temporal last, as Temporal would read it. */
const arrived = (method: string): Record<string, unknown> => {
  const call = upstream.calls.at(-1);
  expect(call?.method).toBe(method);
  return requestOf(method).toObject(requestOf(method).decode(call?.request ?? Buffer.alloc(0)));
};

describe('every method of every service', () => {
  test('of WorkflowService, filled with the own namespace, queue and token, is refused but for the few of a worker', async () => {
    const methods = Object.keys(services.get(WORKFLOW_SERVICE)?.methods ?? {});
    expect(methods).toEqual(expect.arrayContaining(OPEN));
    expect(methods.length).toBeGreaterThan(100);
    for (const method of methods.filter(m => !OPEN.includes(m))) {
      const likely = { namespace: 'default', taskQueue: { name: OWN_QUEUE }, taskToken: ownToken() };
      const fields = Object.fromEntries(
        Object.entries(likely).filter(([name, value]) => {
          const field = requestOf(method).fields[name];
          return (
            field !== undefined &&
            (typeof value !== 'object' || Buffer.isBuffer(value) || field.type !== 'string')
          );
        }),
      );
      const { code, details } = await node.call(method, encode(method, fields));
      expect([status[code], details]).toEqual([
        'PERMISSION_DENIED',
        `${method} is not open to nodes: node ${NODE} may only run the activities of its own queue`,
      ]);
    }
    expect(upstream.calls).toEqual([]);
  });

  test('of any other service that a Temporal server offers is not there', async () => {
    const paths = [...services].flatMap(([name, service]) =>
      name === WORKFLOW_SERVICE ? [] : Object.keys(service.methods).map(method => `/${name}/${method}`),
    );
    expect(paths).toContain('/temporal.api.operatorservice.v1.OperatorService/DeleteNamespace');
    expect(paths).toContain('/grpc.health.v1.Health/Check');
    const others = [
      '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo',
      '/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo',
      '/temporal.server.api.adminservice.v1.AdminService/DescribeMutableState',
      '/temporal.server.api.historyservice.v1.HistoryService/RespondActivityTaskCompleted',
      '/temporal.server.api.matchingservice.v1.MatchingService/PollActivityTaskQueue',
      `/${WORKFLOW_SERVICE}/`,
      `/${WORKFLOW_SERVICE}/pollActivityTaskQueue`,
      `/${WORKFLOW_SERVICE}/PollActivityTaskQueue/`,
      `//${WORKFLOW_SERVICE}/PollActivityTaskQueue`,
      `/${WORKFLOW_SERVICE}/PollActivityTaskQueue?x=1`,
      `/${WORKFLOW_SERVICE}/../${WORKFLOW_SERVICE}/StartWorkflowExecution`,
      `/${WORKFLOW_SERVICE}/__proto__`,
      `/${WORKFLOW_SERVICE}/constructor`,
    ];
    for (const path of [...paths, ...others]) {
      const { code } = await node.call(path, Buffer.alloc(0));
      expect([path, status[code]]).toEqual([path, 'UNIMPLEMENTED']);
    }
    expect(upstream.calls).toEqual([]);
  });

  test('open to nodes goes upstream with an honest request, so that the refusals here are for what they say', async () => {
    for (const [method, fields] of Object.entries(honest())) {
      const { code, details } = await node.call(method, encode(method, fields));
      expect([method, status[code], details]).toEqual([method, 'OK', '']);
    }
    expect(upstream.calls.map(c => c.method).sort()).toEqual(OPEN);
  });

  // A new SDK may bring a field that names a queue or a worker: it stays out until somebody has looked at it.
  test('open to nodes has no request field that is neither handed on nor left out on purpose', () => {
    const leftOut: Record<string, string[]> = {
      DescribeNamespace: ['id'],
      PollActivityTaskQueue: ['deploymentOptions', 'workerControlTaskQueue', 'workerVersionCapabilities'],
      RecordActivityTaskHeartbeat: ['resourceId'],
      RecordWorkerHeartbeat: ['resourceId'],
      RespondActivityTaskCanceled: ['deployment', 'deploymentOptions', 'resourceId'],
      RespondActivityTaskCompleted: ['deployment', 'deploymentOptions', 'resourceId'],
      RespondActivityTaskFailed: ['deployment', 'deploymentOptions', 'resourceId'],
      ShutdownWorker: ['stickyTaskQueue'],
    };
    for (const method of OPEN) {
      const out = requestOf(method).fieldsArray.filter(f => !RULES[method]?.pass.includes(f.id));
      expect([method, out.map(f => f.name).sort()]).toEqual([method, leftOut[method] ?? []]);
    }
  });
});

describe('namespaces', () => {
  test.each(WITH_NAMESPACE)('%s for another namespace, for none and for two is refused', async method => {
    const fields = honest()[method] ?? {};
    const own = encode(method, fields);
    const other = encode(method, { ...fields, namespace: 'prod' });
    const onlyOther = encode(method, { namespace: 'prod' });
    const { namespace: _, ...none } = fields as { namespace: string };
    for (const [request, code] of [
      [other, 'PERMISSION_DENIED'],
      [encode(method, none), 'PERMISSION_DENIED'],
      [encode(method, { ...fields, namespace: 'Default' }), 'PERMISSION_DENIED'],
      [Buffer.concat([own, onlyOther]), 'INVALID_ARGUMENT'],
      [Buffer.concat([onlyOther, own]), 'INVALID_ARGUMENT'],
    ] as const) {
      const result = await node.call(method, request);
      expect([method, status[result.code]]).toEqual([method, code]);
    }
    expect(upstream.calls).toEqual([]);
  });

  test("a header that names another namespace, caller or authority doesn't go upstream", async () => {
    const metadata = {
      'temporal-namespace': 'prod',
      'caller-name': 'operator',
      'caller-type': 'operator',
      'temporal-resource-id': 'workflow:replica-x',
      'xdc-redirection': 'true',
      'x-forwarded-for': '10.0.0.1',
      authorization: 'Bearer stolen',
      'authorization-extras': 'stolen',
      'client-name': 'temporal-typescript',
    };
    for (const [method, fields] of Object.entries(honest())) {
      expect((await node.call(method, encode(method, fields), metadata)).code).toBe(status.OK);
      const sent = upstream.calls.at(-1)?.metadata ?? {};
      // grpc-js adds its own name.
      expect(Object.keys(sent).sort()).toEqual(['client-name', 'temporal-namespace', 'user-agent']);
      expect(sent['temporal-namespace']).toBe('default');
    }
  });

  test('a header that is too long to be a version is left out: it could break the connection that all share', async () => {
    const metadata = { 'client-version': '1'.repeat(5_000), 'client-name': 'temporal-typescript' };
    expect((await node.call('GetSystemInfo', Buffer.alloc(0), metadata)).code).toBe(status.OK);
    expect(upstream.calls[0]?.metadata).toHaveProperty('client-name');
    expect(upstream.calls[0]?.metadata).not.toHaveProperty('client-version');
  });
});

describe('queues', () => {
  const poll = (taskQueue: object): Buffer =>
    encode('PollActivityTaskQueue', { namespace: 'default', taskQueue });

  test.each([
    { name: `node-${OTHER}` },
    { name: `node-${OTHER}`, kind: 2, normalName: OWN_QUEUE },
    { name: OWN_QUEUE, kind: 2, normalName: `node-${OTHER}` },
    { name: OWN_QUEUE, kind: 1, normalName: 'llmgw' },
    { name: `/_sys/${OWN_QUEUE}/1` },
    { name: '' },
  ])('a poll of %j is refused', async taskQueue => {
    expect((await node.call('PollActivityTaskQueue', poll(taskQueue))).code).toBe(status.PERMISSION_DENIED);
    expect(upstream.calls).toEqual([]);
  });

  test('a queue that is called sticky is polled as the normal one that it is', async () => {
    const { code } = await node.call('PollActivityTaskQueue', poll({ name: OWN_QUEUE, kind: 2 }));
    expect(code).toBe(status.OK);
    expect(arrived('PollActivityTaskQueue').taskQueue).toEqual({ name: OWN_QUEUE, kind: 1 });
  });

  test("a second name, at either level and in either order, is refused: Temporal's parser would take the last", async () => {
    const [own, other] = [poll({ name: OWN_QUEUE }), poll({ name: `node-${OTHER}` })];
    const only = encode('PollActivityTaskQueue', { taskQueue: { name: `node-${OTHER}` } });
    const name = (value: string): Buffer =>
      Buffer.concat([Buffer.from([0x0a, value.length]), Buffer.from(value)]);
    const inner = (...names: string[]): Buffer => {
      const queue = Buffer.concat(names.map(name));
      return Buffer.concat([
        encode('PollActivityTaskQueue', { namespace: 'default' }),
        Buffer.from([0x12, queue.length]),
        queue,
      ]);
    };
    for (const request of [
      Buffer.concat([own, only]),
      Buffer.concat([only, own]),
      Buffer.concat([own, Buffer.from([0x12, 0])]),
      Buffer.concat([other, own]),
      inner(OWN_QUEUE, `node-${OTHER}`),
      inner(`node-${OTHER}`, OWN_QUEUE),
    ]) {
      expect((await node.call('PollActivityTaskQueue', request)).code).toBe(status.INVALID_ARGUMENT);
    }
    expect(upstream.calls).toEqual([]);
  });

  test('bytes that parsers read differently are refused', async () => {
    const own = poll({ name: OWN_QUEUE });
    const field = Buffer.concat([
      Buffer.from([OWN_QUEUE.length + 2, 0x0a, OWN_QUEUE.length]),
      Buffer.from(OWN_QUEUE),
    ]);
    const namespace = encode('PollActivityTaskQueue', { namespace: 'default' });
    for (const tail of [
      // Tag 0x12 with a bit beyond 32: a parser of 32 bits sees field 2, one of 64 bits field 2^29 + 2.
      Buffer.concat([Buffer.from([0x92, 0x80, 0x80, 0x80, 0x10]), field]),
      Buffer.concat([Buffer.from([0x92, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01]), field]),
      // Field number 0.
      Buffer.concat([Buffer.from([0x02]), field]),
      // A group ended by another number's end, wire types 6 and 7, a lone end of a group.
      Buffer.from([0xbb, 0x3e, 0xc4, 0x3e]),
      Buffer.from([0xbe, 0x3e]),
      Buffer.from([0xbf, 0x3e]),
      Buffer.from([0xbc, 0x3e]),
      // A length beyond the end, and one of 2^32 + 1.
      Buffer.from([0xba, 0x3e, 5, 1]),
      Buffer.from([0xba, 0x3e, 0x81, 0x80, 0x80, 0x80, 0x10, 1]),
    ]) {
      for (const request of [Buffer.concat([own, tail]), Buffer.concat([namespace, tail])]) {
        const { code } = await node.call('PollActivityTaskQueue', request);
        expect([tail.toString('hex'), code === status.OK]).toEqual([tail.toString('hex'), false]);
      }
    }
    expect(upstream.calls).toEqual([]);
  });

  test('fields that no rule has looked at stay here', async () => {
    const request = Buffer.concat([
      encode('PollActivityTaskQueue', {
        namespace: 'default',
        taskQueue: { name: OWN_QUEUE },
        workerControlTaskQueue: 'llmgw',
        deploymentOptions: { deploymentName: 'mine', buildId: '1', workerVersioningMode: 2 },
        workerVersionCapabilities: { buildId: '1', useVersioning: true },
      }),
      Buffer.from([0xba, 0x3e, 3, 1, 2, 3]),
      Buffer.from([0x10, 1]), // field 2 as a number
    ]);
    expect((await node.call('PollActivityTaskQueue', request)).code).toBe(status.OK);
    expect(arrived('PollActivityTaskQueue')).toEqual({
      namespace: 'default',
      taskQueue: { name: OWN_QUEUE, kind: 1 },
      identity: NODE,
    });
    expect(upstream.calls[0]?.request.includes(Buffer.from([0xba, 0x3e]))).toBe(false);
  });

  test("a report about another node's worker is refused, wherever in it the queue stands", async () => {
    const beat = (...workerHeartbeat: object[]): Buffer =>
      encode('RecordWorkerHeartbeat', { namespace: 'default', workerHeartbeat });
    const own = { taskQueue: OWN_QUEUE };
    const other = { taskQueue: `node-${OTHER}` };
    const shutdown = (fields: object): Buffer =>
      encode('ShutdownWorker', { namespace: 'default', ...fields });
    for (const [method, request] of [
      ['RecordWorkerHeartbeat', beat(own, other)],
      ['RecordWorkerHeartbeat', Buffer.concat([beat(other), encode('RecordWorkerHeartbeat', {})])],
      ['ShutdownWorker', shutdown({ taskQueue: `node-${OTHER}` })],
      ['ShutdownWorker', shutdown({ taskQueue: OWN_QUEUE, workerHeartbeat: other })],
      ['ShutdownWorker', shutdown({ taskQueue: OWN_QUEUE, stickyTaskQueue: 'x' })],
      [
        'ShutdownWorker',
        Buffer.concat([
          shutdown({ taskQueue: OWN_QUEUE }),
          encode('ShutdownWorker', { taskQueue: `node-${OTHER}` }),
        ]),
      ],
    ] as const) {
      expect((await node.call(method, request)).code).toBe(status.PERMISSION_DENIED);
    }
    const crowd = beat(...Array.from({ length: 100 }, (_, i) => ({ ...own, workerInstanceKey: `w${i}` })));
    // Temporal keeps a bounded list of workers: a crowd of made-up ones would push the others' out of it.
    expect((await node.call('RecordWorkerHeartbeat', crowd)).code).toBe(status.INVALID_ARGUMENT);
    expect(upstream.calls).toEqual([]);
  });
});

describe('identities', () => {
  test.each(WITH_IDENTITY)(
    '%s reaches Temporal in the name of the certificate, whatever it says',
    async method => {
      for (const identity of [OTHER, '', undefined, 'operator@console']) {
        const request = encode(method, { ...honest()[method], identity });
        expect((await node.call(method, request)).code).toBe(status.OK);
        expect(arrived(method).identity).toBe(NODE);
      }
      const twice = Buffer.concat([
        encode(method, honest()[method] ?? {}),
        encode(method, { identity: OTHER }),
      ]);
      expect((await node.call(method, twice)).code).toBe(status.OK);
      expect(arrived(method).identity).toBe(NODE);
    },
  );

  test('a worker reports itself in the name of the certificate', async () => {
    const workerHeartbeat = { taskQueue: OWN_QUEUE, workerIdentity: OTHER, workerInstanceKey: 'k' };
    const own = { taskQueue: OWN_QUEUE, workerIdentity: NODE, workerInstanceKey: 'k' };
    const beat = encode('RecordWorkerHeartbeat', {
      namespace: 'default',
      workerHeartbeat: [workerHeartbeat],
    });
    expect((await node.call('RecordWorkerHeartbeat', beat)).code).toBe(status.OK);
    expect(arrived('RecordWorkerHeartbeat').workerHeartbeat).toEqual([own]);
    const shutdown = encode('ShutdownWorker', { namespace: 'default', workerHeartbeat });
    expect((await node.call('ShutdownWorker', shutdown)).code).toBe(status.OK);
    expect(arrived('ShutdownWorker').workerHeartbeat).toEqual(own);
  });
});

describe('task tokens', () => {
  test.each(WITH_TOKEN)(
    "%s with another node's, an altered, a cut or a twofold token is refused",
    async method => {
      const fields = honest()[method] ?? {};
      const own = ownToken();
      const flipped = [0, 1, 16, 32, 33, own.length - 1].map(at => {
        const token = Buffer.from(own);
        token[at] = (token[at] ?? 0) ^ 0x10;
        return token;
      });
      const cut = [0, 1, 32, 33, own.length - 1].map(length => own.subarray(0, length));
      const tokens = [
        bindToken(TOKEN_KEY, OTHER, TASK_TOKEN),
        bindToken('c3'.repeat(32), NODE, TASK_TOKEN),
        bindToken(TOKEN_KEY, `${NODE}\0`, TASK_TOKEN),
        Buffer.concat([own, Buffer.from('more')]),
        Buffer.concat([own, own]),
        TASK_TOKEN,
        ...flipped,
        ...cut,
      ];
      for (const taskToken of tokens) {
        const { code } = await node.call(method, encode(method, { ...fields, taskToken }));
        expect([taskToken.toString('hex'), status[code]]).toEqual([taskToken.toString('hex'), 'NOT_FOUND']);
      }
      const twice = Buffer.concat([encode(method, fields), encode(method, { taskToken: TASK_TOKEN })]);
      expect((await node.call(method, twice)).code).toBe(status.INVALID_ARGUMENT);
      const { taskToken: _, ...none } = fields as { taskToken: Buffer };
      expect((await node.call(method, encode(method, none))).code).toBe(status.NOT_FOUND);
      expect(upstream.calls).toEqual([]);
    },
  );

  test.each(WITH_TOKEN)(
    '%s hands on the real token and nothing that would lead it to another task',
    async method => {
      const request = encode(method, {
        ...honest()[method],
        resourceId: 'workflow:replica-x',
        deployment: { buildId: '1' },
      });
      expect((await node.call(method, request)).code).toBe(status.OK);
      expect(arrived(method)).toEqual({ taskToken: TASK_TOKEN, identity: NODE, namespace: 'default' });
    },
  );
});
