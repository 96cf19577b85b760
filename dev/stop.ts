// The end of dev: router, agent, engines, server, Temporal, in this order and in under five seconds.
import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import type { Part } from './part.js';
import { MAIN } from './paths.js';

/**
 * Five seconds are promised; the rest is for the kernel and this process' own end. Each step takes what it needs up to
 * its own bound; what doesn't end in it is killed.
 */
const TOTAL_MS = 4_600;
const ROUTER_MS = 700;
const AGENT_MS = 1_100;
const SERVER_MS = 600;
/**
 * SIGTERM, 2 s, SIGKILL and the command's own start, which a busy machine makes long: the promise rather than an engine
 * that runs on with nobody to stop it.
 */
const ENGINES_MS = 20_000;
/** Of the total, for the parts behind them. */
const ENGINES_USUAL_MS = 3_000;

export interface RunningParts {
  temporal: Part | null;
  server: Part | null;
  agent: Part | null;
  router: Part | null;
}

export interface StopOptions {
  parts: RunningParts;
  /** Stops the engines within the time; false when it couldn't. */
  stopEngines: (timeoutMs: number) => Promise<boolean>;
  say: (line: string) => void;
}

/** Stops everything; what wouldn't end is said by name. */
export async function stopAll({ parts, stopEngines, say }: StopOptions): Promise<void> {
  let end = performance.now() + TOTAL_MS;
  const left = (bound: number) => Math.max(0, Math.min(bound, end - performance.now()));
  const stop = async (part: Part | null, bound: number) => {
    if (part === null || (await part.stop(left(bound)))) return;
    part.kill();
    say(`${part.name} did not end in time and was killed`);
  };
  await stop(parts.router, ROUTER_MS);
  await stop(parts.agent, AGENT_MS);
  if (parts.agent !== null) {
    const begun = performance.now();
    if (!(await stopEngines(ENGINES_MS)))
      say('not all engines could be stopped; what still runs is picked up by the next start');
    end += Math.max(0, performance.now() - begun - ENGINES_USUAL_MS);
  }
  await stop(parts.server, SERVER_MS);
  await stop(parts.temporal, TOTAL_MS);
}

/** `llmgw agent --config F --stop-engines`, its output in the agent's log. */
export async function stopEngines(
  options: { config: string; env: NodeJS.ProcessEnv; logFile: string },
  timeoutMs: number,
): Promise<boolean> {
  const log = openSync(options.logFile, 'a', 0o600);
  const child = spawn(process.execPath, [MAIN, 'agent', '--config', options.config, '--stop-engines'], {
    stdio: ['ignore', log, log],
    env: options.env,
    // The terminal's second Ctrl-C must not end it half-way.
    detached: true,
    timeout: Math.max(1, timeoutMs),
    killSignal: 'SIGKILL',
  });
  closeSync(log);
  return await new Promise(resolve => {
    child.once('error', () => resolve(false));
    child.once('exit', code => resolve(code === 0));
  });
}
