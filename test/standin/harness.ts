// Starts the stand-in as its users do: as a process, by its program.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { reservedPort } from '../fakes/ports.js';

const program = (name: string) =>
  fileURLToPath(new URL(`../../bin/llmgw-standin-${name}.mjs`, import.meta.url));
export const STANDIN = program('vllm');
export const PYTHON = program('python');
export const RAY = program('ray');

export interface StandIn {
  child: ChildProcess;
  url: string;
  port: number;
  log(): string;
  /** Resolves with the exit once it has ended and its output is whole. */
  ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
}

const running = new Set<ChildProcess>();

/** @param knobs without their prefix. */
export async function start(
  knobs: Record<string, string | number> = {},
  { args = [], env = {} }: { args?: string[]; env?: Record<string, string> } = {},
): Promise<StandIn> {
  const port = await reservedPort();
  const command = ['serve', 'Qwen/Qwen3-8B', '--served-model-name', 'qwen3-8b', 'alias'];
  return run(STANDIN, [...command, '--host', '127.0.0.1', '--port', String(port), ...args], {
    knobs,
    env,
    port,
  });
}

/** Any of the programs. */
export function run(
  bin: string,
  args: string[],
  {
    knobs = {},
    env = {},
    port = 0,
  }: { knobs?: Record<string, string | number>; env?: Record<string, string>; port?: number } = {},
): StandIn {
  const named = Object.entries(knobs).map(([name, value]) => [`LLMGW_STANDIN_${name}`, String(value)]);
  const child = spawn(bin, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env.PATH, ...env, ...Object.fromEntries(named) },
  });
  running.add(child);
  let text = '';
  for (const stream of [child.stdout!, child.stderr!]) stream.on('data', part => (text += part));
  const ended = once(child, 'exit').then(([code, signal]) => {
    running.delete(child);
    return { code, signal };
  });
  return { child, url: `http://127.0.0.1:${port}`, port, log: () => text, ended };
}

export async function ready(engine: StandIn): Promise<void> {
  await until(async () => (await fetch(`${engine.url}/health`).catch(() => null))?.ok === true);
}

/** Ends what a test left; children of stand-ins are the test's own to end. */
export async function endAll(): Promise<void> {
  for (const child of running) {
    child.kill('SIGKILL');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  }
}

/** The test's own time limit bounds it. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise(resolve => setTimeout(resolve, 10));
}

export const alive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

export const chat = (engine: StandIn, body: object, init: RequestInit = {}): Promise<Response> =>
  fetch(`${engine.url}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({
      model: 'qwen3-8b',
      messages: [{ role: 'user', content: 'hello there' }],
      ...body,
    }),
    ...init,
  });
