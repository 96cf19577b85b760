// Writes a set of files so that a reader, or a failure half way, never sees one of them half written.
// Contents go to temporary neighbours first, are synced, and only then renamed into place.

import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, open, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { PkiError } from './pki-error.js';

export interface FileToWrite {
  path: string;
  content: string;
  /** Permission bits, for instance 0o600 for keys. */
  mode: number;
}

/** Refuses with `exists` when a target is there and `force` isn't set; creates the directory (0700) if missing. */
export async function writeFilesTogether(files: FileToWrite[], options: { force?: boolean }): Promise<void> {
  const present = files.filter(f => existsSync(f.path));
  if (present.length > 0 && options.force !== true) {
    throw new PkiError(
      'exists',
      `${present.map(f => f.path).join(', ')} ${present.length === 1 ? 'exists' : 'exist'} already and nothing was written: add --force to replace ${present.length === 1 ? 'it' : 'them'}.`,
    );
  }
  // Short names of their own: a name near the file system's limit has no room for a suffix.
  const staged = files.map(f => ({
    ...f,
    temp: join(dirname(f.path), `.llmgw-${randomBytes(8).toString('hex')}`),
  }));
  try {
    for (const dir of new Set(files.map(f => dirname(f.path))))
      await mkdir(dir, { recursive: true, mode: 0o700 });
    for (const file of staged) {
      const handle = await open(file.temp, 'wx', file.mode);
      try {
        await handle.chmod(file.mode); // the umask may have taken bits from the mode above
        await handle.writeFile(file.content);
        await handle.sync();
      } finally {
        await handle.close();
      }
    }
    for (const file of staged) await rename(file.temp, file.path);
  } catch (cause) {
    const path = files[0]?.path ?? '';
    throw new PkiError('io', `Could not write into ${dirname(path)}: ${(cause as Error).message}.`, {
      cause,
    });
  } finally {
    for (const file of staged) await rm(file.temp, { force: true });
  }
}
