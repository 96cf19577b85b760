// An installation for fault tests: several simulated nodes, each with its certificate, GPUs and agent, and a second
// router; with what the tests ask of the whole afterwards.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Client, Connection } from '@temporalio/client';
import { expect } from 'vitest';
import { parse, stringify } from 'yaml';
import type { FleetStatus, NodeRow, ReplicaStatus } from '../../contracts/status.js';
import type { LedgerState } from '../../domain/ledger/state.js';
import { issueClient } from '../../lib/pki/issue.js';
import { FleetClient } from '../../server/fleet.js';
import { answers, getJson } from '../e2e/clients.js';
import { agentConfig, freePort, NODE } from '../e2e/configs.js';
import { type Installation, install, MAIN, type Service } from '../e2e/harness.js';
import { isRunning, kill, type Marked, type Started, start, waitFor } from '../e2e/processes.js';
import { type Load, load } from './load.js';

export interface World {
  at: Installation;
  /** By node id; `gpu-a-01` is the installation's own. */
  agents: Record<string, Service>;
  /** The installation's own, and a second one. */
  routers: { service: Service; url: string }[];
  load(models: string[]): Load;
  /** Temporal's own. */
  client: Client;
  node(id: string): Promise<NodeRow | undefined>;
  /** `journal` of `ctl node show`. */
  journalOf(node: string): Promise<string>;
  fleet(): Promise<FleetStatus>;
  ledger(): Promise<LedgerState>;
  untilNode(id: string, state: NodeRow['state']): Promise<NodeRow>;
  /** Where the stand-ins of each node say which GPUs they are on. */
  gpuDirs: string[];
  /** Of each node, both ends included. */
  enginePorts: [number, number][];
  /** Starts a replica that was deployed before, with its spec. */
  startAgain(name: string, policy: string[]): Promise<void>;
  /** Rejects when nobody accepts it within moments. */
  workflowUpdate(id: string, name: string): Promise<void>;
  /** The whole database goes, and a new empty one comes on the same port. */
  newTemporal(): Promise<void>;
  workflow(verb: 'terminate' | 'cancel' | 'signal' | 'reset', id: string, ...more: string[]): Promise<void>;
  close(): Promise<void>;
}

export interface NodeOptions {
  gpus: number;
  /** Where its engines listen and peers find them; default 127.0.0.1. */
  address?: string;
  /** All its GPUs' fabric. */
  fabric?: string;
  /** Keys of agent.yaml. */
  agent?: Record<string, unknown>;
  /** Words before its agent's command. */
  on?: string[];
}

export interface WorldOptions {
  /** Further nodes and their number of GPUs, or more. The function is called once the ports are known. */
  nodes?:
    | Record<string, number | NodeOptions>
    | ((at: Installation) => Promise<Record<string, number | NodeOptions>>);
  /** Keys of server.yaml. */
  server?: Record<string, unknown>;
  secondRouter?: boolean;
}

export async function world(options: WorldOptions = {}): Promise<World> {
  const at = await install({ ...(options.server === undefined ? {} : { server: options.server }) });
  const connection = Connection.lazy({ address: `127.0.0.1:${at.ports.temporal}` });
  const temporal = new Client({ connection });
  const all = new Set<Started>();
  const services = new Map<string, Service>();
  const service = (
    name: string,
    file: string,
    env: object,
    part: string,
    ready: () => Promise<boolean>,
    on: string[] = [],
  ): Service => {
    let current: Started | null = null;
    const running = () => {
      if (current === null) throw new Error(`${name} is not started`);
      return current;
    };
    const made: Service = {
      name,
      process: running,
      pid: () => running().pid,
      start: async () => {
        const [program, ...args] = [...on, process.execPath, MAIN, part, '--config', file];
        const started = start(program!, args, {
          logFile: path.join(at.dir, `${name}.log`),
          env: { ...process.env, ...env },
        });
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
    services.set(name, made);
    return made;
  };

  const node = async (id: string) => (await at.nodes()).find(n => n.node_id === id);
  const agents: Record<string, Service> = { [NODE]: at.agent };
  const routers = [{ service: at.router, url: `http://127.0.0.1:${at.ports.router}` }];
  // Above what test/e2e/configs.ts gives to the installation's own node, below the kernel's ephemeral range.
  const firstPort = 29_100 + (process.pid % 2) * 1_700;
  const gpuDirs = [path.join(at.dir, 'gpus')];
  const own = parse(readFileSync(at.files.agent, 'utf8')) as { supervisor: { ports: string } };
  const enginePorts = [rangeOf(own.supervisor.ports)];
  const given = typeof options.nodes === 'function' ? await options.nodes(at) : (options.nodes ?? {});
  for (const [index, [id, kind]] of Object.entries(given).entries()) {
    const { gpus, address, fabric, agent, on }: NodeOptions =
      typeof kind === 'number' ? { gpus: kind } : kind;
    await issueClient(at.pki, id);
    const gpu_dir = path.join(at.dir, `gpus-${id}`);
    mkdirSync(gpu_dir);
    gpuDirs.push(gpu_dir);
    // A generation of a gang takes some thirty, which rest for ten minutes afterwards.
    enginePorts.push([firstPort + index * 400, firstPort + index * 400 + 399]);
    const simulation = at.file(`simulation-${id}.json`, {
      gpus: { count: gpus },
      islands: [Array.from({ length: gpus }, (_, i) => i)],
      ...(fabric === undefined ? {} : { fabrics: [{ name: fabric, hcas: ['mlx5_0'] }] }),
      gpu_dir,
    });
    const config = agentConfig(at.dir, at.pki, at.ports, id, agent);
    if (address !== undefined) config.mgmt_addr = address;
    config.supervisor.ports = enginePorts.at(-1)!.join('-');
    const file = at.file(`agent-${id}.yaml`, stringify(config));
    const connected = async () => (await node(id))?.state === 'connected';
    agents[id] = service(`agent-${id}`, file, { LLMGW_SIMULATE: simulation }, 'agent', connected, on);
  }
  if (options.secondRouter === true) {
    const port = await freePort();
    const config = parse(readFileSync(at.files.router, 'utf8')) as object;
    const file = path.join(at.dir, 'router-2.yaml');
    const state_dir = path.join(at.dir, 'router-2');
    writeFileSync(file, stringify({ ...config, listen: `127.0.0.1:${port}`, state_dir }));
    const url = `http://127.0.0.1:${port}`;
    routers.push({ service: service('router-2', file, {}, 'router', () => answers(`${url}/readyz`)), url });
  }

  const made: World = {
    at,
    agents,
    routers,
    load: models =>
      load(
        routers.map(r => r.url),
        models,
      ),
    node,
    journalOf: async id => JSON.stringify(await getJson(`http://127.0.0.1:${at.ports.http}/v1/nodes/${id}`)),
    fleet: async () => {
      const { stdout, stderr } = await at.ctl('fleet', '--json');
      if (stdout === '') throw new Error(`ctl fleet: ${stderr}`);
      return JSON.parse(stdout) as FleetStatus;
    },
    client: temporal,
    ledger: () => new FleetClient(temporal).ledger(),
    untilNode: async (id, state) => {
      let last: NodeRow | undefined;
      return await waitFor(
        `${id} to be ${state}`,
        async () => {
          last = await node(id);
          return last?.state === state ? last : null;
        },
        () => [last, at.server.process().output().slice(-2000)],
      );
    },
    gpuDirs,
    enginePorts,
    startAgain: async (name, policy) => {
      const done = await at.temporalCli(
        ...['workflow', 'start', '--type', 'replica', '--task-queue', 'llmgw', ...policy],
        ...['--workflow-id', `replica/${name}`, '--input-file', path.join(at.dir, `${name}.json`)],
      );
      if (done.code !== 0) throw new Error(`start ${name}: ${done.stderr}`);
    },
    workflowUpdate: async (id, name) => {
      // Whoever would accept it may be away.
      await connection.withDeadline(Date.now() + 3_000, () =>
        temporal.workflow.getHandle(id).startUpdate(name, { waitForStage: 'ACCEPTED' }),
      );
    },
    newTemporal: async () => {
      await at.temporal.end('SIGKILL');
      for (const suffix of ['', '-wal', '-shm', '-journal'])
        rmSync(path.join(at.dir, `temporal.db${suffix}`), { force: true });
      await at.temporal.start();
    },
    workflow: async (verb, id, ...more) => {
      const done = await at.temporalCli('workflow', verb, '--workflow-id', id, ...more);
      if (done.code !== 0) throw new Error(`temporal workflow ${verb} ${id}: ${done.stderr}`);
    },
    close: async () => {
      for (const { pid } of all) kill(pid, 'SIGKILL');
      await Promise.all([...all].map(started => started.ended));
      await connection.close();
      await at.close();
    },
  };
  try {
    await Promise.all([...services.values()].map(s => s.start()));
  } catch (error) {
    await made.close();
    throw error;
  }
  return made;
}

export const spec = (more: object = {}) => ({
  model: 'Qwen/Qwen3-8B',
  engine: 'vllm',
  env: { LLMGW_STANDIN_TOKENS: '8', LLMGW_STANDIN_TOKEN_MS: '5' },
  restart: { backoff_base: '100ms', backoff_max: '200ms', max_failures: 50 },
  ...more,
});

export const enginesOf = (w: World, replica?: string): Marked[] =>
  w.at.engines(replica).filter(p => p.kind === 'engine');

export const pidOf = (status: ReplicaStatus): number => status.members[0]!.pid!;

const rangeOf = (ports: string): [number, number] => {
  const [from, to] = ports.split('-').map(Number);
  return [from!, to!];
};

/** Several sweeps of the janitor, and the waits behind each other that follow from them. */
const PATIENCE_MS = 150_000;

/** What holds in the end: tried again until it does. */
export async function patiently(holds: () => Promise<void>): Promise<void> {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await holds();
    } catch (error) {
      if (performance.now() > end) throw error;
      await new Promise(resolve => setTimeout(resolve, 500));
    }
  }
}

/** Starts it under its own name as model, and waits until it is served by every router. */
export async function deployed(w: World, name: string, more: object = {}): Promise<ReplicaStatus> {
  const done = await w.at.deploy(name, spec({ served_model_name: name, ...more }));
  if (done.code !== 0) throw new Error(`deploy ${name}: ${done.stderr}`);
  const status = await w.at.untilPhase(name, 'ready');
  await served(w, name);
  return status;
}

export async function served(w: World, model: string): Promise<void> {
  for (const { url } of w.routers)
    await waitFor(`${url} to offer ${model}`, async () => {
      const listed = await getJson<{ data: { id: string }[] }>(`${url}/v1/models`);
      return listed?.data.some(m => m.id === model);
    });
}

/** Answers of requests that were sent from now on. */
export async function moreAnswers(running: Load, n = 25): Promise<void> {
  const already = running.answered();
  await waitFor(
    'further answers',
    () => running.answered() > already + n,
    () => running.failed().slice(-5),
  );
}

/** What holds after any outage that the engine survived: nothing about it has changed, and nobody says otherwise. */
export async function expectUntouched(w: World, name: string, before: ReplicaStatus): Promise<void> {
  const after = await w.at.untilPhase(name, 'ready');
  expect(after).toMatchObject({
    generation: before.generation,
    fence: before.fence,
    members: before.members,
    restarts: before.restarts,
    last_failure: before.last_failure,
  });
  expect(enginesOf(w, name).map(p => p.pid)).toEqual([pidOf(before)]);
}

/** Everything is connected, whole and quiet, by what operators see. */
export async function expectCalm(w: World): Promise<void> {
  for (const id of Object.keys(w.agents)) await w.untilNode(id, 'connected');
  let last: FleetStatus | null = null;
  await waitFor(
    'the fleet to be whole',
    async () => {
      last = await w.fleet().catch(() => null);
      return last !== null && last.rebuilding === null && !last.brake.on && last.unclaimed.length === 0;
    },
    () => last,
  );
  const listed = await w.at.ctl('replicas', '--json');
  expect(listed.code).toBe(0);
}

/** A GPU has one holder, by the ledger's own word (INV-1). */
export async function expectOneHolder(w: World): Promise<void> {
  const { grants } = await w.ledger();
  const slots = Object.values(grants).flatMap(g =>
    g.members.flatMap(m => m.slots.map(slot => `${m.node}/${slot}`)),
  );
  expect(slots.toSorted()).toEqual([...new Set(slots)].toSorted());
}

/** Stopped by `ctl`, with nothing left of it. */
export async function stopped(w: World, name: string): Promise<void> {
  const done = await w.at.ctl('replica', 'stop', name);
  expect(done).toMatchObject({ code: 0, stderr: '' });
  expect((await w.at.closed(name)).status).toBe('CANCELED');
  expect(w.at.engines(name)).toEqual([]);
}
