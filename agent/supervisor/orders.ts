// The stop of one engine, start to proof, and of all of them for the host.
import type { StopProof } from '../../contracts/engine.js';
import { engineKeyOf } from '../../contracts/ids.js';
import { type Handle, refOf } from '../state/handle.js';
import { type Context, loadSecrets, pause, rendererOf, update } from './context.js';
import type { ExitWatch } from './exits.js';
import { clearLeftovers } from './leftovers.js';
import { closeRunDir, readPid } from './shim.js';
import { recoverStart, running } from './start.js';
import { endTree, killTree, proof, proveGpus } from './stopping.js';

/** Between SIGTERM and SIGKILL when the host goes down. */
const HOST_STOP_MS = 2_000;

export interface Ordered {
  /** Of the order. */
  fence: number;
  reason: string;
  /** The operator whose word frees the GPUs where the proof can't be had. */
  byWord?: string;
}

/** Whoever calls holds the replica's queue. Throws STOP_INCOMPLETE. */
export async function stopEngine(
  ctx: Context,
  exits: ExitWatch,
  ref: Handle,
  ordered: Ordered,
): Promise<StopProof> {
  let h = ctx.handles.get(ref)!;
  if (h.state === 'stopped') return h.proof!.leaked.length === 0 ? h.proof! : proveAgain(ctx, h, ordered);
  const runtime = ctx.runtimes.of(h);
  // First: a shim that comes late finds it closed. Then the mark: from here on an exit is an ordered one.
  closeRunDir(ctx.handles.runDir(h));
  h = update(ctx, h, { marks: { ...h.marks, requested_stop: h.marks.requested_stop ?? ordered.fence } });
  runtime.stopping = true;
  try {
    if (h.state === 'spawning') h = (await recoverStart(ctx, h)) ?? h;
    if (h.state === 'running') exits.add(h);
    ctx.opts.log.info({ ...refOf(h), reason: ordered.reason, pid: h.engine?.pid }, 'stopping engine');
    // The shim's record tells of a start that this handle doesn't know of: it was made for one that can't be read.
    const engine = h.engine ?? readPid(ctx.handles.runDir(h));
    runtime.tree.remember(engine);
    const started = engine !== null || runtime.tree.scan().length > 0;
    await endTree(ctx, exits, h, graceOf(ctx, h));
    await recorded(ctx, exits, h);
    const waitMs = ordered.byWord === undefined ? ctx.opts.gpuReleaseTimeoutMs : 0;
    const found = started ? await proveGpus(ctx, h, waitMs) : proof('never_started', []);
    await clearLeftovers(ctx, h);
    ctx.ports.release(engineKeyOf(h));
    return stopped(ctx, h, found, ordered);
  } finally {
    runtime.stopping = false;
  }
}

/** A renderer that knows better makes the wait for SIGTERM shorter, never longer. */
function graceOf(ctx: Context, h: Handle): number {
  const own = h.order === null ? null : (rendererOf(ctx, h)?.stopMs?.(h.order) ?? null);
  return Math.min(own ?? Number.POSITIVE_INFINITY, ctx.opts.stopTimeoutMs);
}

/** Its tree was gone and its GPUs were not. One look: whoever asks again has waited since. */
async function proveAgain(ctx: Context, h: Handle, ordered: Ordered): Promise<StopProof> {
  const { tree } = ctx.runtimes.of(running(ctx, h));
  for (const left of h.left ?? []) tree.remember(left);
  if (h.boot_id !== ctx.bootId) return stopped(ctx, h, proof('rebooted', []), ordered);
  await killTree(ctx, h);
  return stopped(ctx, h, await proveGpus(ctx, h, 0), ordered);
}

/** On disk with what came out, or with the operator's word in its place. */
function stopped(ctx: Context, h: Handle, found: StopProof, { byWord }: Ordered): StopProof {
  const spoken = byWord !== undefined && found.leaked.length > 0;
  const done = spoken ? proof('operator', []) : found;
  // The driver goes on listing what has died: these are ours, and no stranger's, also for an agent that starts anew.
  const left = ctx.runtimes.of(h).tree.knownAmong(done.leaked.flatMap(l => l.pids));
  update(ctx, h, { state: 'stopped', proof: done, left });
  ctx.runtimes.forget(h);
  const { log } = ctx.opts;
  if (spoken)
    log.warn({ ...refOf(h), by: byWord, leaked: found.leaked }, "GPUs are free by an operator's word");
  else log.info({ ...refOf(h), proof: done.proof, leaked: done.leaked.length }, 'engine stopped');
  return done;
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
      // Another process than the agent: its tree is known by the handle alone.
      running(ctx, h);
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
