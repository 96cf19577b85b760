// What all engines' explanations share: the line of a log that names the cause, how the process ended in words, and
// the sentence made of both (600 characters at most, the bound of FailureDigest).
import { formatDuration } from '../../contracts/duration.js';
import type { EngineRenderer } from './types.js';

const SENTENCE_MAX = 600;
const LINE_MAX = 320;

/**
 * `(EngineCore pid=123) ERROR 11-30 12:00:00 [core.py:42] `, `[2026-11-30 12:00:00 TP0] `, `[rank0]: ` of torch, and of
 * what Ray brings from other nodes `(RayWorkerProc pid=123, ip=10.0.0.12) `. Bounded: lines may be anything.
 */
const PREFIX =
  /^\s*(?:\([^)]{0,64}\bpid=\d{1,10}[^)]{0,64}\)\s{0,8}){0,3}(?:\[rank\d{1,5}\]:\s{0,8})?(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,64}\]\s*)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+)?(?:\d\d-\d\d \d\d:\d\d:\d\d\s+)?(?:\[[^\]]*:\d+\]\s*)?/;

/** `ValueError: …`, `torch.OutOfMemoryError: …`: where a Python traceback ends. */
const EXCEPTION = /^(?:[\w]+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)/;

/** A log line without the process, level, time and file that vLLM puts before it. */
export const bareLine = (line: string): string => line.replace(PREFIX, '').trim();

/**
 * The line that most likely names the cause: the first exception that is no wrapper, else the last line of level
 * ERROR, else an argparse error, else the last line with anything on it; null for an empty log.
 */
export function causeLine(lines: string[], wrappers: RegExp): string | null {
  const candidates = lines.filter(line => line.trim() !== '' && !wrappers.test(line));
  return (
    candidates.find(line => EXCEPTION.test(bareLine(line))) ??
    candidates.findLast(line => /\berror: /.test(line)) ??
    candidates.findLast(line => /\b(?:ERROR|CRITICAL)\b/.test(line)) ??
    candidates.at(-1) ??
    null
  );
}

/** `vLLM exited with code 0 while loading, without being asked to`. */
export function howItEnded(engine: string, input: Parameters<EngineRenderer['explain']>[0]): string {
  const { exit, wasReady, noProgressMs } = input;
  const phase = wasReady ? 'after it had served' : 'before it was ready';
  if (exit === null) {
    return noProgressMs === undefined
      ? `${engine} did not get ready`
      : `${engine} made no progress for ${formatDuration(noProgressMs)} while loading`;
  }
  if (exit.signal !== null) return `${engine} was ended by ${exit.signal} ${phase}`;
  if (exit.code === null) return `${engine} ended ${phase}, its exit status is unknown`;
  const unasked = exit.code === 0 ? ' without being asked to' : '';
  return `${engine} exited with code ${exit.code} ${phase}${unasked}`;
}

/** @param line as logged; shown without its prefix. */
export function composeSentence(ended: string, means: string | null, line: string | null): string {
  const parts = means === null ? ended : `${ended}: ${means}`;
  if (line === null) return cut(`${parts}; its log is empty`, SENTENCE_MAX);
  return cut(`${parts}. Its log says: ${cut(bareLine(line), LINE_MAX)}`, SENTENCE_MAX);
}

const cut = (text: string, most: number): string =>
  text.length <= most ? text : `${text.slice(0, most - 1)}…`;
