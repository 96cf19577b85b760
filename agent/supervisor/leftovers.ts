// What an engine leaves behind when it is killed: its temporary files and sockets, and shared memory. vLLM removes
// neither after SIGKILL, and each generation would leave some hundred MiB of /dev/shm until nothing starts any more.
// So the engine gets a folder of its own for the first, and the second is written down while its processes have it
// mapped. Removed only when its tree is gone; names that others may own as well are never guessed.
import { createHash } from 'node:crypto';
import { chownSync, readdirSync, statSync, unlinkSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import { makeDir, readText, writeAtomic } from '../state/files.js';
import { type ProcId, refOf } from '../state/handle.js';
import type { Context } from './context.js';
import { allStats, mappedFiles } from './proc.js';

const SHM = '/dev/shm';
/** Python's shared memory and semaphores, NCCL's, torch's: made by the engine for itself. Never what else lies there
 * and may be mapped, such as the weights of a model. */
const SEGMENT = /^\/dev\/shm\/(?:psm_|sem\.mp-|nccl-|torch_)[^/]+$/;
/** A unix socket's path has 107 characters, and vLLM calls its own by a UUID (36). */
const MAX_DIR = 107 - 1 - 36;

/** TMPDIR of the engine; null: work_dir is too long a path for sockets in it, the system's folder is used. */
function tempDirOf(ctx: Context, ref: EngineRef): string | null {
  const name = createHash('sha256').update(engineKeyOf(ref)).digest('hex').slice(0, 10);
  const dir = path.join(ctx.handles.workDir, 'tmp', name);
  return Buffer.byteLength(dir) > MAX_DIR ? null : dir;
}

/** Made before the start; the environment that names it. */
export function tempEnv(ctx: Context, ref: EngineRef): { TMPDIR?: string } {
  const dir = tempDirOf(ctx, ref);
  if (dir === null) return {};
  makeDir(dir);
  if (ctx.opts.user !== null) chownSync(dir, ctx.opts.user.uid, ctx.opts.user.gid);
  return { TMPDIR: dir };
}

const noteFile = (ctx: Context, ref: EngineRef): string => path.join(ctx.handles.runDir(ref), 'shm');

/** Writes down which shared memory these processes of its tree have. Never throws: it only saves space later. */
export function noteSegments(ctx: Context, ref: EngineRef, tree: ProcId[]): void {
  try {
    const now = tree
      .flatMap(p => mappedFiles(p.pid))
      .filter(m => SEGMENT.test(m.file))
      .map(m => `${m.inode} ${m.file}`);
    const before = noted(ctx, ref);
    const all = new Set([...before, ...now]);
    if (all.size > before.length) writeAtomic(noteFile(ctx, ref), `${[...all].join('\n')}\n`);
  } catch (error) {
    ctx.opts.log.warn({ ...refOf(ref), err: error }, 'the shared memory of an engine could not be noted');
  }
}

const noted = (ctx: Context, ref: EngineRef): string[] =>
  (readText(noteFile(ctx, ref)) ?? '').split('\n').filter(line => line !== '');

/** Its tree is gone, or the machine was booted anew. Never throws: what stays costs space, no correctness. */
export async function clearLeftovers(ctx: Context, ref: EngineRef): Promise<void> {
  try {
    const dir = tempDirOf(ctx, ref);
    if (dir !== null) await rm(dir, { recursive: true, force: true });
    const lines = noted(ctx, ref);
    const there = lines.length === 0 ? new Set<string>() : new Set(readdirSync(SHM));
    const left = lines
      .map(line => ({ inode: line.slice(0, line.indexOf(' ')), file: line.slice(line.indexOf(' ') + 1) }))
      .filter(s => there.has(path.basename(s.file)) && String(statSync(s.file).ino) === s.inode);
    if (left.length === 0) return;
    const used = new Set(allStats().flatMap(p => mappedFiles(p.pid).map(m => m.inode)));
    for (const s of left) if (!used.has(s.inode)) unlinkSync(s.file);
  } catch (error) {
    ctx.opts.log.warn({ ...refOf(ref), err: error }, 'what an engine left behind could not be removed');
  }
}
