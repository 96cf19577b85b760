// Reads a spec for `ctl deploy -f`: YAML or JSON. Every fault is said with file and line before anything is sent.
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { parse } from 'yaml';
import { parseReplicaSpec, ReplicaSpec, specFaultText } from '../contracts/spec.js';
import { formatConfigErrors, loadConfigFile, loadConfigText } from '../lib/config/load.js';
import { Fault } from '../lib/fault.js';

export function readSpecFile(file: string): { spec: unknown; name: string } {
  const stdin = file === '-';
  const text = stdin ? readFileSync(0, 'utf8') : null;
  const loaded =
    text === null ? loadConfigFile(file, ReplicaSpec) : loadConfigText(text, '(standard input)', ReplicaSpec);
  if (!loaded.ok) throw new Fault(formatConfigErrors(loaded.errors), 2);
  const spec: unknown = parse(text ?? readFileSync(file, 'utf8'));
  const name = (spec as { name?: string }).name;
  if (name === undefined)
    throw new Fault(
      `${stdin ? '(standard input)' : basename(file)}: name: missing required key (a file that is deployed names its replica)`,
      2,
    );
  const parsed = parseReplicaSpec(spec, name);
  if (!parsed.ok) throw new Fault(`${file}: ${specFaultText(parsed.faults)}`, 2);
  return { spec, name };
}
