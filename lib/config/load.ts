// Loads a YAML configuration against a strict schema and reports every fault at once, each with its line. The three
// configs of llmgw and the specs that ctl reads go through here.
import type { z } from 'zod';
import { type FaultPath, faultText, keyPath, zodFaults } from '../../contracts/faults.js';
import { readSource } from './source.js';
import { parseTree } from './yaml-tree.js';

/** One fault, as `--check-config --json` prints it. `line` and `column` count from 1; null: the file as a whole. */
export interface ConfigError {
  file: string;
  line: number | null;
  column: number | null;
  /** Path such as `fabrics[0].hcas`; empty for the file or its root. */
  key: string;
  message: string;
  expected: string | null;
  nearest: string | null;
}

export type ConfigResult<T> =
  | { ok: true; config: T; errors: [] }
  | { ok: false; config: null; errors: ConfigError[] };

export interface LoadOptions {
  /** Changes the plain data before the schema sees it (what a name implies, say); must not throw on odd input. */
  prepare?: (plain: Record<string, unknown>) => Record<string, unknown>;
}

export function loadConfigFile<S extends z.ZodType>(
  path: string,
  schema: S,
  opts: LoadOptions = {},
): ConfigResult<z.output<S>> {
  const source = readSource(path);
  if ('fault' in source) {
    return { ok: false, config: null, errors: [{ file: path, key: '', nearest: null, ...source.fault }] };
  }
  return loadConfigText(source.text, path, schema, opts);
}

/** `file` only names the text in the errors. */
export function loadConfigText<S extends z.ZodType>(
  text: string,
  file: string,
  schema: S,
  opts: LoadOptions = {},
): ConfigResult<z.output<S>> {
  const tree = parseTree(text);
  const errors: ConfigError[] = tree.faults.map(({ path, message, expected, place }) => ({
    file,
    ...place,
    key: keyPath(path),
    message,
    expected,
    nearest: null,
  }));
  if (tree.broken) return failed(errors);
  const error = (path: FaultPath, message: string, expected: string | null, nearest: string | null) =>
    errors.push({ file, ...tree.placeOf(path), key: keyPath(path), message, expected, nearest });
  const root = tree.plain ?? {};
  if (typeof root !== 'object' || Array.isArray(root)) {
    error([], 'top level must be a mapping', 'lines of the form key: value', null);
    return failed(errors);
  }
  const plain = opts.prepare?.(root as Record<string, unknown>) ?? root;
  const parsed = schema.safeParse(plain);
  if (!parsed.success) {
    const told = new Set(errors.map(({ key }) => key).filter(key => key !== ''));
    for (const fault of zodFaults(parsed.error, plain, schema).filter(
      ({ path }) => !told.has(keyPath(path)),
    )) {
      error(fault.path, asWritten(fault.message, tree.numberAt(fault.path)), fault.expected, fault.nearest);
    }
  }
  if (errors.length > 0 || !parsed.success) return failed(errors);
  return { ok: true, config: parsed.data, errors: [] };
}

/** `got 1.1` is no help to whoever wrote 1.10. */
function asWritten(message: string, number: string | null): string {
  if (number === null) return message;
  const value = Number(number.replace(/\.inf$/i, 'Infinity'));
  const read = `got ${value}`;
  const at = message.indexOf(read);
  return at === -1 || Number.isNaN(value)
    ? message
    : `${message.slice(0, at)}got ${number}${message.slice(at + read.length)}`;
}

/** One line each: `agent.yaml:3:1: heartbeat: unknown key, did you mean "heartbeat_interval"?` */
export function formatConfigErrors(errors: readonly ConfigError[]): string {
  return errors.map(formatConfigError).join('\n');
}

function formatConfigError(error: ConfigError): string {
  const place = error.line === null ? '' : `:${error.line}:${error.column}`;
  const key = error.key === '' ? '' : `${error.key}: `;
  return `${error.file}${place}: ${key}${faultText(error)}`;
}

/** A file that is not a configuration at all has an error on every line, and nobody reads so many. */
const MOST_ERRORS = 100;

function failed(errors: ConfigError[]): { ok: false; config: null; errors: ConfigError[] } {
  const order = (error: ConfigError) => (error.line ?? 0) * 1e6 + (error.column ?? 0);
  const all = errors.toSorted((a, b) => order(a) - order(b));
  const left = all.length - MOST_ERRORS;
  if (left <= 0) return { ok: false, config: null, errors: all };
  const more = { ...all[0]!, line: null, column: null, key: '', expected: null, nearest: null };
  const message = `and ${left} more`;
  return { ok: false, config: null, errors: [...all.slice(0, MOST_ERRORS), { ...more, message }] };
}
