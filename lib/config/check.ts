// `--check-config [--json]` of the agent, the control plane and the router.
import { type ConfigResult, formatConfigErrors } from './load.js';

/** Where the lines go; the process's own streams by default. */
export interface CheckOutput {
  out(text: string): void;
  err(text: string): void;
}

const streams: CheckOutput = {
  out: text => void process.stdout.write(text),
  err: text => void process.stderr.write(text),
};

/**
 * Loads `path` with the part's own loader and prints what is wrong with it, or that nothing is.
 * Returns the exit code: 0, or 2 for bad input. With `json` one object `{ok, config, errors}` goes to stdout, either way.
 */
export function checkConfigCommand(
  load: (path: string) => ConfigResult<unknown>,
  path: string,
  json: boolean,
  output: CheckOutput = streams,
): 0 | 2 {
  const result = load(path);
  if (json) output.out(`${JSON.stringify(result, null, 2)}\n`);
  else if (result.ok) output.out(`${path}: ok\n`);
  else output.err(`${formatConfigErrors(result.errors)}\n`);
  return result.ok ? 0 : 2;
}
