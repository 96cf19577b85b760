// The four parts of dev: their commands, what makes each of them ready, and the order of their start.
import path from 'node:path';
import { withProgress } from '../lib/progress.mjs';
import { answersOk, connectedGpus } from './api.js';
import { NODE_ID } from './certificates.js';
import type { Hardware } from './hardware.js';
import type { ProcessIdentity } from './identity.js';
import { Part } from './part.js';
import { type DataPaths, MAIN } from './paths.js';
import { SIMULATE_ENV } from './simulation.js';
import type { DevPorts } from './state.js';
import { accepts, temporalCommand, temporalEnv } from './temporal-server.js';

/** Each takes a second or two; a machine under load gets time, a part that hangs is told. */
const READY_MS = 60_000;

export interface Parts {
  temporal: Part;
  server: Part;
  agent: Part;
  router: Part;
}

export interface PartsInput {
  paths: DataPaths;
  ports: DevPorts;
  hardware: Hardware;
  /** The `temporal` binary. */
  binary: string;
  respawn: boolean;
  say: (line: string) => void;
  onProcess: (name: string, who: ProcessIdentity | null) => void;
}

/** None is started yet. `agentEnv` is what the agent's commands run with. */
export function makeParts(input: PartsInput): { parts: Parts; agentEnv: NodeJS.ProcessEnv } {
  const { paths, ports, hardware } = input;
  const agentEnv = hardware.simulated ? { ...process.env, [SIMULATE_ENV]: paths.simulation } : process.env;
  const part = (
    name: keyof Parts,
    command: string[],
    env: NodeJS.ProcessEnv,
    isReady: () => Promise<boolean>,
  ) =>
    new Part({
      name,
      command,
      env,
      isReady,
      logFile: path.join(paths.logs, `${name}.log`),
      respawn: input.respawn,
      say: input.say,
      onProcess: who => input.onProcess(name, who),
    });
  const main = (name: string, config: string) => [process.execPath, MAIN, name, '--config', config];
  const serverReady = () => answersOk(`http://127.0.0.1:${ports.http}/readyz`);
  const parts: Parts = {
    temporal: part(
      'temporal',
      temporalCommand(input.binary, ports, paths.temporalDb),
      temporalEnv(process.env),
      () => accepts(ports.temporal),
    ),
    server: part('server', main('server', paths.serverConfig), process.env, serverReady),
    agent: part(
      'agent',
      main('agent', paths.agentConfig),
      agentEnv,
      // Not before the server is ready: until then its answer would be a query that no worker takes.
      async () => (await serverReady()) && (await connectedGpus(ports.http, NODE_ID)) !== null,
    ),
    router: part('router', main('router', paths.routerConfig), process.env, () =>
      answersOk(`http://127.0.0.1:${ports.router}/readyz`),
    ),
  };
  return { parts, agentEnv };
}

/**
 * Starts all of them at once and waits until each is ready; the node's GPUs come back. A PartFailed when one won't. Each
 * waits for those that it needs by itself, and loading their code takes as long as Temporal's own start.
 */
export async function startParts(parts: Parts, ports: DevPorts): Promise<number> {
  const all = [parts.temporal, parts.server, parts.agent, parts.router];
  for (const part of all) part.start();
  const waiting = new Set(all.map(part => part.name));
  await withProgress(
    'starting Temporal, server, agent and router',
    () =>
      Promise.all(
        all.map(async part => {
          await part.ready(READY_MS);
          waiting.delete(part.name);
        }),
      ),
    { detail: () => `waiting for ${[...waiting].join(', ')}` },
  );
  return (await connectedGpus(ports.http, NODE_ID)) ?? 0;
}
