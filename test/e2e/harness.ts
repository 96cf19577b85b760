// A private installation of real processes: Temporal's dev server, control plane, agent, router, each started as its
// command line says, so that a test can kill any of them and start it again. One for each test file.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { RouteTable } from '../../contracts/routes.js';
import type { NodeRow, ReplicaStatus } from '../../contracts/status.js';
import { findTemporal } from '../../dev/temporal-binary.js';
import { temporalCommand } from '../../dev/temporal-server.js';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import { type Answer, accepts, answers, ask, getJson, models, type Ran, run } from './clients.js';
import { freePorts, NODE, type Ports, ROOT, writeConfigs } from './configs.js';
import { isRunning, kill, type Marked, marked, type Started, start, waitFor } from './processes.js';

export const MAIN = path.join(ROOT, 'dist/bin/main.js');

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
  /** Temporal's own command. */
  temporalCli(...args: string[]): Promise<Ran>;
  /** The same by `llmgw temporal`, which takes longer to start. */
  llmgwTemporal(...args: string[]): Promise<Ran>;
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
  /** Keys of server.yaml. */
  server?: Record<string, unknown>;
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
  const files = writeConfigs(dir, pki, ports, options.agent ?? {}, options.server ?? {});
  const { path: temporalBinary } = await findTemporal();
  const env = { ...process.env, LLMGW_SIMULATE: files.simulation };
  const temporalEnv = { ...process.env, TEMPORAL_ADDRESS: `127.0.0.1:${ports.temporal}` };

  const service = (name: string, program: string, args: string[], ready: () => Promise<boolean>): Service => {
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
    temporalArgs(temporalBinary, ports, path.join(dir, 'temporal.db')),
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
    temporalCli: (...args) => run(temporalBinary, args, { env: temporalEnv }),
    llmgwTemporal: (...args) => run(process.execPath, [MAIN, 'temporal', ...args], { env: temporalEnv }),
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
          // What Temporal says of a workflow whose worker has just died is no status of its own.
          if ((last as { source?: string } | null)?.source === 'describe') return null;
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

/** As dev starts it, without what ties it to dev. */
function temporalArgs(binary: string, ports: Ports, db: string): string[] {
  const command = temporalCommand(binary, ports, db);
  return command.slice(command.indexOf(binary) + 1);
}
