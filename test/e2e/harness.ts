// A private installation of real processes: Temporal's dev server, control plane, agent, router, each started as its
// command line says, so that a test can kill any of them and start it again. One for each test file.
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { stringify } from 'yaml';
import type { RouteTable } from '../../contracts/routes.js';
import type { NodeRow, ReplicaStatus } from '../../contracts/status.js';
import { findTemporal } from '../../dev/temporal-binary.js';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import { isRunning, kill, type Marked, marked, type Started, start, waitFor } from './processes.js';

export const ROOT = path.resolve(import.meta.dirname, '../..');
export const MAIN = path.join(ROOT, 'dist/bin/main.js');
export const STANDIN = path.join(ROOT, 'bin/llmgw-standin-vllm.mjs');
export const NODE = 'gpu-a-01';
export const GPUS = 8;

export interface Ran {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface Answer {
  status: number;
  /** The whole body as it came. */
  text: string;
}

export interface Ports {
  temporal: number;
  agent: number;
  http: number;
  router: number;
}

export interface Service {
  readonly name: string;
  /** The running process; an error when there is none. */
  process(): Started;
  pid(): number;
  /** Starts it; resolves when it serves. */
  start(): Promise<void>;
  /** Sends the signal and waits until the process is gone; its exit code or signal comes back. */
  end(signal: NodeJS.Signals): Promise<number | NodeJS.Signals>;
}

export interface Installation {
  dir: string;
  pki: string;
  ports: Ports;
  temporal: Service;
  server: Service;
  agent: Service;
  router: Service;
  files: { server: string; agent: string; router: string; simulation: string };
  /** The real command: `node dist/bin/main.js …`. */
  llmgw(args: string[], options?: { env?: NodeJS.ProcessEnv; input?: string }): Promise<Ran>;
  ctl(...args: string[]): Promise<Ran>;
  temporalCli(...args: string[]): Promise<Ran>;
  /** `temporal workflow start --type replica …`, as the README has it. */
  deploy(name: string, spec: object): Promise<Ran>;
  /** A spec in a file of the installation. */
  file(name: string, content: string | object): string;
  /** null: there is no such replica. */
  status(name: string): Promise<ReplicaStatus | null>;
  /** Waits until the router offers the model. */
  untilServed(model: string): Promise<void>;
  untilPhase(name: string, phase: ReplicaStatus['phase'], generation?: number): Promise<ReplicaStatus>;
  /** Waits until the workflow is closed: COMPLETED, CANCELED, FAILED…, and its failure's message. */
  closed(name: string): Promise<{ status: string; failure: string | null }>;
  history(name: string): Promise<HistoryEvent[]>;
  nodes(): Promise<NodeRow[]>;
  routes(): Promise<RouteTable>;
  /** Ids of `/v1/models` of the router. */
  models(): Promise<string[]>;
  chat(model: string): Promise<Answer>;
  stream(model: string): Promise<Answer>;
  engines(replica?: string): Marked[];
  /** Ends all by pid, engines included. */
  close(): Promise<void>;
}

export interface HistoryEvent {
  eventType: string;
  [attributes: string]: unknown;
}

export interface InstallOptions {
  /** Keys of agent.yaml. */
  agent?: Record<string, unknown>;
  /** Parts that the test starts itself. */
  without?: ('agent' | 'router')[];
}

/** Starts everything and waits until the node is connected and the router serves. */
export async function install(options: InstallOptions = {}): Promise<Installation> {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-e2e-'));
  const all = new Set<Started>();
  process.once('exit', () => {
    for (const started of all) kill(started.pid, 'SIGKILL');
    for (const { pid } of marked(dir)) kill(pid, 'SIGKILL');
  });
  const ports = await freePorts();
  const pki = path.join(dir, 'pki');
  await initCa(pki);
  await issueServer(pki, 'server');
  await issueClient(pki, NODE);
  const files = writeConfigs(dir, pki, ports, options.agent ?? {});
  const { path: temporalBinary } = await findTemporal();
  const env = { ...process.env, LLMGW_SIMULATE: files.simulation };

  const service = (
    name: string,
    program: string,
    args: string[],
    ready: () => Promise<boolean>,
  ): Service => {
    let current: Started | null = null;
    const running = (): Started => {
      if (current === null) throw new Error(`${name} is not started`);
      return current;
    };
    return {
      name,
      process: running,
      pid: () => running().pid,
      start: async () => {
        const started = start(program, args, { logFile: path.join(dir, `${name}.log`), env });
        current = started;
        all.add(started);
        void started.ended.finally(() => all.delete(started)).catch(() => {});
        await waitFor(
          `${name} to be ready`,
          async () => {
            if (!isRunning(started.pid)) throw new Error(`${name} ended: ${started.output().slice(-3000)}`);
            return await ready();
          },
          () => started.output().slice(-3000),
        );
      },
      end: async signal => {
        const { pid, ended } = running();
        kill(pid, signal);
        return await ended;
      },
    };
  };
  const main = (name: 'server' | 'agent' | 'router') => [MAIN, name, '--config', files[name]];
  const http = `http://127.0.0.1:${ports.http}`;
  const base = `http://127.0.0.1:${ports.router}`;
  const nodes = async () => (await getJson<NodeRow[]>(`${http}/v1/nodes`)) ?? [];
  const temporal = service(
    'temporal',
    temporalBinary,
    temporalArgs(ports.temporal, path.join(dir, 'temporal.db')),
    () => accepts(ports.temporal),
  );
  const server = service('server', process.execPath, main('server'), () => answers(`${http}/readyz`));
  const agent = service('agent', process.execPath, main('agent'), async () =>
    (await nodes()).some(n => n.node_id === NODE && n.state === 'connected'),
  );
  const router = service('router', process.execPath, main('router'), () => answers(`${base}/readyz`));

  const installation: Installation = {
    dir,
    pki,
    ports,
    temporal,
    server,
    agent,
    router,
    files,
    llmgw: (args, opts = {}) => run(process.execPath, [MAIN, ...args], opts),
    ctl: (...args) => run(process.execPath, [MAIN, 'ctl', '--server', http, ...args]),
    temporalCli: (...args) =>
      run(process.execPath, [MAIN, 'temporal', ...args], {
        env: { ...process.env, TEMPORAL_ADDRESS: `127.0.0.1:${ports.temporal}` },
      }),
    deploy: (name, spec) =>
      installation.temporalCli(
        ...['workflow', 'start', '--type', 'replica', '--task-queue', 'llmgw', '--fail-existing'],
        ...['--workflow-id', `replica/${name}`, '--input-file', installation.file(`${name}.json`, spec)],
      ),
    file: (name, content) => {
      const file = path.join(dir, name);
      writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content));
      return file;
    },
    status: name => getJson<ReplicaStatus>(`${http}/v1/replicas/${name}`),
    untilServed: async model => {
      await waitFor(`the router to offer ${model}`, async () => (await models(base)).includes(model));
    },
    untilPhase: async (name, phase, generation) => {
      let last: ReplicaStatus | null = null;
      return await waitFor(
        `replica/${name} to be ${phase}${generation === undefined ? '' : ` in generation ${generation}`}`,
        async () => {
          last = await installation.status(name);
          const right = generation === undefined || last?.generation === generation;
          return last?.phase === phase && right ? last : null;
        },
        () => ({ last, agent: agent.process().output().slice(-2000) }),
      );
    },
    closed: async name => {
      const args = ['workflow', 'result', '--workflow-id', `replica/${name}`, '--output', 'json'];
      const { stdout } = await installation.temporalCli(...args);
      const result = JSON.parse(stdout) as { status: string; closeEvent?: unknown };
      const text = JSON.stringify(result);
      return { status: result.status, failure: /"message":"((?:[^"\\]|\\.)*)"/.exec(text)?.[1] ?? null };
    },
    history: async name => {
      const args = ['workflow', 'show', '--workflow-id', `replica/${name}`, '--output', 'json'];
      const { stdout } = await installation.temporalCli(...args);
      return (JSON.parse(stdout) as { events: HistoryEvent[] }).events;
    },
    nodes,
    routes: async () => (await getJson<RouteTable>(`${http}/v1/routes`)) ?? { version: 0, endpoints: [] },
    models: () => models(base),
    chat: model => ask(base, model, false),
    stream: model => ask(base, model, true),
    engines: replica => marked(dir, replica),
    close: async () => {
      for (const started of all) kill(started.pid, 'SIGKILL');
      await Promise.all([...all].map(started => started.ended));
      await waitFor('the engines to be gone', () => {
        const left = marked(dir);
        for (const { pid } of left) kill(pid, 'SIGKILL');
        return left.length === 0;
      });
      rmSync(dir, { recursive: true, force: true });
    },
  };
  try {
    await temporal.start();
    const without = options.without ?? [];
    await Promise.all([
      server.start(),
      without.includes('agent') ? null : agent.start(),
      without.includes('router') ? null : router.start(),
    ]);
  } catch (error) {
    await installation.close();
    throw error;
  }
  return installation;
}

function writeConfigs(dir: string, pki: string, ports: Ports, agent: Record<string, unknown>) {
  const files = {
    server: path.join(dir, 'server.yaml'),
    agent: path.join(dir, 'agent.yaml'),
    router: path.join(dir, 'router.yaml'),
    simulation: path.join(dir, 'simulation.json'),
  };
  const gpuDir = path.join(dir, 'gpus');
  mkdirSync(gpuDir);
  const simulation = {
    gpus: { count: GPUS, name: 'NVIDIA H100 80GB HBM3' },
    islands: [Array.from({ length: GPUS }, (_, index) => index)],
    fabrics: [{ name: 'sim-ib', hcas: ['mlx5_0'] }],
    gpu_dir: gpuDir,
  };
  writeFileSync(files.simulation, JSON.stringify(simulation));
  const server = {
    listen: `127.0.0.1:${ports.agent}`,
    http_listen: `127.0.0.1:${ports.http}`,
    tls: tlsFiles(pki, 'server'),
    temporal: { address: `127.0.0.1:${ports.temporal}` },
    secrets_dir: pki,
    state_dir: path.join(dir, 'server'),
  };
  writeFileSync(files.server, stringify(server));
  writeFileSync(files.agent, stringify(agentConfig(dir, pki, ports, NODE, agent)));
  const router = {
    listen: `127.0.0.1:${ports.router}`,
    server: `http://127.0.0.1:${ports.http}`,
    master_secret_file: path.join(pki, 'engine-master.key'),
    state_dir: path.join(dir, 'router'),
    timeouts: { shutdown: '500ms' },
  };
  writeFileSync(files.router, stringify(router));
  return files;
}

/** agent.yaml of a node; `more` replaces top-level keys. */
export function agentConfig(
  dir: string,
  pki: string,
  ports: Ports,
  nodeId: string,
  more: Record<string, unknown> = {},
) {
  // Slices of a range that nothing else of the machine's tests uses.
  const first = 23_000 + (process.pid % 60) * 100;
  return {
    node_id: nodeId,
    server: `https://127.0.0.1:${ports.agent}`,
    tls: tlsFiles(pki, nodeId),
    mgmt_addr: '127.0.0.1',
    heartbeat_interval: '1s',
    reconnect_base: '100ms',
    reconnect_max: '1s',
    secrets_dir: path.join(dir, 'secrets'),
    engines: { vllm: { bin: STANDIN } },
    supervisor: {
      work_dir: path.join(dir, `work-${nodeId}`),
      ports: `${first}-${first + 99}`,
      stop_timeout: '3s',
      gpu_release_timeout: '5s',
    },
    ...more,
  };
}

export const tlsFiles = (pki: string, name: string) => ({
  ca: path.join(pki, 'ca.pem'),
  cert: path.join(pki, `${name}.pem`),
  key: path.join(pki, `${name}-key.pem`),
});

const temporalArgs = (port: number, db: string): string[] => [
  ...['server', 'start-dev', '--headless', '--ip', '127.0.0.1', '--port', String(port), '--log-level', 'error'],
  ...['--db-filename', db, '--dynamic-config-value', 'frontend.namespaceCount=10000'],
];

/** Runs to its end; stdin is `input`, else empty. */
export function run(
  program: string,
  args: string[],
  options: { env?: NodeJS.ProcessEnv; input?: string } = {},
): Promise<Ran> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { env: options.env ?? process.env });
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', chunk => {
      stdout += chunk;
    });
    child.stderr.on('data', chunk => {
      stderr += chunk;
    });
    child.once('error', reject);
    child.once('close', code => resolve({ code, stdout, stderr }));
    child.stdin.end(options.input ?? '');
  });
}

/** All of it came: the last token's reason, and for a stream its end mark. */
export const isComplete = ({ text }: Answer, streamed: boolean): boolean =>
  /"finish_reason":\s*"(stop|length)"/.test(text) && (!streamed || text.trimEnd().endsWith('data: [DONE]'));

async function ask(base: string, model: string, stream: boolean): Promise<Answer> {
  const res = await fetch(`${base}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model, stream, messages: [{ role: 'user', content: 'Hello' }] }),
  });
  return { status: res.status, text: await res.text() };
}

async function models(base: string): Promise<string[]> {
  const listed = await getJson<{ data: { id: string }[] }>(`${base}/v1/models`);
  return (listed?.data ?? []).map(model => model.id);
}

/** null: not there, or nobody answers. */
export async function getJson<T>(url: string): Promise<T | null> {
  try {
    const res = await fetch(url);
    return res.ok ? ((await res.json()) as T) : (await res.arrayBuffer(), null);
  } catch {
    return null;
  }
}

export async function answers(url: string): Promise<boolean> {
  try {
    const res = await fetch(url);
    await res.arrayBuffer();
    return res.ok;
  } catch {
    return false;
  }
}

export function accepts(port: number): Promise<boolean> {
  return new Promise(resolve => {
    const socket = net.connect({ host: '127.0.0.1', port });
    socket.once('connect', () => resolve(true));
    socket.once('error', () => resolve(false));
    socket.once('close', () => socket.destroy());
    socket.once('connect', () => socket.destroy());
  });
}

let nextPort = 12_000 + (process.pid % 70) * 100;

/** Below the kernel's ephemeral range: a part that is killed finds its port free when it comes back. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = nextPort++;
    const free = await new Promise<boolean>(resolve => {
      const probe = net.createServer();
      probe.once('error', () => resolve(false));
      probe.listen({ host: '127.0.0.1', port, exclusive: true }, () => probe.close(() => resolve(true)));
    });
    if (free) return port;
  }
}

async function freePorts(): Promise<Ports> {
  return {
    temporal: await freePort(),
    agent: await freePort(),
    http: await freePort(),
    router: await freePort(),
  };
}
