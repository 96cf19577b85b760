// `llmgw dev`: all parts on this machine in one command, with a demo replica. It only starts, watches and stops plain
// `llmgw server|agent|router` and Temporal's dev server; what serves doesn't need it.
import { chmodSync, mkdirSync, realpathSync } from 'node:fs';
import path from 'node:path';
import { Fault } from '../lib/fault.js';
import { elapsed, withProgress } from '../lib/progress.mjs';
import { ensureCertificates } from './certificates.js';
import { writeConfigs } from './configs.js';
import { type DemoFollower, runDemo } from './demo.js';
import { findHardware, type Hardware } from './hardware.js';
import { identify } from './identity.js';
import { endLeftovers, lockDataDir } from './leftovers.js';
import { PartFailed } from './part.js';
import { makeParts, startParts } from './parts.js';
import { type DataPaths, dataPaths } from './paths.js';
import { claimPorts } from './ports.js';
import { type Interrupts, listenForInterrupts } from './signals.js';
import { SIM_HARDWARE, writeSimulation } from './simulation.js';
import { type DevPorts, type DevState, removeState, writeState } from './state.js';
import { stopAll, stopEngines } from './stop.js';
import { findTemporal } from './temporal-binary.js';
import { tryNext } from './try-next.js';

export interface DevOptions {
  dataDir: string;
  ports: DevPorts;
  demo: boolean;
  respawn: boolean;
}

/** An interrupted start, or a second Ctrl-C: the shell's code for SIGINT. */
const INTERRUPTED = 130;
/** The demo loads in seconds where it is simulated: then what to try is printed when it can be tried. */
const DEMO_FIRST_MS = 10_000;

const say = (line: string): void => {
  process.stdout.write(`${line}\n`);
};

/** Runs until Ctrl-C; resolves with the exit code. The caller then ends the process. */
export async function runDev(options: DevOptions): Promise<number> {
  if (process.platform !== 'linux') {
    throw new Fault(
      `llmgw dev runs on Linux only, this is ${process.platform}: engines are supervised through /proc.`,
    );
  }
  // The terminal may go before the parts are stopped.
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {});
  const interrupts = listenForInterrupts();
  const prepared = await Promise.race([prepare(options), interrupts.first.then(() => null)]);
  return prepared === null ? INTERRUPTED : await run(options, prepared, interrupts);
}

interface Prepared {
  paths: DataPaths;
  ports: DevPorts;
  hardware: Hardware;
  binary: string;
}

/** Everything that can be refused before a process is started. */
async function prepare(options: DevOptions): Promise<Prepared> {
  const paths = dataPaths(makeDataDir(options.dataDir));
  await lockDataDir(paths.dir);
  const ended = await withProgress('ending what an earlier llmgw dev has left', () =>
    endLeftovers(paths.state),
  );
  if (ended.length > 0)
    say(`An earlier llmgw dev ended without stopping its parts; ended: ${ended.join(', ')}.`);
  const ports = await claimPorts(options.ports);
  const hardware = await findHardware(process.env);
  say(`llmgw dev: data and logs in ${paths.dir}`);
  say(
    hardware.simulated
      ? `SIMULATED: ${hardware.why}, so ${SIM_HARDWARE} are simulated, and the engine is a stand-in that speaks vLLM's API without a model.`
      : `GPUs: ${hardware.gpus}, engine: ${hardware.vllm}`,
  );
  const { path: binary } = await findTemporal();
  const pki = await ensureCertificates(paths.pki);
  if (hardware.simulated) writeSimulation(paths);
  writeConfigs({ paths, ports, pki, hardware });
  return { paths, ports, hardware, binary };
}

async function run(options: DevOptions, prepared: Prepared, interrupts: Interrupts): Promise<number> {
  const { paths, ports, hardware } = prepared;
  const begun = performance.now();
  const self = identify(process.pid);
  if (self === null) throw new Error('/proc has no entry for this process');
  const state: DevState = {
    dev: self,
    started_at: new Date().toISOString(),
    temporal_address: `127.0.0.1:${ports.temporal}`,
    ports,
    parts: {},
  };
  const { parts, agentEnv } = makeParts({
    ...prepared,
    respawn: options.respawn,
    say,
    onProcess: (name, who) => {
      if (who === null) delete state.parts[name];
      else state.parts[name] = who;
      writeState(paths.state, state);
    },
  });
  const halt = new AbortController();
  interrupts.onSecond(() => {
    for (const part of Object.values(parts)) part.kill();
    say('Stopped at once; engines that still run are picked up by the next start.');
    removeState(paths.state);
    process.exit(INTERRUPTED);
  });
  let demo: DemoFollower | null = null;
  let code = 0;
  try {
    const gpus = await Promise.race([startParts(parts, ports), interrupts.first.then(() => null)]);
    if (gpus !== null) {
      say(`All parts are ready after ${elapsed(performance.now() - begun)}: node local has ${gpus} GPUs.`);
      if (options.demo) {
        demo = runDemo({
          address: state.temporal_address,
          routerPort: ports.router,
          hardware,
          say,
          signal: halt.signal,
        });
        await Promise.race([demo.settled, interrupts.first, pause(DEMO_FIRST_MS)]);
      }
      if (!interrupts.wasInterrupted()) {
        say(tryNext({ paths, ports, cwd: process.cwd(), demo: options.demo }));
        await interrupts.first;
      }
    }
  } catch (error) {
    if (!(error instanceof PartFailed)) throw error;
    say(`llmgw dev: ${error.message}`);
    code = 1;
  }
  halt.abort();
  const stopBegun = performance.now();
  say('\nStopping: router, agent, engines, control plane, Temporal. Ctrl-C again: at once.');
  await stopAll({
    parts,
    stopEngines: ms =>
      stopEngines(
        { config: paths.agentConfig, env: agentEnv, logFile: path.join(paths.logs, 'agent.log') },
        ms,
      ),
    say,
  });
  await demo?.close();
  removeState(paths.state);
  say(`Stopped in ${elapsed(performance.now() - stopBegun)}.`);
  return code;
}

/** Keys and prompts lie in it: its owner's alone. Comes back as its real path, by which it is locked. */
function makeDataDir(dir: string): string {
  try {
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    chmodSync(dir, 0o700);
    return realpathSync(dir);
  } catch (error) {
    throw new Fault(`--data-dir ${dir} can't be used: ${(error as Error).message}.`);
  }
}

const pause = (ms: number): Promise<void> =>
  new Promise(resolve => {
    setTimeout(resolve, ms).unref();
  });
