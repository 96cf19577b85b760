// Files that an engine needs before its start (a start script, a configuration), as its renderer wrote them: in the
// engine's own folder, which goes with the run folder.
import { closeSync, fchmodSync, fchownSync, openSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { RenderedFile } from '../engines/types.js';
import { removeFile, spaceError } from '../state/files.js';

/** Anew at each attempt of a start. Throws NO_SPACE, and leaves no half of a file then. */
export function writeFiles(
  dir: string,
  files: RenderedFile[],
  user: { uid: number; gid: number } | null,
): void {
  for (const { name, text, mode } of files) {
    if (path.basename(name) !== name || name === '..' || name === '.') {
      throw new Error(`a rendered file must lie in the engine's folder: ${name}`);
    }
    const file = path.join(dir, name);
    try {
      removeFile(file);
      // Exclusive: with a user of its own the engine may write this folder, so nothing that lies there is followed.
      const fd = openSync(file, 'wx', 0o600);
      try {
        writeFileSync(fd, text);
        if (user !== null) fchownSync(fd, user.uid, user.gid);
        fchmodSync(fd, mode);
      } finally {
        closeSync(fd);
      }
    } catch (e) {
      removeFile(file);
      throw spaceError(e, dir);
    }
  }
}
