// An installation whose engine is a real vLLM on the CPU: the parts that users run, with that program as `bin`.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { isListening, mappedFiles, readStat } from '../../agent/supervisor/proc.js';
import type { ReplicaStatus } from '../../contracts/status.js';
import type { Answer } from '../e2e/clients.js';
import { type Installation, install } from '../e2e/harness.js';
import { isRunning, kill, type Marked, marked } from '../e2e/processes.js';

/** Set by `npm run test:vllm`; without it there is nothing to test. */
export const VLLM = process.env.LLMGW_TEST_VLLM ?? null;
const MODEL = process.env.LLMGW_TEST_VLLM_MODEL ?? '';

/** A hang is found after this: a generation needs up to two minutes on a machine that does nothing else. */
const GIVE_UP_MS = 420_000;

export const SERVED = 'tiny';

export const spec = {
  model: MODEL,
  served_model_name: SERVED,
  engine: 'vllm',
  // bfloat16 ends with an illegal instruction on some processors.
  args: ['--max-model-len', '16384', '--dtype', 'float32', '--enforce-eager'],
  env: {
    VLLM_TARGET_DEVICE: 'cpu',
    VLLM_CPU_KVCACHE_SPACE: '1',
    HF_HUB_OFFLINE: '1',
    TRANSFORMERS_OFFLINE: '1',
  },
  restart: { max_failures: 100 },
  drain_timeout: '1s',
};

export interface Real extends Installation {
  workDir: string;
}

export async function installReal(): Promise<Real> {
  // A folder of its own: sockets of vLLM need a short path.
  const workDir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-vllm-'));
  const first = 27_000 + (process.pid % 40) * 20;
  const end = () => {
    const left = marked(workDir);
    const shared = left.flatMap(({ pid }) => segmentsOf(pid));
    for (const { pid } of left) kill(pid, 'SIGKILL');
    for (const file of shared) rmSync(file, { force: true });
  };
  process.once('exit', end);
  const at = await install({
    agent: {
      engines: { vllm: { bin: VLLM } },
      supervisor: {
        work_dir: workDir,
        ports: `${first}-${first + 19}`,
        stop_timeout: '5s',
        gpu_release_timeout: '5s',
        hang_timeout: '20s',
      },
    },
  });
  return {
    ...at,
    workDir,
    close: async () => {
      end();
      await at.close();
      await until('the engines to be gone', () => marked(workDir).length === 0);
      rmSync(workDir, { recursive: true, force: true });
    },
  };
}

/** As the other tests' waitFor, for a program that takes minutes. */
export async function until<T>(
  what: string,
  look: () => T | null | undefined | false | Promise<T | null | undefined | false>,
  context: () => unknown = () => '',
): Promise<T> {
  const end = performance.now() + GIVE_UP_MS;
  for (;;) {
    const seen = await look();
    if (seen !== null && seen !== undefined && seen !== false) return seen;
    if (performance.now() > end) throw new Error(`waited in vain for ${what}; ${JSON.stringify(context())}`);
    await new Promise(resolve => setTimeout(resolve, 200));
  }
}

export async function untilReady(at: Real, generation: number): Promise<ReplicaStatus> {
  let last: ReplicaStatus | null = null;
  const ready = await until(
    `generation ${generation} to be ready`,
    async () => {
      last = await at.status('real');
      if (last?.phase === 'failed') throw new Error(JSON.stringify(last));
      return last?.phase === 'ready' && last.generation === generation ? last : null;
    },
    () => last,
  );
  await until('the router to offer it', async () => (await at.models()).includes(SERVED));
  return ready;
}

const segmentsOf = (pid: number): string[] =>
  mappedFiles(pid)
    .map(mapped => mapped.file)
    .filter(file => /^\/dev\/shm\/(psm_|sem\.mp-)/.test(file));

/** Names of what Python shares memory by, of all programs of this machine. */
export const sharedMemory = (): string[] =>
  readdirSync('/dev/shm').filter(name => /^(psm_|sem\.mp-)/.test(name));

/** What a generation has on the machine. */
export interface Footprint {
  processes: Marked[];
  /** pids by their part: `VLLM::EngineCor` and the like. */
  pid(comm: string): number;
  port: number;
  segments: string[];
  sockets: string[];
}

export function footprint(at: Real, status: ReplicaStatus): Footprint {
  const processes = marked(at.workDir, 'real');
  return {
    processes,
    pid: wanted => {
      const found = processes.filter(p => readStat(p.pid)?.comm.startsWith(wanted));
      if (found.length !== 1) throw new Error(`${found.length} processes ${wanted}`);
      return found[0]!.pid;
    },
    port: status.members[0]!.ports.http!,
    segments: processes.flatMap(p => segmentsOf(p.pid)),
    sockets: readdirSync(path.join(at.workDir, 'tmp')).map(dir => path.join(at.workDir, 'tmp', dir)),
  };
}

/** What of it is still there; a generation that has ended leaves nothing. */
export function left(at: Real, was: Footprint): unknown[] {
  const there = new Set([
    ...readdirSync('/dev/shm').map(name => `/dev/shm/${name}`),
    ...readdirSync(path.join(at.workDir, 'tmp')).map(dir => path.join(at.workDir, 'tmp', dir)),
  ]);
  return [
    ...was.processes.filter(p => isRunning(p.pid)),
    ...[...was.segments, ...was.sockets].filter(file => there.has(file)),
    ...(isListening(was.port) ? [`port ${was.port}`] : []),
  ];
}

export interface Stream {
  text(): string;
  /** `end`: as HTTP ends; else why it broke. */
  ended: Promise<string>;
  leave(): void;
}

/** A short answer: without a limit the model goes on to the end of its context. */
export async function ask(at: Real, stream: boolean): Promise<Answer> {
  const response = await post(at, { stream, max_tokens: 24 });
  return { status: response.status, text: await response.text() };
}

const post = (at: Real, more: object, signal?: AbortSignal): Promise<Response> =>
  fetch(`http://127.0.0.1:${at.ports.router}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: SERVED, messages: [{ role: 'user', content: 'hello' }], ...more }),
    ...(signal === undefined ? {} : { signal }),
  });

/** A stream through the router that outlasts what is done to the engine; resolves at its first token. */
export async function openStream(at: Real): Promise<Stream> {
  const leave = new AbortController();
  const response = await post(at, { stream: true, max_tokens: 16_000, ignore_eos: true }, leave.signal);
  let text = '';
  const ended = (async () => {
    for await (const part of response.body!) text += Buffer.from(part).toString();
    return 'end';
  })().catch((error: Error) => error.message);
  await until('the first token', () => /"content":"[^"]/.test(text));
  return { text: () => text, ended, leave: () => leave.abort() };
}
