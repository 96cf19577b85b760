// Reading an engine's log: its tail for people, its head and tail to explain a failure, and its new lines while the
// engine loads. The files: `log` (appended by the engine), `log.1` (what the last cut kept), `log.head` (first 1 MiB),
// in a folder of their own: a watch of the run folder must not wake for every line that an engine prints.
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import path from 'node:path';
import { errnoOf } from '../state/files.js';
import { LineRing, LineSplitter } from './log-lines.js';

export const logFile = (runDir: string, name: 'log' | 'log.1' | 'log.head' = 'log'): string =>
  path.join(runDir, 'logs', name);

const CHUNK = 65_536;
/** How far back a tail looks in one file: bounds the time, and 64 MiB lines can't be shown anyway. */
const WINDOW = 8 * 1_048_576;
/** All lines of one answer together. */
const MAX_CHARS = 2 * 1_048_576;
/** What one look at a loading engine's log reads at most; a flood is skipped, its end is what counts. */
const FOLLOW_BYTES = 1_048_576;

/** Calls `onLine` for the lines of `[from, to)`; a missing file has none. Returns where it ended. */
function readLines(
  file: string,
  from: number,
  to: number,
  splitter: LineSplitter,
  onLine: (l: string) => void,
) {
  let fd: number;
  try {
    fd = openSync(file, 'r');
  } catch (e) {
    if (errnoOf(e) === 'ENOENT') return from;
    throw e;
  }
  try {
    const end = Math.min(to, fstatSync(fd).size);
    const buffer = Buffer.allocUnsafe(CHUNK);
    let at = from;
    while (at < end) {
      const n = readSync(fd, buffer, 0, Math.min(CHUNK, end - at), at);
      if (n === 0) break;
      at += n;
      for (const line of splitter.push(buffer.subarray(0, n))) onLine(line);
    }
    return at;
  } finally {
    closeSync(fd);
  }
}

export function sizeOf(file: string): number {
  try {
    return statSync(file).size;
  } catch {
    return 0;
  }
}

/** The last lines of the log, raw (callers redact): oldest first. */
export function tailLines(runDir: string, lines: number): string[] {
  const ring = new LineRing(lines, MAX_CHARS);
  for (const name of ['log.1', 'log'] as const) {
    const file = logFile(runDir, name);
    const size = sizeOf(file);
    const from = Math.max(0, size - WINDOW);
    const splitter = new LineSplitter();
    readLines(file, from, size, splitter, line => ring.push(line));
    const rest = splitter.flush();
    if (rest !== '') ring.push(rest);
  }
  return ring.take();
}

/** The first lines of the log, raw: of its kept head where it was cut. */
export function headLines(runDir: string, maxBytes: number): string[] {
  const kept = logFile(runDir, 'log.head');
  const file = sizeOf(kept) > 0 ? kept : logFile(runDir);
  const lines: string[] = [];
  readLines(file, 0, maxBytes, new LineSplitter(), line => lines.push(line));
  return lines;
}

/** New lines since the last look. */
export class LogFollower {
  private at = 0;
  private splitter = new LineSplitter();
  private readonly file: string;

  constructor(runDir: string) {
    this.file = logFile(runDir);
  }

  poll(onLine: (line: string) => void): void {
    const size = sizeOf(this.file);
    // It was cut: what is left came after.
    if (size < this.at) this.restart(0);
    if (size - this.at > FOLLOW_BYTES) this.restart(size - FOLLOW_BYTES);
    this.at = readLines(this.file, this.at, size, this.splitter, onLine);
  }

  private restart(at: number): void {
    this.at = at;
    this.splitter = new LineSplitter();
  }
}
