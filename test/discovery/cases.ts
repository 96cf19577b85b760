// The cases from the field, read from test/cases.
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';

export interface Case<Input, Expect> {
  id: string;
  input: Input;
  expect: Expect;
}

export function readCase<Input, Expect>(name: string): Case<Input, Expect> {
  return parse(readFileSync(new URL(`../cases/${name}.yaml`, import.meta.url), 'utf8'));
}
