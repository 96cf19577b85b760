// `--check-config [--json]` of the agent, the control plane and the router.
import { keyPath } from '../../contracts/faults.js';
import { type ConfigError, type ConfigResult, formatConfigErrors } from './load.js';
import type { FileWarning } from './named-files.js';
import { readSource } from './source.js';
import { parseTree } from './yaml-tree.js';

/** Where the lines go; the process's own streams by default. */
export interface CheckOutput {
  out(text: string): void;
  err(text: string): void;
}

const streams: CheckOutput = {
  out: text => void process.stdout.write(text),
  err: text => void process.stderr.write(text),
};

export interface CheckOptions<T> {
  json: boolean;
  /** Looks at the files that a faultless configuration names. */
  files?: (config: T) => FileWarning[];
  output?: CheckOutput;
}

/**
 * Loads `path` with the part's own loader and prints what is wrong with it, or that nothing is.
 * Returns the exit code: 0, or 2 for bad input. With `json` one object `{ok, config, errors, warnings}` goes to stdout,
 * either way. Warnings are of the files it names, and never make it fail; for people they go to stderr.
 */
export function checkConfigCommand<T>(
  load: (path: string) => ConfigResult<T>,
  path: string,
  { json, files, output = streams }: CheckOptions<T>,
): 0 | 2 {
  const result = load(path);
  const warnings = result.ok ? placed(path, files?.(result.config) ?? []) : [];
  if (json) {
    output.out(`${JSON.stringify({ ...result, warnings }, null, 2)}\n`);
    return result.ok ? 0 : 2;
  }
  if (!result.ok) {
    output.err(`${formatConfigErrors(result.errors)}\n`);
    return 2;
  }
  for (const line of formatConfigErrors(warnings).split('\n').filter(Boolean))
    output.err(`warning: ${line}\n`);
  output.out(`${path}: ok\n`);
  return 0;
}

/** With the line of the key that names each file, or its parent's where that is a default. */
function placed(file: string, warnings: FileWarning[]): ConfigError[] {
  const source = warnings.length === 0 ? null : readSource(file);
  const tree = source !== null && 'text' in source ? parseTree(source.text) : null;
  return warnings.map(({ path, message }) => ({
    file,
    line: null,
    column: null,
    ...tree?.placeOf(path),
    key: keyPath(path),
    message,
    expected: null,
    nearest: null,
  }));
}
