// Logging of every part: pino, one JSON object a line; on a terminal one readable line instead. A log that can't be
// written (its reader is gone) is dropped: no part may die of it.
import pino, { type DestinationStream, type Logger } from 'pino';

export type { Logger } from 'pino';

export interface LogOptions {
  /** The part: agent, server, router, dev. */
  name: string;
  /** stderr where stdout carries the command's answer (--json); a path appends to that file. Default stdout. */
  dest?: 'stdout' | 'stderr' | { file: string };
  /** Default: LLMGW_LOG_LEVEL, else info. */
  level?: string;
}

const LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'];

/** The logger of a process; children carry `replica`, `node` and the like. Writes are synchronous: a line isn't lost
 * when the process ends right after it. */
export function createLogger(opts: LogOptions): Logger {
  const wanted = opts.level ?? process.env.LLMGW_LOG_LEVEL ?? 'info';
  const level = LEVELS.includes(wanted) ? wanted : 'info';
  return pino(
    { name: opts.name, level, base: { name: opts.name }, timestamp: pino.stdTimeFunctions.isoTime },
    destination(opts.dest ?? 'stdout'),
  );
}

/** For tests and for optional loggers. */
export const silentLogger = (): Logger => pino({ level: 'silent' });

function destination(dest: NonNullable<LogOptions['dest']>): DestinationStream {
  if (typeof dest === 'object')
    return tolerant(pino.destination({ dest: dest.file, sync: true, mkdir: true }));
  const stream = dest === 'stderr' ? process.stderr : process.stdout;
  if (!stream.isTTY) return tolerant(pino.destination({ dest: dest === 'stderr' ? 2 : 1, sync: true }));
  return { write: line => void stream.write(readable(line)) };
}

/** EPIPE, ENOSPC: dropped. */
function tolerant<T extends { on(event: 'error', f: () => void): unknown }>(stream: T): T {
  stream.on('error', () => {});
  return stream;
}

const OMIT = new Set(['level', 'time', 'name', 'msg']);
const NAMES: Record<number, string> = {
  10: 'trace',
  20: 'debug',
  30: 'info',
  40: 'warn',
  50: 'error',
  60: 'fatal',
};

/** `12:00:01.123 warn agent: message key=value …` */
export function readable(line: string): string {
  let record: Record<string, unknown>;
  try {
    record = JSON.parse(line);
  } catch {
    return line;
  }
  const time = String(record.time).slice(11, 23);
  const fields = Object.entries(record)
    .filter(([key]) => !OMIT.has(key))
    .map(([key, value]) => ` ${key}=${show(value)}`);
  const level = NAMES[Number(record.level)] ?? 'info';
  return `${time} ${level} ${record.name}: ${record.msg ?? ''}${fields.join('')}\n`;
}

function show(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value);
  const error = value as { message?: unknown };
  return typeof error.message === 'string' ? error.message : JSON.stringify(value);
}
