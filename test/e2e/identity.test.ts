// A node is its certificate's common name (INV-8): what disagrees is refused, both named, and an agent that is refused
// or cut off stops when it is told to. The two bugs of the agent's first version, with real processes.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import * as grpc from '@grpc/grpc-js';
import { temporal } from '@temporalio/proto';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient } from '../../lib/pki/issue.js';
import { agentProto } from '../../proto/load.js';
import { PROTOCOL_VERSION } from '../../proto/version.js';
import { getJson } from './clients.js';
import { agentConfig, NODE, tlsFiles } from './configs.js';
import { type Installation, install, MAIN } from './harness.js';
import { kill, type LogRecord, type Started, start, waitFor } from './processes.js';

let at: Installation;
let strangers: string;
beforeAll(async () => {
  at = await install({ without: ['router'] });
  const issued = await at.ctl('cert', 'issue-client', 'gpu-b-02', '--dir', at.pki);
  expect(issued.stderr).toBe('');
  strangers = path.join(at.dir, 'strangers');
  await initCa(strangers);
  await issueClient(strangers, NODE);
});
afterAll(() => at?.close());

const others: Started[] = [];
afterEach(async () => {
  for (const { pid, ended } of others.splice(0)) {
    kill(pid, 'SIGKILL');
    await ended;
  }
});

/** Another agent than the installation's own; nothing of it has to work. */
function agentOf(name: string, change: Record<string, unknown>): Started {
  const config = agentConfig(at.dir, at.pki, at.ports, name, change);
  const file = path.join(at.dir, `${name}.yaml`);
  writeFileSync(file, stringify(config));
  const started = start(process.execPath, [MAIN, 'agent', '--config', file], {
    logFile: path.join(at.dir, `${name}.log`),
    env: { ...process.env, LLMGW_SIMULATE: at.files.simulation },
  });
  others.push(started);
  return started;
}

const refusals = (agent: Started): LogRecord[] =>
  agent.records().filter(r => r.msg?.startsWith('refused by the control plane'));

it('refuses an agent whose certificate is not its node_id, again and again at growing intervals', async () => {
  const agent = agentOf('gpu-c-03', { tls: tlsFiles(at.pki, 'gpu-b-02') });
  const seen = await waitFor(
    'five refusals',
    () => (refusals(agent).length >= 5 ? refusals(agent) : null),
    () => agent.output(),
  );
  for (const record of seen) {
    expect(record).toMatchObject({ certificate: 'gpu-b-02', claim: 'gpu-c-03' });
    expect(record.server_says).toMatch(/"gpu-b-02".*"gpu-c-03"/);
    expect(record.not_after).toMatch(/^\d{4}-/);
  }
  // From reconnect_base (100ms) doubled to reconnect_max (1s), each with jitter down to its half: never the base again.
  const waits = seen.map(record => Number(record.in_ms));
  for (const [i, full] of [100, 200, 400, 800, 1000].entries()) {
    expect(waits[i]).toBeGreaterThanOrEqual(full / 2);
    expect(waits[i]).toBeLessThanOrEqual(full);
  }
  expect((await at.nodes()).map(n => n.node_id)).toEqual([NODE]);
  expect(at.server.process().output()).not.toContain('"node":"gpu-c-03"');
  const metrics = await fetch(`http://127.0.0.1:${at.ports.http}/metrics`).then(res => res.text());
  expect(metrics).toContain('llmgw_agents_connected 1\n');
  kill(agent.pid, 'SIGTERM');
  expect(await agent.ended).toBe(0);
});

it('ends an agent that is connected by SIGTERM', async () => {
  expect(await at.agent.end('SIGTERM')).toBe(0);
  await waitFor('the node to be seen silent', async () => (await at.nodes())[0]?.state === 'silent');
  await at.agent.start();
});

it('ends an agent by SIGTERM whose control plane answers nothing any more, and one that never got an answer', async () => {
  kill(at.server.pid(), 'SIGSTOP');
  try {
    const late = agentOf('gpu-b-02', {});
    await waitFor('it to dial', () => late.records().some(r => r.msg === 'node discovered'), late.output);
    kill(late.pid, 'SIGTERM');
    expect(await late.ended).toBe(0);
    expect(await at.agent.end('SIGTERM')).toBe(0);
  } finally {
    kill(at.server.pid(), 'SIGCONT');
  }
  await at.agent.start();
});

it('ends an agent by SIGTERM that waits to connect again', async () => {
  const closed = agentOf('gpu-b-02', {
    server: 'https://127.0.0.1:1',
    reconnect_base: '1h',
    reconnect_max: '1h',
  });
  await waitFor(
    'it to wait',
    () => closed.records().some(r => r.msg?.startsWith('no stream to the control plane')),
    closed.output,
  );
  kill(closed.pid, 'SIGTERM');
  expect(await closed.ended).toBe(0);
});

interface Presented {
  ca: string;
  /** Name of the certificate; null: none. */
  name: string | null;
}
const none = (): Presented => ({ ca: at.pki, name: null });
const foreign = (): Presented => ({ ca: strangers, name: NODE });

function credentials({ ca, name }: Presented): grpc.ChannelCredentials {
  const read = (file: string) => readFileSync(path.join(ca, file));
  // The control plane's own CA: it is the server that has to refuse, not we.
  const root = readFileSync(path.join(at.pki, 'ca.pem'));
  return name === null
    ? grpc.credentials.createSsl(root)
    : grpc.credentials.createSsl(root, read(`${name}-key.pem`), read(`${name}.pem`));
}

interface Outcome {
  code: grpc.status;
  details: string;
}

/** Says Hello as `nodeId`; how the stream ended. */
async function hello(presented: Presented, nodeId: string): Promise<Outcome> {
  const client = new (agentProto().Agent)(`localhost:${at.ports.agent}`, credentials(presented));
  try {
    return await new Promise(resolve => {
      const call = client.Connect();
      call.on('error', (error: grpc.ServiceError) => resolve({ code: error.code, details: error.details }));
      call.on('data', () => resolve({ code: grpc.status.OK, details: 'welcomed' }));
      call.write({ hello: { node_id: nodeId, protocol_version: PROTOCOL_VERSION, session: 1 } });
    });
  } finally {
    client.close();
  }
}

/** Polls for work of `nodeId` through the Temporal proxy. */
async function poll(presented: Presented, nodeId: string): Promise<Outcome> {
  const { PollActivityTaskQueueRequest } = temporal.api.workflowservice.v1;
  const request = PollActivityTaskQueueRequest.encode({
    namespace: 'default',
    taskQueue: { name: `node-${nodeId}` },
  }).finish();
  return await unary(presented, 'PollActivityTaskQueue', request);
}

async function unary(presented: Presented, method: string, request: Uint8Array): Promise<Outcome> {
  const client = new grpc.Client(`localhost:${at.ports.agent}`, credentials(presented));
  const raw = (bytes: Buffer) => bytes;
  const name = `/temporal.api.workflowservice.v1.WorkflowService/${method}`;
  try {
    return await new Promise(resolve => {
      client.makeUnaryRequest(name, raw, raw, Buffer.from(request), error =>
        resolve({ code: error?.code ?? grpc.status.OK, details: error?.details ?? '' }),
      );
    });
  } finally {
    client.close();
  }
}

for (const [way, call] of [
  ['stream', hello],
  ['Temporal proxy', poll],
] as const) {
  it(`lets nothing in at the ${way} without a certificate, or with one of another CA`, async () => {
    const [without, other] = [await call(none(), NODE), await call(foreign(), NODE)];
    expect([without.code, other.code]).toEqual([grpc.status.UNAUTHENTICATED, grpc.status.UNAUTHENTICATED]);
    expect(without.details).toContain('with a client certificate only, and none was presented');
    expect(other.details).toContain('does not lead to a CA that this control plane trusts, or');
  });

  it(`lets no node be another one at the ${way}`, async () => {
    const { code, details } = await call({ ca: at.pki, name: 'gpu-b-02' }, NODE);
    expect(code).toBe(grpc.status.PERMISSION_DENIED);
    expect(details).toContain('gpu-b-02');
    expect(details).toContain(NODE);
  });
}

it('lets no node start or read a workflow', async () => {
  const { StartWorkflowExecutionRequest } = temporal.api.workflowservice.v1;
  const request = StartWorkflowExecutionRequest.encode({
    namespace: 'default',
    workflowId: 'replica/stolen',
    workflowType: { name: 'replica' },
    taskQueue: { name: 'llmgw' },
  }).finish();
  const asNode: Presented = { ca: at.pki, name: NODE };
  const { code } = await unary(asNode, 'StartWorkflowExecution', request);
  expect([grpc.status.PERMISSION_DENIED, grpc.status.UNIMPLEMENTED]).toContain(code);
  expect(await at.status('stolen')).toBeNull();
  const history = await unary(asNode, 'GetWorkflowExecutionHistory', Buffer.alloc(0));
  expect([grpc.status.PERMISSION_DENIED, grpc.status.UNIMPLEMENTED]).toContain(history.code);
});

it('speaks no plain HTTP on the agents’ address', async () => {
  expect(await getJson(`http://127.0.0.1:${at.ports.agent}/healthz`)).toBeNull();
  await expect(fetch(`http://127.0.0.1:${at.ports.agent}/`)).rejects.toThrow();
});

it('has the own agent connected and at work all the time', async () => {
  await at.deploy('proof', { model: 'm', served_model_name: 'proof', engine: 'vllm' });
  await at.untilPhase('proof', 'ready');
});
