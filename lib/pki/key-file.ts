// The symmetric keys that live beside the certificates (task tokens, engine master, a node's engine secret):
// 32 random or derived bytes as 64 hex digits on one line.

import { readFileSync } from 'node:fs';
import { PkiError } from './pki-error.js';

/** Reads such a file; returns 64 lower-case hex digits. Throws a PkiError that names the file. */
export function readHexKey(path: string): string {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (cause) {
    const missing = (cause as NodeJS.ErrnoException).code === 'ENOENT';
    const what = missing ? 'does not exist' : `can't be read (${(cause as Error).message})`;
    throw new PkiError(missing ? 'missing' : 'io', `${path} ${what}.`, { cause });
  }
  const key = text.trim().toLowerCase();
  if (!/^[0-9a-f]{64}$/.test(key)) {
    throw new PkiError('broken', `${path} is not a key: expected 64 hex digits on one line.`);
  }
  return key;
}
