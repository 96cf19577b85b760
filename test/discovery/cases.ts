// The cases from the field, read from test/cases, and what they describe laid out on disk.
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parse } from 'yaml';

export interface Case<Input, Expect> {
  id: string;
  input: Input;
  expect: Expect;
}

const folder = new URL('../cases/', import.meta.url);

export function readCase<Input, Expect>(name: string): Case<Input, Expect> {
  return parse(readFileSync(new URL(`${name}.yaml`, folder), 'utf8'));
}

/** Names of all cases of a kind. */
export const casesOf = (kind: string): string[] =>
  readdirSync(folder)
    .filter(file => file.startsWith(`${kind}-`))
    .map(file => file.replace(/\.yaml$/, ''))
    .sort();

/** The columns of the table that a case's command prints. */
export const fieldsOf = (command: string): string[] => /--query-gpu=(\S+)/.exec(command)![1]!.split(',');

export interface Sysfs {
  exists?: boolean;
  files?: Record<string, string>;
  read_errors?: Record<string, string>;
  symlinks?: Record<string, string>;
}

export function laySysfs(
  root: string,
  { exists = true, files = {}, read_errors = {}, symlinks = {} }: Sysfs,
): void {
  if (exists) mkdirSync(root, { recursive: true });
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), `${text}\n`);
  }
  // A folder in the file's place fails to be read, as an attribute that returns EINVAL does.
  for (const path of Object.keys(read_errors)) mkdirSync(join(root, path), { recursive: true });
  for (const [link, target] of Object.entries(symlinks)) symlinkSync(target, join(root, link));
}
