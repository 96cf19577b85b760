// Reads a spec for `ctl deploy -f` and `ctl replica adopt -f`: YAML or JSON. Every fault is said with file and line before anything is sent.
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { parseReplicaSpec, ReplicaSpec, specFaultText } from '../contracts/spec.js';
import { formatConfigErrors, loadConfigText } from '../lib/config/load.js';
import { Fault } from '../lib/fault.js';

/** `named`: the replica's name as the command gave it; without it the file must have one. */
export function readSpecFile(file: string, named?: string): { spec: unknown; name: string } {
  const shown = file === '-' ? '(standard input)' : file;
  let text: string;
  try {
    // Once: a pipe has its content only the first time.
    text = readFileSync(file === '-' ? 0 : file, 'utf8');
  } catch (err) {
    throw new Fault(`${shown} can't be read: ${(err as Error).message}`, 2);
  }
  const loaded = loadConfigText(text, shown, ReplicaSpec);
  if (!loaded.ok) throw new Fault(formatConfigErrors(loaded.errors), 2);
  const spec: unknown = parse(text);
  const name = named ?? (spec as { name?: string }).name;
  if (name === undefined)
    throw new Fault(`${shown}: name: missing required key (a file that is deployed names its replica)`, 2);
  const parsed = parseReplicaSpec(spec, name);
  if (!parsed.ok) throw new Fault(`${shown}: ${specFaultText(parsed.faults)}`, 2);
  return { spec, name };
}
