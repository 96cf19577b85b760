// Reads a case from the field (test/cases): the inputs and the right answers that a test holds the product to.
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';

/** `name` is the file's name without `.yaml`; the shape of `input` and `expect` is the test's to know. */
// biome-ignore lint/suspicious/noExplicitAny: cases have shapes of their own
export function readCase(name: string): { input: any; expect: any } {
  return parse(readFileSync(new URL(`../cases/${name}.yaml`, import.meta.url), 'utf8'));
}
