// The keys that bind task tokens, from a file that all control plane instances share: 64 hex digits a line, the first
// one binds, all are accepted back. The file is looked at again while it runs, so that a rotation needs no restart: add
// the new key as the second line everywhere, then make it the first, then take the old one out.

import { readFileSync, statSync } from 'node:fs';
import type { Logger } from 'pino';

export type TokenKeys = readonly [string, ...string[]];

/** How often the file is looked at, at most. */
const LOOK_EVERY_MS = 2_000;

/** The keys in the text of a key file; null: it doesn't hold keys. */
function parseTokenKeys(text: string): TokenKeys | null {
  const keys = text
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '');
  return keys.length > 0 && keys.every(key => /^[0-9a-f]{64}$/.test(key))
    ? (keys as [string, ...string[]])
    : null;
}

/**
 * The keys of a file as it is now. Throws the system's error when the file can't be read at first, and null when it
 * holds no keys; later faults leave the last good keys in use, with a warning.
 */
export function readTokenKeys(
  file: string,
  log: Pick<Logger, 'info' | 'warn'>,
  now: () => number = () => performance.now(),
): (() => TokenKeys) | null {
  const first = parseTokenKeys(readFileSync(file, 'utf8'));
  if (first === null) return null;
  let keys = first;
  let seen = stamp(file);
  let lookedAt = now();
  return () => {
    if (now() - lookedAt < LOOK_EVERY_MS) return keys;
    lookedAt = now();
    const at = stamp(file);
    if (at === seen) return keys;
    seen = at;
    const next = at === null ? null : read(file);
    if (next === null)
      log.warn({ file }, 'the proxy token keys can no longer be read: the last ones stay in use');
    else log.info({ file, keys: next.length }, 'the proxy token keys have changed');
    keys = next ?? keys;
    return keys;
  };
}

function read(file: string): TokenKeys | null {
  try {
    return parseTokenKeys(readFileSync(file, 'utf8'));
  } catch {
    return null;
  }
}

/** Changes with the file's content; null: it can't be looked at. */
function stamp(file: string): string | null {
  try {
    const { ino, mtimeNs, size } = statSync(file, { bigint: true });
    return `${ino} ${mtimeNs} ${size}`;
  } catch {
    return null;
  }
}
