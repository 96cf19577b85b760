// Processes as the tests see them: through /proc, by pid and by the mark that every engine carries.
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';

/** A hang is found after this; nothing is measured with it. */
const GIVE_UP_MS = 45_000;

/** Looks until there is something; `what` and the last thing seen are in the error of a test that hangs. */
export async function waitFor<T>(
  what: string,
  look: () => T | null | undefined | false | Promise<T | null | undefined | false>,
  context: () => unknown = () => '',
): Promise<T> {
  const end = performance.now() + GIVE_UP_MS;
  for (;;) {
    const seen = await look();
    if (seen !== null && seen !== undefined && seen !== false) return seen;
    if (performance.now() > end) throw new Error(`waited in vain for ${what}; ${show(context())}`);
    await new Promise(resolve => setTimeout(resolve, 25));
  }
}

const show = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value));

/** Alive and no zombie. */
export function isRunning(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return !/^[ZX]/.test(stat.slice(stat.lastIndexOf(')') + 2));
  } catch {
    return false;
  }
}

export function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It has ended by itself.
  }
}

export interface Marked {
  pid: number;
  /** `<replica>/<fence>/<rank>`. */
  mark: string;
  kind: 'shim' | 'engine' | 'child';
}

/** What carries an engine's mark and runs below `dir`: engines' folders are their working directories. */
export function marked(dir: string, replica?: string): Marked[] {
  return readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .flatMap(name => {
      const pid = Number(name);
      try {
        const environ = `\0${readFileSync(`/proc/${pid}/environ`, 'latin1')}`;
        const mark = /\0LLMGW_ENGINE=([^\0]*)/.exec(environ)?.[1];
        if (mark === undefined || !isRunning(pid)) return [];
        if (replica !== undefined && !mark.startsWith(`${replica}/`)) return [];
        if (!readlinkSync(`/proc/${pid}/cwd`).startsWith(dir)) return [];
        return [{ pid, mark, kind: kindOf(readFileSync(`/proc/${pid}/cmdline`, 'utf8')) }];
      } catch {
        // Another user's, or gone meanwhile.
        return [];
      }
    });
}

function kindOf(cmdline: string): Marked['kind'] {
  const words = cmdline.split('\0');
  if (words.some(word => /\/shim-[0-9a-f]+\.sh$/.test(word))) return 'shim';
  return words.includes('serve') ? 'engine' : 'child';
}

export interface Started {
  child: ChildProcess;
  pid: number;
  logFile: string;
  /** All that it wrote, both streams. */
  output(): string;
  /** Its log lines that are JSON. */
  records(): LogRecord[];
  /** Exit code, or the signal that ended it. */
  ended: Promise<number | NodeJS.Signals>;
}

export type LogRecord = Record<string, unknown> & { msg?: string; level: number };

/** Starts a process of its own session whose output goes into a file, as under a service manager. */
export function start(
  program: string,
  args: string[],
  options: { logFile: string; env?: NodeJS.ProcessEnv; cwd?: string },
): Started {
  const log = openSync(options.logFile, 'a');
  const child = spawn(program, args, {
    stdio: ['ignore', log, log],
    detached: true,
    env: options.env ?? process.env,
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
  });
  closeSync(log);
  const ended = new Promise<number | NodeJS.Signals>((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => resolve(code ?? signal!));
  });
  ended.catch(() => {});
  const output = (): string => (existsSync(options.logFile) ? readFileSync(options.logFile, 'utf8') : '');
  return {
    child,
    pid: child.pid!,
    logFile: options.logFile,
    output,
    records: () => records(output()),
    ended,
  };
}

function records(text: string): LogRecord[] {
  return text.split('\n').flatMap(line => {
    try {
      return line.startsWith('{') ? [JSON.parse(line) as LogRecord] : [];
    } catch {
      // A line that is being written.
      return [];
    }
  });
}
