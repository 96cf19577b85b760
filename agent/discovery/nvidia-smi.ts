// Running nvidia-smi: one at a time, with a deadline. On a sick driver it can hang in D state, where not even SIGKILL
// ends it: it is then left behind, and none is started beside it until it has gone.
import { type ChildProcess, spawn } from 'node:child_process';

/** A healthy one with 16 GPUs answers within 3 s; persistence mode off adds a few seconds of driver start. */
const DEADLINE_MS = 15_000;
/** Between SIGTERM and giving up on it: killing a GPU monitor hard has frozen GPUs. */
const GRACE_MS = 2_000;
const OUTPUT_MAX = 4 * 1024 * 1024;

export interface SmiOutput {
  /** null: it did not end, or not by itself. */
  code: number | null;
  /** Both streams: the driver's sentences come on either. */
  text: string;
}

export class NvidiaSmi {
  readonly #bin: string;
  readonly #deadlineMs: number;
  #stuck: ChildProcess | null = null;
  #last: Promise<unknown> = Promise.resolve();

  /** @param bin '' looks on PATH. */
  constructor(bin: string, deadlineMs: number = DEADLINE_MS) {
    this.#bin = bin === '' ? 'nvidia-smi' : bin;
    this.#deadlineMs = deadlineMs;
  }

  /** @returns null when there is no such program; a sick driver is an output, not an error. */
  run(args: string[]): Promise<SmiOutput | null> {
    const next = this.#last.then(() => this.#run(args));
    this.#last = next;
    return next;
  }

  async #run(args: string[]): Promise<SmiOutput | null> {
    if (this.#stuck !== null)
      return { code: null, text: 'nvidia-smi does not answer: an earlier one still hangs' };
    const child = spawn(this.#bin, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env.PATH, LC_ALL: 'C' },
    });
    let text = '';
    const add = (part: Buffer): void => {
      if (text.length < OUTPUT_MAX) text += part.toString();
    };
    child.stdout.on('data', add);
    child.stderr.on('data', add);
    return new Promise(resolve => {
      let grace: NodeJS.Timeout | undefined;
      const deadline = setTimeout(() => {
        child.kill('SIGTERM');
        grace = setTimeout(() => {
          this.#stuck = child;
          child.unref();
          child.stdout.destroy();
          child.stderr.destroy();
          child.on('exit', () => {
            this.#stuck = null;
          });
          resolve({ code: null, text: `nvidia-smi did not answer within ${this.#deadlineMs} ms` });
        }, GRACE_MS);
      }, this.#deadlineMs);
      const done = (output: SmiOutput | null): void => {
        clearTimeout(deadline);
        clearTimeout(grace);
        resolve(output);
      };
      child.on('error', (error: NodeJS.ErrnoException) =>
        done(
          error.code === 'ENOENT'
            ? null
            : { code: null, text: `nvidia-smi could not be run: ${error.message}` },
        ),
      );
      child.on('close', code => done({ code, text }));
    });
  }
}
