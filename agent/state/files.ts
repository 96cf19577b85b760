// Files that survive a crash at any line: written beside, synced, renamed. Synchronous on purpose: a state change
// can't interleave with another one of this process, and each is a few milliseconds at most.
import {
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { LlmgwError } from '../../contracts/errors.js';

/** ENOENT, ENOSPC, … of a thrown system error. */
export const errnoOf = (e: unknown): string | undefined => (e as NodeJS.ErrnoException | null)?.code;

/** Errors of a disk that can't be written, with the sentence an operator needs; everything else as it is. */
export function spaceError(e: unknown, dir: string): unknown {
  const code = errnoOf(e);
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return new LlmgwError('NO_SPACE', `no space in work_dir: ${dir} can't be written (${code})`, {
      cause: e,
    });
  }
  // What ext4 and xfs do to a sick disk.
  if (code !== 'EROFS' && code !== 'EIO') return e;
  return new LlmgwError(
    'NO_SPACE',
    `work_dir can't be written: ${dir} (${code}): look at the kernel's log for its disk`,
    { cause: e },
  );
}

/** An error of the system, by its errno: full, read-only, sick. Anything else is a bug, and no retry mends it. */
export const isDiskError = (e: unknown): boolean =>
  (e instanceof LlmgwError && e.code === 'NO_SPACE') || errnoOf(e) !== undefined;

/**
 * Replaces `file` as a whole. On any error the old content is intact and no fragment stays: a full disk must not
 * leave half a handle over a good one, nor a heap of temporary files.
 * @param durable The new content itself survives a loss of power. Otherwise the old or the new one does, whole, and
 *   only a crash of the process is survived: half the time on a disk, enough for what a reboot makes void.
 */
export function writeAtomic(file: string, text: string, durable = false): void {
  const tmp = `${file}.tmp`;
  const dir = path.dirname(file);
  try {
    const fd = openSync(tmp, 'w', 0o600);
    try {
      // Not writeSync: one write(2) may be short on a disk that is nearly full, and half a handle would take the good one's place.
      writeFileSync(fd, text);
      fsyncSync(fd);
    } finally {
      closeSync(fd);
    }
    renameSync(tmp, file);
    if (durable) syncDir(dir);
  } catch (e) {
    rmSync(tmp, { force: true });
    throw spaceError(e, dir);
  }
}

/** Without it a rename may be lost with the power, and with it the fence that it carried. */
function syncDir(dir: string): void {
  const fd = openSync(dir, 'r');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Creates a private folder with its parents. */
export function makeDir(dir: string): void {
  try {
    mkdirSync(dir, { recursive: true, mode: 0o700 });
  } catch (e) {
    throw spaceError(e, dir);
  }
}

/** null: there is no such file. */
export function readText(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch (e) {
    if (errnoOf(e) === 'ENOENT') return null;
    throw e;
  }
}

export function removeFile(file: string): void {
  try {
    unlinkSync(file);
  } catch (e) {
    if (errnoOf(e) !== 'ENOENT') throw e;
  }
}
