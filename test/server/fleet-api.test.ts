// /v1/fleet, forget and adopt at the operators' API: what is asked of the workflows, and what is refused before.
import { ApplicationFailure, WorkflowNotFoundError, WorkflowUpdateFailedError } from '@temporalio/client';
import { expect, test } from 'vitest';
import { silentLogger } from '../../lib/log.js';
import { FleetClient } from '../../server/fleet.js';
import { type HttpDeps, httpApp } from '../../server/http/app.js';

const status = {
  brake: { on: false, by: null, since: null, reason: '' },
  rebuilding: null,
  nodes: { connected: 1, silent: 0, unsupervised: 0, lost: 0, incompatible: 0 },
  unclaimed: [],
  alarms: [],
};

/** The API over a Temporal whose answers are the test's; what it was asked is kept. */
function api() {
  const at = {
    updates: [] as [string, string, unknown[]][],
    signals: [] as [string, string, unknown][],
    starts: [] as { workflowId: string; args: unknown[]; workflowIdConflictPolicy: string }[],
    update: async (): Promise<unknown> => ({ result: 'accepted', reason: 'its 8 GPUs are free' }),
    start: async (): Promise<void> => {},
    nodeState: 'connected',
  };
  const client = {
    options: { namespace: 'default' },
    connection: { withDeadline: (_at: number, call: () => unknown) => call() },
    workflow: {
      start: (_type: string, options: (typeof at.starts)[0]) => {
        at.starts.push(options);
        return at.start();
      },
      getHandle: (id: string) => ({
        executeUpdate: (name: string, { args }: { args: unknown[] }) => {
          at.updates.push([id, name, args]);
          return at.update();
        },
        signal: async (name: string, msg: unknown) => void at.signals.push([id, name, msg]),
      }),
    },
  };
  const fleet = new FleetClient(client as never);
  const live = { unclaimed: [] as object[], engines: [] as object[] };
  fleet.status = async () => ({ ...status, unclaimed: live.unclaimed }) as never;
  fleet.nodes = async () => [{ node_id: 'gpu-a-01', state: at.nodeState, reason: 'no heartbeat' }] as never;
  const deps = {
    fleet,
    nodes: { live: async (id: string) => (id === 'gpu-a-01' ? { engines: live.engines } : null) },
    ready: () => true,
    tokensFile: null,
    tls: null,
    log: silentLogger(),
    instance: 'cp-1',
  };
  const app = httpApp(deps as unknown as HttpDeps);
  const post = async (url: string, payload?: object) => {
    const res = await app.inject({ method: 'POST', url, ...(payload === undefined ? {} : { payload }) });
    return { code: res.statusCode, body: res.json() };
  };
  return { at, app, post, live };
}

test("the fleet's status is the ledger's answer", async () => {
  const { app } = api();
  expect((await app.inject({ method: 'GET', url: '/v1/fleet' })).json()).toEqual(status);
});

test('an engine that nobody claims is shown with its pid and port, as its node says them', async () => {
  const { app, live } = api();
  const unclaimed = { replica: 'demo', fence: 7, node: 'gpu-a-01', slots: [0], since: '', why: 'lost' };
  live.unclaimed = [unclaimed, { ...unclaimed, node: 'gpu-z-09' }];
  live.engines = [
    { replica: 'demo', fence: 6, pid: 1, ports: {} },
    { replica: 'demo', fence: 7, pid: 4711, ports: { http: 20_001 } },
  ];
  expect((await app.inject({ method: 'GET', url: '/v1/fleet' })).json().unclaimed).toMatchObject([
    { node: 'gpu-a-01', pid: 4711, port: 20_001 },
    { node: 'gpu-z-09', pid: null, port: null },
  ]);
});

test('the brake is engaged and released by name, without a name by the API', async () => {
  const { at, post } = api();
  await post('/v1/fleet/brake', { by: 'ada' });
  expect((await post('/v1/fleet/release-brake')).code).toBe(200);
  expect(at.updates).toEqual([
    ['fleet', 'brake', [{ on: true, by: 'ada' }]],
    ['fleet', 'brake', [{ on: false, by: 'api' }]],
  ]);
  expect(await post('/v1/fleet/brake', { by: 'a\nb' })).toMatchObject({
    code: 400,
    body: { error: { code: 'BAD_REQUEST', message: expect.stringContaining('by:') } },
  });
});

test('a node is forgotten only with its id once more: the ledger first, then its own workflow', async () => {
  const { at, post } = api();
  for (const body of [undefined, {}, { confirm: 'gpu-b-02' }])
    expect(await post('/v1/nodes/gpu-a-01/forget', body)).toMatchObject({
      code: 400,
      body: { error: { code: 'BAD_REQUEST', message: expect.stringContaining('"gpu-a-01"') } },
    });
  expect(at.updates).toEqual([]);
  expect(await post('/v1/nodes/gpu-a-01/forget', { confirm: 'gpu-a-01', by: 'ada' })).toEqual({
    code: 200,
    body: { result: 'accepted', reason: 'its 8 GPUs are free' },
  });
  expect(at.updates).toEqual([['fleet', 'forget', [{ node: 'gpu-a-01', by: 'ada' }]]]);
  expect(at.signals).toEqual([['node/gpu-a-01', 'forget', { by: 'ada' }]]);
});

test("the ledger's refusal comes with its code, and the node's workflow hears nothing", async () => {
  const { at, post } = api();
  const refused = ApplicationFailure.nonRetryable('gpu-a-01 is connected', 'NODE_IN_USE');
  at.update = async () => Promise.reject(new WorkflowUpdateFailedError('refused', refused));
  expect(await post('/v1/nodes/gpu-a-01/forget', { confirm: 'gpu-a-01' })).toMatchObject({
    code: 409,
    body: { error: { code: 'NODE_IN_USE', message: 'gpu-a-01 is connected' } },
  });
  expect(at.signals).toEqual([]);
});

test('without a ledger an operator is told so', async () => {
  const { at, post } = api();
  at.update = async () => Promise.reject(new WorkflowNotFoundError('not found', 'fleet', undefined));
  expect(await post('/v1/fleet/brake')).toMatchObject({
    code: 503,
    body: { error: { message: expect.stringContaining('no ledger') } },
  });
});

const spec = { model: 'Qwen/Qwen3-8B', engine: 'vllm' };
const whole = { node: 'gpu-a-01', pid: 4711, port: 8000, spec };

test('an adoption starts the replica with its spec and the process', async () => {
  const { at, post } = api();
  expect(await post('/v1/replicas/mine/adopt', whole)).toMatchObject({
    code: 201,
    body: { result: 'created', name: 'mine' },
  });
  expect(at.starts).toMatchObject([
    {
      workflowId: 'replica/mine',
      workflowIdConflictPolicy: 'FAIL',
      args: [spec, { adopt: { node: 'gpu-a-01', pid: 4711, port: 8000 } }],
    },
  ]);
});

test.each([
  ['a missing pid', { ...whole, pid: undefined }, 400, 'pid'],
  ["the init process's pid", { ...whole, pid: 1 }, 400, 'pid'],
  ['a port that is none', { ...whole, port: 70_000 }, 400, 'port'],
  ['an unknown key', { ...whole, pod: 3 }, 400, 'pod'],
  ['a fault of the spec', { ...whole, spec: { ...spec, tensor_paralell: 2 } }, 422, 'tensor_paralell'],
  ['another name in the spec', { ...whole, spec: { ...spec, name: 'yours' } }, 422, 'yours'],
  ['no spec', { ...whole, spec: undefined }, 400, 'spec'],
  ['a node that is not there', { ...whole, node: 'gpu-z-09' }, 404, 'gpu-z-09'],
])('%s starts nothing', async (_what, body, code, word) => {
  const { at, post } = api();
  const answer = await post('/v1/replicas/mine/adopt', body);
  expect(answer.code).toBe(code);
  expect(answer.body.error.message).toContain(word);
  expect(at.starts).toEqual([]);
});

test('an adoption is refused on a node that is not connected, and by a replica that runs', async () => {
  const { at, post } = api();
  at.nodeState = 'silent';
  expect(await post('/v1/replicas/mine/adopt', whole)).toMatchObject({
    code: 503,
    body: { error: { code: 'NODE_UNREACHABLE', message: expect.stringContaining('silent') } },
  });
  at.nodeState = 'connected';
  at.start = async () =>
    Promise.reject(Object.assign(new Error('it runs'), { name: 'WorkflowExecutionAlreadyStartedError' }));
  expect(await post('/v1/replicas/mine/adopt', whole)).toMatchObject({
    code: 409,
    body: { error: { code: 'ADOPT_REFUSED', message: expect.stringContaining('replica/mine runs already') } },
  });
});
