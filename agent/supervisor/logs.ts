// Reading an engine's log: its tail for people, its head and tail to explain a failure, and its new lines while the
// engine loads. The files: `log` (appended by the engine), `log.1` (what the last cut kept), `log.head` (first 1 MiB),
// in a folder of their own: a watch of the run folder must not wake for every line that an engine prints.
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import path from 'node:path';
import { errnoOf, readText } from '../state/files.js';
import { LineRing, LineSplitter } from './log-lines.js';

export const logFile = (runDir: string, name: 'log' | 'log.1' | 'log.head' = 'log'): string =>
  path.join(runDir, 'logs', name);

const CHUNK = 65_536;
/** How far back a tail looks in one file: bounds the time, and 64 MiB lines can't be shown anyway. */
const WINDOW = 8 * 1_048_576;
/** A cut takes milliseconds, a read as long. */
const TAIL_TRIES = 3;
/** All lines of one answer together. */
const MAX_CHARS = 2 * 1_048_576;
/** What one look at a loading engine's log reads at most; a flood is skipped, its end is what counts. */
const FOLLOW_BYTES = 1_048_576;

/** Calls `onLine` for the lines of `[from, to)`; a missing file has none. Returns where it ended. */
export function readLines(
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
    return readFrom(fd, from, to, splitter, onLine);
  } finally {
    closeSync(fd);
  }
}

export function readFrom(
  fd: number,
  from: number,
  to: number,
  splitter: LineSplitter,
  onLine: (l: string) => void,
): number {
  const buffer = Buffer.allocUnsafe(CHUNK);
  let at = from;
  while (at < to) {
    const n = readSync(fd, buffer, 0, Math.min(CHUNK, to - at), at);
    if (n === 0) break;
    at += n;
    for (const line of splitter.push(buffer.subarray(0, n))) onLine(line);
  }
  return at;
}

export function sizeOf(file: string): number {
  try {
    return statSync(file).size;
  } catch {
    return 0;
  }
}

/** The last lines of the log, raw (callers redact): oldest first. Of a progress bar, its last state. */
export const tailLines = (runDir: string, lines: number): string[] => readTail(runDir, lines).lines;

/** What a tail has read. */
export interface Tail {
  lines: string[];
  /** Where it ended, in bytes since the engine's start; null: the log was cut while it was read. */
  at: number | null;
  /** Has what came after the last line end, which is among the lines too. */
  splitter: LineSplitter;
  rest: string;
}

export function readTail(runDir: string, lines: number): Tail {
  for (let tries = 1; ; tries++) {
    const base = readBase(runDir);
    const tail = readTailOnce(runDir, lines);
    // A cut in between moves what was read: once more, and a log that is cut all the time is shown as it was found.
    if (base !== null && readBase(runDir) === base) return { ...tail, at: base + tail.at };
    if (tries === TAIL_TRIES) return { ...tail, at: null };
  }
}

function readTailOnce(runDir: string, max: number): Tail & { at: number } {
  const ring = new LineRing(max, MAX_CHARS);
  const splitter = new LineSplitter('redraws');
  const push = (line: string) => ring.push(line);
  const file = logFile(runDir);
  const size = sizeOf(file);
  const from = Math.max(0, size - WINDOW);
  const kept = from === 0 ? openKept(runDir) : null;
  if (kept !== null) {
    try {
      push(kept.header);
      const begin = Math.max(kept.begin, kept.size - WINDOW);
      splitter.passRest();
      readFrom(kept.fd, begin, kept.size, splitter, push);
    } finally {
      closeSync(kept.fd);
    }
  } else if (from > 0) splitter.passRest();
  const at = readLines(file, from, size, splitter, push);
  const rest = splitter.peek();
  if (rest !== '') ring.push(rest);
  return { lines: ring.take(), at, splitter, rest };
}

/** `log.1`: what the last cut kept. */
export interface Kept {
  fd: number;
  size: number;
  /** Its first line, which says what went before it, and where the log's own bytes begin. */
  header: string;
  begin: number;
  /** So many bytes of the log came before those. */
  dropped: number;
}

/** Opened: the next cut puts another file in its place. null: there was no cut. */
export function openKept(runDir: string): Kept | null {
  let fd: number;
  try {
    fd = openSync(logFile(runDir, 'log.1'), 'r');
  } catch (e) {
    if (errnoOf(e) === 'ENOENT') return null;
    throw e;
  }
  const head = Buffer.alloc(128);
  const text = head.toString('latin1', 0, readSync(fd, head, 0, head.length, 0));
  const m = /^(\[llmgw: (\d{1,15}) bytes [^\n]*)\n/.exec(text);
  return {
    fd,
    size: fstatSync(fd).size,
    header: m?.[1] ?? '[llmgw: this log was cut before this line]',
    begin: m?.[0].length ?? 0,
    dropped: Number(m?.[2] ?? 0),
  };
}

/** Bytes that the engine wrote before what is in `log` now; null: a cut is just writing it. */
export function readBase(runDir: string): number | null {
  const text = readText(`${logFile(runDir)}.base`);
  if (text === null) return 0;
  return /^\d{1,15}\n$/.test(text) ? Number(text) : null;
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
