// Running nvidia-smi: one at a time, with a deadline. On a sick driver it can hang in D state, where not even SIGKILL
// ends it: it is then left behind, and none is started beside it until it has gone.
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

/** A healthy one with 16 GPUs answers within 3 s; persistence mode off adds a few seconds of driver start. */
const DEADLINE_MS = 15_000;
/** Between SIGTERM and giving up on it: killing a GPU monitor hard has frozen GPUs. */
const GRACE_MS = 2_000;
/** After its end: what a child of a wrapper script still holds the pipes for isn't waited for. */
const DRAIN_MS = 1_000;
const OUTPUT_MAX = 4 * 1024 * 1024;

export interface SmiOutput {
  /** null: it did not end, or not by itself. */
  code: number | null;
  /** Standard output: rows are only looked for here, since a warning on the other stream may land within one. */
  out: string;
  /** Both streams, standard output first: the driver's sentences come on either. */
  text: string;
  /** It did not answer in time; also said of those that aren't started while an earlier one hangs. */
  hung: boolean;
}

/** Whom nvidia-smi is asked through. */
export type Asked = Pick<NvidiaSmi, 'run'>;

/** One look's questions: after one that hung, the rest of the look asks nothing. */
export class PatientSmi {
  readonly #smi: Asked;
  #looks = 0;
  #hung: SmiOutput | null = null;

  constructor(smi: Asked) {
    this.#smi = smi;
  }

  /** What one that is not answered has said in the looks that are on their way. */
  get hung(): SmiOutput | null {
    return this.#hung;
  }

  async look<T>(run: () => Promise<T>): Promise<T> {
    if (this.#looks++ === 0) this.#hung = null;
    try {
      return await run();
    } finally {
      this.#looks--;
    }
  }

  async run(args: string[]): Promise<SmiOutput | null> {
    if (this.#hung !== null) return this.#hung;
    const output = await this.#smi.run(args);
    if (output?.hung) this.#hung = output;
    return output;
  }
}

export class NvidiaSmi {
  readonly #bin: string;
  readonly #deadlineMs: number;
  readonly #graceMs: number;
  #stuck: ChildProcess | null = null;
  #last: Promise<unknown> = Promise.resolve();

  /** @param bin '' looks on PATH. */
  constructor(bin: string, deadlineMs: number = DEADLINE_MS, graceMs: number = GRACE_MS) {
    this.#bin = bin === '' ? 'nvidia-smi' : bin;
    this.#deadlineMs = deadlineMs;
    this.#graceMs = graceMs;
  }

  /** @returns null when there is no such program; a sick driver is an output, not an error. */
  run(args: string[]): Promise<SmiOutput | null> {
    const next = this.#last.then(() => this.#run(args));
    this.#last = next;
    return next;
  }

  async #run(args: string[]): Promise<SmiOutput | null> {
    if (this.#stuck !== null)
      return { ...said('nvidia-smi does not answer: an earlier one still hangs'), hung: true };
    const started = this.#spawn(args);
    if (!(started instanceof Object && 'child' in started)) return started;
    const { child } = started;
    const [out, err] = [new Gathered(), new Gathered()];
    child.stdout!.on('data', part => out.add(part));
    child.stderr!.on('data', part => err.add(part));
    return new Promise(resolve => {
      const timers: NodeJS.Timeout[] = [];
      const after = (ms: number, run: () => void) => timers.push(setTimeout(run, ms));
      const done = (output: SmiOutput | null): void => {
        for (const timer of timers) clearTimeout(timer);
        resolve(output);
      };
      const late = { ...said(`nvidia-smi did not answer within ${this.#deadlineMs} ms`), hung: true };
      let asked = false;
      const ended = (code: number | null, signal: NodeJS.Signals | null): void => {
        child.stdout?.destroy();
        child.stderr?.destroy();
        const how = signal === null ? '' : `nvidia-smi was ended by ${signal}\n`;
        const text = [out.text(), err.text(), how].filter(part => part !== '').join('\n');
        done(asked ? late : { code, out: out.text(), text, hung: false });
      };
      after(this.#deadlineMs, () => {
        asked = true;
        terminate(child);
        after(this.#graceMs, () => {
          this.#abandon(child);
          done(late);
        });
      });
      child.on('error', (error: NodeJS.ErrnoException) => done(notRun(error, this.#bin)));
      child.on('exit', (code, signal) => after(DRAIN_MS, () => ended(code, signal)));
      child.on('close', ended);
    });
  }

  #spawn(args: string[]): { child: ChildProcess } | SmiOutput | null {
    try {
      const env = { PATH: process.env.PATH, LC_ALL: 'C' };
      return { child: spawn(this.#bin, args, { stdio: ['ignore', 'pipe', 'pipe'], env, detached: true }) };
    } catch (error) {
      return notRun(error as NodeJS.ErrnoException, this.#bin);
    }
  }

  #abandon(child: ChildProcess): void {
    this.#stuck = child;
    child.unref();
    child.stdout?.destroy();
    child.stderr?.destroy();
    child.on('exit', () => {
      this.#stuck = null;
    });
  }
}

/** With its group: a wrapper script has the real one as its child. Never SIGKILL, see GRACE_MS. */
function terminate(child: ChildProcess): void {
  try {
    if (child.pid !== undefined) process.kill(-child.pid, 'SIGTERM');
  } catch {
    // It has just ended.
  }
}

function said(text: string): SmiOutput {
  return { code: null, out: '', text, hung: false };
}

function notRun(error: NodeJS.ErrnoException, bin: string): SmiOutput | null {
  if (error.code !== 'ENOENT') return said(`nvidia-smi could not be run: ${error.message}`);
  // The system says the same of a script that is there and whose interpreter isn't.
  const folders = bin.includes('/') ? [''] : (process.env.PATH ?? '').split(':');
  const file = folders.map(folder => join(folder, bin)).find(path => existsSync(path));
  return file === undefined
    ? null
    : said(`${file} could not be run: the interpreter that it names is absent`);
}

/** A stream's bytes, bounded, decoded once whole: a character may lie across two chunks. */
class Gathered {
  #parts: Buffer[] = [];
  #size = 0;

  add(part: Buffer): void {
    if (this.#size < OUTPUT_MAX) this.#parts.push(part);
    this.#size += part.length;
  }

  text(): string {
    const text = Buffer.concat(this.#parts).subarray(0, OUTPUT_MAX).toString('utf8');
    return text.replace(/^\ufeff/, '');
  }
}
