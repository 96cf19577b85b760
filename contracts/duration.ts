// Durations as Go writes them ("1m30s") and sizes ("64MiB"), for configuration and specs. Pure JavaScript without
// Node's built-ins: the spec parser runs in the workflow sandbox.
import { z } from 'zod';
import { expecting } from './faults.js';

const NS_PER_MS = 1_000_000n;
/** Go's Duration is an int64 of nanoseconds: 2^63, the magnitude of its minimum. */
const LIMIT = 1n << 63n;

// Both spellings of the micro sign occur in the wild (U+00B5 and Greek U+03BC).
const UNIT_NS: Readonly<Record<string, bigint>> = {
  ns: 1n,
  us: 1_000n,
  '\u00b5s': 1_000n,
  '\u03bcs': 1_000n,
  ms: NS_PER_MS,
  s: 1_000_000_000n,
  m: 60_000_000_000n,
  h: 3_600_000_000_000n,
};

/**
 * Nanoseconds of a duration, value by value as Go's time.ParseDuration (overflow at int64, fractions cut).
 * The error is a clause that completes "<value> …", such as "has no unit".
 */
export function parseGoDuration(text: string): bigint | { error: string } {
  const invalid = { error: 'is not a duration' };
  const overflow = { error: 'is longer than 292 years, the longest duration there is' };
  const negative = text.startsWith('-');
  let rest = negative || text.startsWith('+') ? text.slice(1) : text;
  if (rest === '0') return 0n;
  if (rest === '') return invalid;
  let total = 0n;
  while (rest !== '') {
    const part = /^([0-9]*)(?:\.([0-9]*))?([^0-9.]*)/.exec(rest)!;
    const [whole, digits, fraction = '', unitName] = [part[0], part[1]!, part[2], part[3]!];
    if (digits === '' && fraction === '') return invalid;
    if (unitName === '') return { error: 'has no unit' };
    const unit = Object.hasOwn(UNIT_NS, unitName) ? UNIT_NS[unitName]! : null;
    if (unit === null) {
      return { error: `has the unknown unit ${JSON.stringify(unitName)} (known: ns, us, ms, s, m, h)` };
    }
    let value = BigInt(digits === '' ? '0' : digits) * unit;
    const { number, scale } = leadingFraction(fraction);
    // Go's own arithmetic is a float64 here; the same one keeps the results equal to the last nanosecond.
    if (number > 0n) value += BigInt(Math.trunc(Number(number) * (Number(unit) / scale)));
    total += value;
    if (value > LIMIT || total > LIMIT) return overflow;
    rest = rest.slice(whole.length);
  }
  if (negative) return -total;
  return total > LIMIT - 1n ? overflow : total;
}

/** Digits after the point, as many as an int64 holds: Go drops the others without a word. */
function leadingFraction(digits: string): { number: bigint; scale: number } {
  let number = 0n;
  let scale = 1;
  for (const digit of digits) {
    const next = number * 10n + BigInt(digit);
    if (number > (LIMIT - 1n) / 10n || next > LIMIT) break;
    number = next;
    scale *= 10;
  }
  return { number, scale };
}

/** A duration in whole milliseconds as people write it: 90000 → "1m30s", 1500 → "1.5s", 0 → "0s". */
export function formatDuration(ms: number): string {
  if (ms < 0) return `-${formatDuration(-ms)}`;
  if (ms === 0) return '0s';
  if (ms < 1000) return `${ms}ms`;
  const hours = Math.floor(ms / 3_600_000);
  const minutes = Math.floor((ms % 3_600_000) / 60_000);
  const seconds = (ms % 60_000) / 1000;
  return `${hours ? `${hours}h` : ''}${minutes ? `${minutes}m` : ''}${seconds ? `${seconds}s` : ''}`;
}

export interface DurationRule {
  /** Shortest value in milliseconds; default 1. */
  min?: number;
  /** Longest value in milliseconds; default 2^31 - 1 (24 days), above which setTimeout fires at once. */
  max?: number;
  /** Zero has a meaning for this field, whatever `min` says. */
  allowZero?: boolean;
  /** What the error text shows; default "5s". */
  example?: string;
}

const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** A field that holds a duration: text such as "5s" in, integer milliseconds out. */
export function durationMs(rule: DurationRule = {}) {
  const expected = `a duration such as "${rule.example ?? '5s'}"`;
  const field = textField(expected, value => {
    const ns = parseGoDuration(value);
    if (typeof ns !== 'bigint') return ns;
    if (ns % NS_PER_MS !== 0n) return { error: 'is not a whole number of milliseconds' };
    const ms = Number(ns / NS_PER_MS);
    return rangeError(ms, rule) ?? ms;
  });
  // "0" is the one duration without a unit, and YAML reads it as a number. To callers both are one kind of field.
  return rule.allowZero ? (z.preprocess(zeroAsText, field) as unknown as typeof field) : field;
}

const zeroAsText = (value: unknown): unknown => (value === 0 ? '0' : value);

function rangeError(ms: number, rule: DurationRule): { error: string } | null {
  const { min = 1, max = LONGEST_TIMER_MS, allowZero = false } = rule;
  if (ms === 0 && allowZero) return null;
  if (ms < 0) return { error: 'must not be negative' };
  if (ms < min) return { error: `must be at least ${formatDuration(min)}${allowZero ? ', or "0s"' : ''}` };
  return ms > max ? { error: `must be at most ${formatDuration(max)}` } : null;
}

const SIZE_UNITS: Readonly<Record<string, number>> = {
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
};

/** Bytes of "64MiB", "1.5GB" or "512B"; null when it isn't a size. Units are exact: "64M" says neither MB nor MiB. */
export function parseSize(text: string): number | null {
  const match = /^([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)$/.exec(text);
  const unit = match && Object.hasOwn(SIZE_UNITS, match[2]!) ? SIZE_UNITS[match[2]!]! : null;
  if (match === null || unit === null) return null;
  const bytes = Math.round(Number(match[1]) * unit);
  return Number.isSafeInteger(bytes) ? bytes : null;
}

/** A field that holds a size: "64MiB" in, integer bytes out. */
export function sizeBytes(rule: { min?: number; example?: string } = {}) {
  const { min = 1, example = '64MiB' } = rule;
  return textField(`a size such as "${example}" (units: ${Object.keys(SIZE_UNITS).join(', ')})`, value => {
    const bytes = parseSize(value);
    if (bytes === null) return { error: 'is not a size' };
    return bytes < min ? { error: `must be at least ${min} bytes` } : bytes;
  });
}

/** Text in, number out; every fault names the value, why it won't do, and an example. */
function textField(expected: string, parse: (text: string) => number | { error: string }) {
  const complain = (value: unknown, why: string) =>
    `expected ${expected}, got ${JSON.stringify(value) ?? String(value)}${why}`;
  const text = z.string({
    error: issue => (issue.input === undefined ? undefined : complain(issue.input, '')),
  });
  return expecting(text, expected).transform((value, ctx): number => {
    const parsed = parse(value);
    if (typeof parsed === 'number') return parsed;
    const message = complain(value, `, which ${parsed.error}`);
    ctx.issues.push({ code: 'custom', message, input: value, params: { expected } });
    return z.NEVER;
  });
}
