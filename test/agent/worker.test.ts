// The node's worker against a real Temporal server, through the real endpoint and proxy.
import { copyFileSync, existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Context } from '@temporalio/activity';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { Worker } from '@temporalio/worker';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { Conditions } from '../../agent/conditions.js';
import { NodeWorker, type NodeWorkerOptions } from '../../agent/worker.js';
import { issueClient } from '../../lib/pki/issue.js';
import { loadTlsFiles, type TlsPaths } from '../../lib/tls/load.js';
import { startAgentEndpoint } from '../../server/stream/endpoint.js';
import { temporalProxyService } from '../../server/temporal-proxy/service.js';
import { reservedPort } from '../fakes/ports.js';
import { forgeLeaf } from '../pki/forge.js';
import { type LogLine, makePki, recordingLog, relay, tlsPaths, until } from '../stream/support.js';

const NODE = 'gpu-a-01';

let env: TestWorkflowEnvironment;
let flows: Worker;
let flowsDone: Promise<void>;

/** An activity that runs until the test lets it end; told to stop by its worker, it ends its attempt. */
class Gate {
  readonly attempts: number[] = [];
  private open: () => void = () => {};
  private readonly opened = new Promise<void>(resolve => {
    this.open = resolve;
  });

  readonly activity = async (): Promise<string> => {
    const context = Context.current();
    this.attempts.push(context.info.attempt);
    context.heartbeat();
    const beats = setInterval(() => context.heartbeat(), 200);
    await Promise.race([this.opened, context.cancelled]).finally(() => clearInterval(beats));
    return `attempt ${context.info.attempt}`;
  };

  let(): void {
    this.open();
  }
}

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
    workflowsPath: fileURLToPath(new URL('./worker-workflows.ts', import.meta.url)),
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

const untilDone = (id: string, activity: string) =>
  env.client.workflow.execute('callNodeUntilDone', {
    taskQueue: 'flows',
    workflowId: id,
    args: [`node-${NODE}`, activity],
  });

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

test('an activity that runs while the certificate changes is repeated by the new worker, and its workflow goes on', async () => {
  const pki = await makePki();
  const gate = new Gate();
  const tls = await pki.client(NODE);
  const run = startWorker(await endpoint(pki.server), tls, { activities: { work: gate.activity } });
  onTestFinished(run.stop);
  run.worker.use('default');
  const answer = untilDone('rotated', 'work');
  await until(() => gate.attempts.length === 1);
  await issueClient(pki.dir, NODE, { force: true });
  await until(() => gate.attempts.length === 2);
  gate.let();
  expect(await answer).toBe('attempt 2');
  expect(run.lines.filter(l => l.msg === 'the Temporal worker runs')).toHaveLength(1);
});

test('a connection whose bytes vanish is found by its own probe and replaced; the agent stops all the same', async () => {
  const pki = await makePki();
  const nat = await relay(await endpoint(pki.server));
  const run = startWorker(nat.port, await pki.client(NODE), { probeEveryMs: 50, probeWithinMs: 300 });
  onTestFinished(run.stop);
  run.worker.use('default');
  expect(await greet('heard')).toBe('hello from the node');
  nat.blackhole();
  await until(() => run.lines.some(l => l.msg.includes('gone dead without a word')));
  expect(await untilDone('heard-again', 'greet')).toBe('hello from the node');
  expect(run.conditions.list()).toEqual([]);
  nat.blackhole();
  await run.stop();
});

test('while the control plane is away the worker is kept, and is heard again when it is back', async () => {
  const pki = await makePki();
  const link = await relay(await endpoint(pki.server));
  const run = startWorker(link.port, await pki.client(NODE), { probeEveryMs: 50, probeWithinMs: 200 });
  onTestFinished(run.stop);
  run.worker.use('default');
  expect(await greet('before-away')).toBe('hello from the node');
  link.refuse(true);
  link.cut();
  await until(() => run.conditions.list()[0]?.message.includes('is not heard'));
  link.refuse(false);
  await until(() => run.conditions.list().length === 0);
  expect(await untilDone('after-away', 'greet')).toBe('hello from the node');
  expect(run.lines.filter(l => l.msg === 'the Temporal worker runs')).toHaveLength(1);
});

test('a certificate that ends while an activity runs: both go on; the next connection is refused for it; a new one brings it back', async () => {
  const pki = await makePki();
  const link = await relay(await endpoint(pki.server));
  const gate = new Gate();
  const sans = [{ type: 'url' as const, value: `llmgw:node/${NODE}` }];
  const forge = (seconds: number) =>
    forgeLeaf(pki.dir, NODE, { cn: [NODE], sans, usages: ['clientAuth'], to: seconds / 86_400 });
  await forge(5);
  const tls = tlsPaths(pki.dir, NODE);
  const ended = () =>
    Date.now() > Date.parse(loadTlsFiles(tls, 'client', { anyDate: true }).info.not_after) + 200;
  const run = startWorker(link.port, tls, {
    activities: { work: gate.activity, greet: async () => 'hello from the node' },
    probeEveryMs: 50,
    probeWithinMs: 500,
  });
  onTestFinished(run.stop);
  run.worker.use('default');
  const answer = untilDone('outlives', 'work');
  // A machine that is too busy to begin in that time gets a longer one.
  for (const seconds of [15, 45]) {
    await until(() => gate.attempts.length > 0 || ended());
    if (gate.attempts.length === 0) await forge(seconds);
  }
  await until(() => gate.attempts.length > 0);
  await until(ended);
  const { length } = gate.attempts;
  gate.let();
  expect(await answer).toBe(`attempt ${gate.attempts.at(-1)}`);
  expect(gate.attempts).toHaveLength(length);
  expect(run.conditions.list()).toEqual([]);

  link.cut();
  await until(() => run.conditions.list()[0]?.message.includes('it has expired'));
  await issueClient(pki.dir, NODE, { force: true });
  expect(await untilDone('renewed', 'greet')).toBe('hello from the node');
  await until(() => run.conditions.list().length === 0);
});
