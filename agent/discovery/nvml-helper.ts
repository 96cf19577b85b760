// The agent's side of NVML's helper process (native/helper.ts): one question at a time, each with a deadline. A call can
// hang in the driver in D state, where not even SIGKILL ends it: then no second helper is started beside the stuck one.
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Readable, Stream } from 'node:stream';
import { fileURLToPath } from 'node:url';
import type {
  DriverEvent,
  HoldersReading,
  Line,
  OpenFailure,
  Question,
  Reading,
  Response,
} from '../../native/protocol.js';
import { NVML_TIMES, NvmlCrashed, NvmlSilent, type NvmlTimes, NvmlUnavailable } from './nvml-terms.js';

export interface NvmlHelperOptions {
  /** '' looks in the usual places. */
  library: string;
  /** The compiled helper. */
  script?: string;
  times?: Partial<NvmlTimes>;
  /** For tests: a process in D state takes no signal. */
  signal?: (child: ChildProcess, signal: NodeJS.Signals) => void;
}

const SCRIPT = fileURLToPath(new URL('../../native/helper.js', import.meta.url));
/** It computes next to nothing: without the optimising compiler and spare threads it needs a few MiB less. */
const NODE_FLAGS = ['--max-semi-space-size=1', '--max-old-space-size=32', '--v8-pool-size=0', '--no-opt'];
/** One thread waits for events, one asks. */
const THREADS = '3';
const STDERR_KEPT = 2_000;
/** More than the helper takes to end (END_MS there), and than the grace of one that is stuck. */
const CLOSE_MS = 2_500;

interface Running {
  child: ChildProcess;
  /** What it was asked and hasn't answered. */
  pending: { id: number; settle(result: Response | Error): void } | null;
  /** It has answered once: the driver is open. */
  open: boolean;
  stderr: string;
}

export class NvmlHelper {
  readonly #opts: NvmlHelperOptions;
  readonly #times: NvmlTimes;
  readonly #listeners = new Set<(event: DriverEvent) => void>();
  #running: Running | null = null;
  /** Told to end and still there. */
  #stuck: ChildProcess | null = null;
  #silentSince: number | null = null;
  /** In a row, without an answer between. */
  #failures = 0;
  /** Until `at` (monotonic ms) every question gets this. */
  #resting: { at: number; error: Error } | null = null;
  #last: Promise<unknown> = Promise.resolve();
  #id = 0;
  #closed = false;

  constructor(opts: NvmlHelperOptions) {
    this.#opts = opts;
    this.#times = { ...NVML_TIMES, ...opts.times };
  }

  /** @throws NvmlUnavailable, NvmlSilent, NvmlCrashed */
  async inventory(full: boolean): Promise<Reading> {
    const response = await this.#queue({ ask: 'inventory', full });
    if ('inventory' in response) return response.inventory;
    throw new NvmlCrashed('an answer to another question');
  }

  /** @throws NvmlUnavailable, NvmlSilent, NvmlCrashed */
  async holders(): Promise<HoldersReading[]> {
    const response = await this.#queue({ ask: 'holders' });
    if ('holders' in response) return response.holders;
    throw new NvmlCrashed('an answer to another question');
  }

  /** What the driver tells by itself, from the first whole inventory on. */
  onEvent(listener: (event: DriverEvent) => void): void {
    this.#listeners.add(listener);
  }

  get library(): string {
    return this.#opts.library;
  }

  get pid(): number | undefined {
    return this.#running?.child.pid;
  }

  /** Lets the helper end, which it does within a second, whatever the driver does. */
  end(): void {
    this.#closed = true;
    this.#running?.child.stdin?.end();
  }

  /** The same, and waits for it; not for one that nothing ends. */
  async close(): Promise<void> {
    const child = this.#running?.child ?? this.#stuck;
    this.end();
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    await new Promise<void>(resolve => {
      const limit = setTimeout(resolve, CLOSE_MS);
      child.once('exit', () => {
        clearTimeout(limit);
        resolve();
      });
    });
  }

  #queue(question: Question): Promise<Response> {
    const next = this.#last.then(() => this.#ask(question));
    this.#last = next.catch(() => {});
    return next;
  }

  async #ask(question: Question): Promise<Response> {
    if (this.#closed) throw new NvmlCrashed('the agent stops');
    if (this.#stuck !== null) throw new NvmlSilent(this.#silentSince ?? Date.now());
    if (this.#resting !== null && performance.now() < this.#resting.at) throw this.#resting.error;
    this.#resting = null;
    this.#running ??= this.#start();
    const running = this.#running;
    const asked = Date.now();
    const { answer, open, openMost } = this.#times;
    const limit = running.open ? answer : Math.min(open * 2 ** this.#failures, openMost);
    const result = await this.#exchange(running, question, limit);
    if (result === null) throw this.#silence(running, asked);
    if (result instanceof Error) {
      // Once is an accident: the next one may well answer.
      if (running.open && this.#failures === 1) return this.#ask(question);
      throw result;
    }
    this.#silentSince = null;
    running.open = true;
    if (!('failed' in result)) {
      this.#failures = 0;
      return result;
    }
    throw this.#refused(running, result.failed);
  }

  /** null: no answer in time. */
  #exchange(running: Running, question: Question, limit: number): Promise<Response | Error | null> {
    return new Promise(resolve => {
      const id = ++this.#id;
      const timer = setTimeout(() => settle(null), limit);
      const settle = (result: Response | Error | null): void => {
        clearTimeout(timer);
        running.pending = null;
        resolve(result);
      };
      running.pending = { id, settle };
      running.child.stdin!.write(`${JSON.stringify({ id, ...question })}\n`);
    });
  }

  #start(): Running {
    const { NODE_OPTIONS: _, ...env } = process.env; // meant for the agent: a debugger's port, say
    const args = [...NODE_FLAGS, this.#opts.script ?? SCRIPT, this.#opts.library];
    // In a folder that is always there, and with the answers apart from what a library may print.
    let child: ChildProcess;
    try {
      child = spawn(process.execPath, args, {
        cwd: '/',
        stdio: ['pipe', 'ignore', 'pipe', 'pipe'],
        env: { ...env, UV_THREADPOOL_SIZE: THREADS },
      });
    } catch (error) {
      throw this.#unstarted((error as Error).message);
    }
    if (child.stdin == null) {
      child.on('error', () => {});
      throw this.#unstarted('no file descriptors are left'); // what node leaves without pipes
    }
    const running: Running = { child, pending: null, open: false, stderr: '' };
    const answers = child.stdio[3] as Readable;
    createInterface({ input: answers }).on('line', line => this.#hear(running, line));
    child.stderr!.on('data', (part: Buffer) => {
      running.stderr = (running.stderr + part.toString()).slice(-STDERR_KEPT);
    });
    for (const stream of [child.stdin, answers, child.stderr!] as Stream[]) {
      stream.on('error', () => {}); // its end says it
      (stream as unknown as { unref(): void }).unref();
    }
    // It may neither hold up the agent's end nor outlive it: it ends with its stdin.
    child.unref();
    child.on('error', error => this.#ended(running, error.message));
    child.on('exit', (code, signal) => this.#ended(running, signal ?? `exit ${code}`));
    return running;
  }

  #unstarted(why: string): Error {
    const error = new NvmlCrashed(why);
    this.#rest(error);
    return error;
  }

  #hear(running: Running, text: string): void {
    let line: Line;
    try {
      line = JSON.parse(text) as Line;
    } catch {
      return; // cut short by its end
    }
    if ('event' in line) for (const listener of this.#listeners) listener(line.event);
    else if (line.id === running.pending?.id) running.pending.settle(line);
  }

  #ended(running: Running, how: string): void {
    if (this.#stuck === running.child) this.#stuck = null;
    if (this.#running === running) {
      this.#running = null;
      const said = running.stderr.trim().split('\n').at(-1)?.slice(0, 200) ?? '';
      this.#rest(new NvmlCrashed(said === '' ? how : `${how}: ${said}`));
    }
    if (this.#resting !== null) running.pending?.settle(this.#resting.error);
  }

  /** The deadline has passed. */
  #silence(running: Running, asked: number): NvmlSilent {
    this.#silentSince ??= asked;
    const error = new NvmlSilent(this.#silentSince);
    const { child } = running;
    this.#running = null;
    this.#stuck = child;
    this.#rest(error);
    this.#signal(child, 'SIGTERM');
    setTimeout(() => {
      if (this.#stuck === child) this.#signal(child, 'SIGKILL');
    }, this.#times.grace).unref();
    return error;
  }

  /** The driver said no. Another process may load another library, so this one needn't stay. */
  #refused(running: Running, failure: OpenFailure): NvmlUnavailable {
    const error = new NvmlUnavailable(failure);
    this.#running = null;
    running.child.stdin!.end();
    const { reopen, relook } = this.#times;
    this.#resting = { at: performance.now() + (failure.step === 'load' ? relook : reopen), error };
    return error;
  }

  #rest(error: Error): void {
    const { restart, restartMost } = this.#times;
    const wait = Math.min(restart * (2 ** this.#failures - 1), restartMost);
    this.#failures++;
    this.#resting = { at: performance.now() + wait, error };
  }

  #signal(child: ChildProcess, signal: NodeJS.Signals): void {
    (this.#opts.signal ?? ((who, what) => void who.kill(what)))(child, signal);
  }
}
