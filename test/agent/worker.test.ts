// The node's worker against a real Temporal server, through the real endpoint and proxy.
import { copyFileSync, existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { Worker } from '@temporalio/worker';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { Conditions } from '../../agent/conditions.js';
import { NodeWorker, type NodeWorkerOptions } from '../../agent/worker.js';
import { issueClient } from '../../lib/pki/issue.js';
import type { TlsPaths } from '../../lib/tls/load.js';
import { startAgentEndpoint } from '../../server/stream/endpoint.js';
import { temporalProxyService } from '../../server/temporal-proxy/service.js';
import { reservedPort } from '../fakes/ports.js';
import { type LogLine, makePki, recordingLog, until } from '../stream/support.js';

const NODE = 'gpu-a-01';

let env: TestWorkflowEnvironment;
let flows: Worker;
let flowsDone: Promise<void>;

interface Run {
  worker: NodeWorker;
  conditions: Conditions;
  lines: LogLine[];
  calls: string[];
  stop(): Promise<void>;
}

function startWorker(port: number, tls: TlsPaths | null, more: Partial<NodeWorkerOptions> = {}): Run {
  const { log, lines } = recordingLog();
  const conditions = new Conditions();
  const calls: string[] = [];
  const worker = new NodeWorker({
    config: {
      nodeId: NODE,
      server: { host: '127.0.0.1', port, tls: tls !== null },
      tls,
      reconnectBaseMs: 20,
      reconnectMaxMs: 100,
    },
    activities: {
      greet: async () => {
        calls.push('greet');
        return 'hello from the node';
      },
    },
    conditions,
    log,
    lookEveryMs: 20,
    ...more,
  });
  const stopper = new AbortController();
  const running = worker.run(stopper.signal);
  const stop = async () => {
    stopper.abort();
    await running;
  };
  return { worker, conditions, lines, calls, stop };
}

let refused: Run;

beforeAll(async () => {
  const binary = process.env.LLMGW_TEMPORAL_BIN ?? join(homedir(), '.cache/llmgw/temporal-v1.5.1/temporal');
  if (!existsSync(binary))
    throw new Error(`${binary} is missing: set LLMGW_TEMPORAL_BIN to a temporal binary.`);
  // First of all, because the worker installs the SDK's runtime, and a process has one.
  refused = startWorker(await reservedPort(), null);
  refused.worker.use('default');
  await until(
    () => refused.lines.filter(l => l.msg.startsWith('the Temporal worker does not run')).length >= 2,
  );
  env = await TestWorkflowEnvironment.createLocal({
    server: {
      executable: { type: 'existing-path', path: binary },
      log: { format: 'pretty', level: 'error' },
    },
  });
  flows = await Worker.create({
    connection: env.nativeConnection,
    taskQueue: 'flows',
    workflowsPath: fileURLToPath(new URL('../proxy/worker-workflows.ts', import.meta.url)),
  });
  flowsDone = flows.run();
});

afterAll(async () => {
  flows?.shutdown();
  await flowsDone;
  await env?.teardown();
});

async function endpoint(tls?: TlsPaths): Promise<number> {
  const { log } = recordingLog();
  const proxy = temporalProxyService({
    upstream: { address: env.address },
    namespace: 'default',
    tokenKeys: ['a1'.repeat(32)],
    log,
    ...(tls === undefined ? { insecureIdentity: 'loopback' as const } : {}),
  });
  const started = await startAgentEndpoint({
    listen: { host: '127.0.0.1', port: 0 },
    ...(tls === undefined ? {} : { tls }),
    services: [proxy],
    log,
  });
  onTestFinished(async () => {
    proxy.close();
    await started.close(100);
  });
  return started.address.port;
}

const greet = (id: string) =>
  env.client.workflow.execute('callNode', {
    taskQueue: 'flows',
    workflowId: id,
    args: [`node-${NODE}`, 'greet'],
  });

test('a worker that cannot reach its control plane is a condition of the node and tries again; it never throws', async () => {
  expect(refused.conditions.list()).toMatchObject([{ code: 'worker' }]);
  await refused.stop();
});

test('nothing is dialled before Welcome has told the namespace', async () => {
  const pki = await makePki();
  const run = startWorker(await endpoint(pki.server), await pki.client(NODE));
  await run.stop();
  expect(run.lines).toEqual([]);
});

test('the worker serves its node queue over the mTLS address, and a renewed certificate makes a new connection', async () => {
  const pki = await makePki();
  const tls = await pki.client(NODE);
  const run = startWorker(await endpoint(pki.server), tls);
  onTestFinished(run.stop);
  run.worker.use('default');
  expect(await greet('before')).toBe('hello from the node');
  await issueClient(pki.dir, NODE, { force: true });
  await until(() => run.lines.some(l => l.msg.includes('has a new connection')));
  expect(await greet('after')).toBe('hello from the node');
  expect(run.calls).toHaveLength(2);
  expect(run.conditions.list()).toEqual([]);
});

test('a changed certificate that cannot be used keeps the old connection, and is a condition', async () => {
  const pki = await makePki();
  const tls = await pki.client(NODE);
  const run = startWorker(await endpoint(pki.server), tls);
  onTestFinished(run.stop);
  run.worker.use('default');
  await until(() => run.lines.some(l => l.msg === 'the Temporal worker runs'));
  const other = await makePki();
  const { key } = await other.client(NODE);
  copyFileSync(key, tls.key);
  await until(() => run.conditions.list()[0]?.message.includes(tls.key));
  expect(await greet('kept')).toBe('hello from the node');
});

test('without TLS the worker names its node in each call', async () => {
  const run = startWorker(await endpoint(), null);
  onTestFinished(run.stop);
  run.worker.use('default');
  expect(await greet('plain')).toBe('hello from the node');
});
