// Engines that run and whose handle is gone: somebody has emptied work_dir, or the file can't be read. They carry
// their mark and write into a folder of this work_dir, so they are known again: watched, told, held and stoppable by
// their fence. What they were ordered to be is lost, so nobody can claim them, and none of their log is shown.
import path from 'node:path';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import { type Handle, type ProcId, refOfDir } from '../state/handle.js';
import type { Context } from './context.js';
import { allStats, fdTarget, isAlive, type ProcStat } from './proc.js';
import { scopeOf } from './scope.js';
import { readPid } from './shim.js';
import { tombstone } from './tombstone.js';
import { markOf } from './tree.js';

/** Makes their handles anew, before any order is taken. */
export async function recoverLost(ctx: Context): Promise<void> {
  for (const ref of lostRefs(ctx)) {
    const members = ctx.runtimes.of(ref).tree.scan();
    if (members.length === 0) {
      ctx.runtimes.forget(ref);
      continue;
    }
    const engine = engineAmong(ctx.handles.runDir(ref), members);
    ctx.fences.raise(ref.replica, ref.fence);
    ctx.handles.save({
      ...tombstone(ref, ctx.bootId),
      state: 'running',
      shim: idOf(members.find(m => m.pid === m.session)),
      engine,
      scope: engine === null ? null : scopeOf(engine.pid, ref),
      gpus: await gpusOf(ctx, members),
    });
    ctx.opts.log.error(
      { ...ref, pid: engine?.pid },
      'an engine runs whose handle is gone: it is kept, and keeps all GPUs of this node that nobody holds, until it has ended or is stopped',
    );
  }
}

/** By folders without a readable handle, and by the marks of processes whose files lie in this work_dir. */
function lostRefs(ctx: Context): EngineRef[] {
  const refs = ctx.handles.unreadable.flatMap(u => refOfDir(u.dir) ?? []);
  for (const { pid } of allStats()) {
    const ref = markOf(pid);
    // Another agent of this machine has the same kind of marks.
    if (ref !== null && filesIn(pid, ctx.handles.runDir(ref))) refs.push(ref);
  }
  const unknown = refs.filter(ref => ctx.handles.get(ref) === undefined);
  return [...new Map(unknown.map(ref => [engineKeyOf(ref), ref])).values()];
}

/** Its log or its lock; the name stays when the file is deleted. */
const filesIn = (pid: number, runDir: string): boolean =>
  [1, 2, 9].some(fd => fdTarget(pid, fd)?.startsWith(runDir + path.sep));

/** As the shim wrote it; else the first that the shim's lock was handed to. */
function engineAmong(runDir: string, members: ProcStat[]): ProcId | null {
  const written = readPid(runDir);
  if (isAlive(written)) return written;
  const below = members.filter(m => m.pid !== m.session).sort((a, b) => Number(a.start) - Number(b.start));
  const locked = below.find(m => fdTarget(m.pid, 9)?.startsWith(path.join(runDir, 'lock')));
  return idOf(locked ?? below[0] ?? members[0]);
}

const idOf = (p: ProcStat | undefined): ProcId | null =>
  p === undefined ? null : { pid: p.pid, start: p.start };

/** Those that list one of its processes; what can't be told is covered by no GPU being given out meanwhile. */
async function gpusOf(ctx: Context, members: ProcStat[]): Promise<Handle['gpus']> {
  const pids = new Set(members.map(m => m.pid));
  const { gpus } = await ctx.opts.gpus.snapshot().catch(() => ({ gpus: [] }));
  return gpus
    .filter(g => g.processes?.some(p => pids.has(p.pid)))
    .map(g => ({ uuid: g.uuid, index: g.index }));
}
