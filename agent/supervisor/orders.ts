// The stop of one engine, start to proof, and of all of them for the host.
import type { StopProof } from '../../contracts/engine.js';
import { engineKeyOf } from '../../contracts/ids.js';
import { type Handle, refOf } from '../state/handle.js';
import { type Context, loadSecrets, pause, update } from './context.js';
import type { ExitWatch } from './exits.js';
import { clearLeftovers } from './leftovers.js';
import { closeRunDir, readPid } from './shim.js';
import { recoverStart } from './start.js';
import { endTree, proof, proveGpus } from './stopping.js';

/** Between SIGTERM and SIGKILL when the host goes down. */
const HOST_STOP_MS = 2_000;

/** `fence`: of the order. Whoever calls holds the replica's queue. Throws STOP_INCOMPLETE. */
export async function stopEngine(
  ctx: Context,
  exits: ExitWatch,
  ref: Handle,
  fence: number,
  reason: string,
): Promise<StopProof> {
  let h = ctx.handles.get(ref)!;
  if (h.state === 'stopped') return h.proof!;
  const runtime = ctx.runtimes.of(h);
  // First: a shim that comes late finds it closed. Then the mark: from here on an exit is an ordered one.
  closeRunDir(ctx.handles.runDir(h));
  h = update(ctx, h, { marks: { ...h.marks, requested_stop: h.marks.requested_stop ?? fence } });
  runtime.stopping = true;
  try {
    if (h.state === 'spawning') h = (await recoverStart(ctx, h)) ?? h;
    if (h.state === 'running') exits.add(h);
    ctx.opts.log.info({ ...refOf(h), reason, pid: h.engine?.pid }, 'stopping engine');
    // The shim's record tells of a start that this handle doesn't know of: it was made for one that can't be read.
    const engine = h.engine ?? readPid(ctx.handles.runDir(h));
    runtime.tree.remember(engine);
    const started = engine !== null || runtime.tree.scan().length > 0;
    await endTree(ctx, exits, h, ctx.opts.stopTimeoutMs);
    await recorded(ctx, exits, h);
    const done = started ? await proveGpus(ctx, h, performance.now()) : proof('never_started', []);
    await clearLeftovers(ctx, h);
    ctx.ports.release(engineKeyOf(h));
    update(ctx, h, { state: 'stopped', proof: done });
    ctx.runtimes.forget(h);
    ctx.opts.log.info({ ...refOf(h), proof: done.proof, leaked: done.leaked.length }, 'engine stopped');
    return done;
  } finally {
    runtime.stopping = false;
  }
}

/** The tree is gone, so its end is seen at the next look: waits until that is on disk, however long it is full. */
async function recorded(ctx: Context, exits: ExitWatch, handle: Handle): Promise<void> {
  for (let wait = 5; ctx.handles.get(handle)?.state === 'running'; wait = Math.min(wait * 2, 1_000)) {
    exits.check(handle);
    await pause(wait, ctx.closed);
    ctx.closed.throwIfAborted();
  }
}

/** Marks each engine first, so that the end isn't counted against its replica (INV-5). */
export async function stopForHost(ctx: Context, exits: ExitWatch): Promise<void> {
  const stops = ctx.handles
    .all()
    .filter(h => h.state === 'running' || h.state === 'spawning')
    .map(async found => {
      closeRunDir(ctx.handles.runDir(found));
      let h = update(ctx, found, { marks: { ...found.marks, host_stop: true } });
      // Before the end is seen: it is told with lines of the log (INV-10).
      await loadSecrets(ctx, h);
      if (h.state === 'spawning') h = (await recoverStart(ctx, h)) ?? h;
      if (h.state === 'running') exits.add(h);
      await endTree(ctx, exits, h, HOST_STOP_MS);
      await recorded(ctx, exits, h);
      await clearLeftovers(ctx, h);
    });
  for (const end of await Promise.allSettled(stops)) {
    if (end.status === 'rejected')
      ctx.opts.log.error({ err: end.reason }, 'an engine could not be stopped for the host');
  }
}
