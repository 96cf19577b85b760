// One part of dev (Temporal, server, agent, router): a detached process with its log, tied to dev by a channel that
// closes with dev, started again when it dies.
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, fstatSync, mkdirSync, openSync, readSync, renameSync, statSync } from 'node:fs';
import path from 'node:path';
import { DEV_CHANNEL_ENV } from '../lib/dev-channel.js';
import { identify, type ProcessIdentity, signal, waitGone } from './identity.js';

/** A part that dies is started again after this: at once would hide the death and spin. */
const RESPAWN_MS = 1_000;
/** Deaths in a row before it was ever ready, after which starting it again is no use. */
const MAX_EARLY_DEATHS = 3;
/** Exit code of a part that refuses its configuration (bad input): the next try would say the same. */
const REFUSED = 2;
/** A log above this is moved aside (one old file is kept) when its part starts. */
const LOG_MAX_BYTES = 64 * 1024 * 1024;

export interface PartOptions {
  /** As people read it: `router`. */
  name: string;
  command: string[];
  env?: NodeJS.ProcessEnv;
  logFile: string;
  respawn: boolean;
  /** Whether it serves now; asked every 50 ms while it starts. */
  isReady: () => Promise<boolean>;
  say: (line: string) => void;
  /** Called with each new process, and with null when it has ended. */
  onProcess: (who: ProcessIdentity | null) => void;
}

export class Part {
  readonly #options: PartOptions;
  #child: ChildProcess | null = null;
  #who: ProcessIdentity | null = null;
  #respawnTimer: NodeJS.Timeout | null = null;
  #stopping = false;
  #everReady = false;
  #earlyDeaths = 0;
  /** Why it will not be started again; null while it may. */
  #gaveUp: string | null = null;
  /** Where this start's output begins in the log. */
  #logStart = 0;

  constructor(options: PartOptions) {
    this.#options = options;
  }

  get name(): string {
    return this.#options.name;
  }

  get pid(): number | null {
    return this.#who?.pid ?? null;
  }

  start(): void {
    const { command, env, logFile } = this.#options;
    const log = openLog(logFile);
    this.#logStart = fstatSync(log).size;
    const [program = '', ...args] = command;
    const child = spawn(program, args, {
      // Of its own session: the terminal's Ctrl-C is dev's alone, which stops the parts in order.
      detached: true,
      stdio: ['ignore', log, log, 'pipe'],
      env: { ...(env ?? process.env), [DEV_CHANNEL_ENV]: '3' },
    });
    closeSync(log);
    this.#child = child;
    // Dev only holds its end; a part that breaks its own is seen by its exit.
    child.stdio[3]?.on('error', () => {});
    child.once('error', error => this.#ended(`can't be started: ${error.message}`, null));
    child.once('exit', (code, sig) =>
      this.#ended(sig === null ? `exited with code ${code}` : `was ended by ${sig}`, code),
    );
    this.#who = child.pid === undefined ? null : identify(child.pid);
    this.#options.onProcess(this.#who);
  }

  /** Waits until it serves; an error with its last log lines when it won't, or after `timeoutMs`. */
  async ready(timeoutMs: number): Promise<void> {
    const until = performance.now() + timeoutMs;
    for (;;) {
      if (this.#stopping) throw new PartFailed(this.name, 'was stopped before it was ready');
      if (this.#gaveUp !== null) throw new PartFailed(this.name, this.#gaveUp);
      if (this.#child !== null && (await this.#options.isReady())) {
        this.#everReady = true;
        return;
      }
      if (performance.now() > until) {
        const seconds = Math.round(timeoutMs / 1000);
        throw new PartFailed(this.name, `is not ready after ${seconds} s${this.#logTail()}`);
      }
      await new Promise(resolve => setTimeout(resolve, 50));
    }
  }

  /** SIGTERM; true when it was gone within `graceMs`. It isn't started again. */
  async stop(graceMs: number): Promise<boolean> {
    this.#noMoreStarts();
    const who = this.#who;
    if (who === null) return true;
    signal(who, 'SIGTERM');
    return await waitGone(who, graceMs);
  }

  /** SIGKILL of its process group. */
  kill(): void {
    this.#noMoreStarts();
    if (this.#who !== null) signal(this.#who, 'SIGKILL', { group: true });
  }

  #noMoreStarts(): void {
    this.#stopping = true;
    if (this.#respawnTimer !== null) clearTimeout(this.#respawnTimer);
  }

  #ended(how: string, code: number | null): void {
    if (this.#child === null) return;
    const pid = this.#child.pid;
    this.#child.stdio[3]?.destroy();
    this.#child = null;
    this.#who = null;
    this.#options.onProcess(null);
    if (this.#stopping) return;
    const story = `${this.name}${pid === undefined ? '' : ` (pid ${pid})`} ${how}`;
    if (!this.#everReady) {
      this.#earlyDeaths++;
      if (!this.#options.respawn || code === REFUSED || this.#earlyDeaths >= MAX_EARLY_DEATHS) {
        this.#gaveUp = `${how} before it was ready${this.#logTail()}`;
        return;
      }
    }
    if (!this.#options.respawn) {
      this.#options.say(`${story}; it is not started again (--no-respawn)${this.#logTail()}`);
      return;
    }
    this.#options.say(
      `${story}; starting it again in 1 s: ${shellLine(this.#options.command)}${this.#logTail()}`,
    );
    this.#respawnTimer = setTimeout(() => this.start(), RESPAWN_MS);
  }

  #logTail(): string {
    const lines = lastLines(this.#options.logFile, this.#logStart, 5);
    return lines.length === 0
      ? ` (nothing in ${this.#options.logFile})`
      : `\n  last lines of ${this.#options.logFile}:\n${lines.map(l => `    ${l}`).join('\n')}`;
  }
}

/** A part that didn't come up: `sentence` goes after its name. */
export class PartFailed extends Error {
  constructor(
    readonly part: string,
    readonly sentence: string,
  ) {
    super(`${part} ${sentence}`);
  }
}

/** A command as it can be pasted into a shell. */
export function shellLine(command: readonly string[]): string {
  return command
    .map(word => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`))
    .join(' ');
}

function openLog(file: string): number {
  mkdirSync(path.dirname(file), { recursive: true });
  if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) > LOG_MAX_BYTES) renameSync(file, `${file}.1`);
  return openSync(file, 'a', 0o600);
}

/** The last lines that were written since `from`; at most 8 KiB are read. */
function lastLines(file: string, from: number, count: number): string[] {
  try {
    const fd = openSync(file, 'r');
    try {
      const size = fstatSync(fd).size;
      const start = Math.max(from, size - 8_192);
      const buffer = Buffer.alloc(Math.max(0, size - start));
      readSync(fd, buffer, 0, buffer.length, start);
      const lines = buffer
        .toString('utf8')
        .split('\n')
        .filter(line => line.trim() !== '');
      return lines.slice(-count).map(line => (line.length > 400 ? `${line.slice(0, 399)}…` : line));
    } finally {
      closeSync(fd);
    }
  } catch {
    // Only decoration of a message: without the log, without the lines.
    return [];
  }
}
