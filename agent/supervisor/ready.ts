// Watching an engine load until it serves, has ended, or gets nowhere (INV-9). Watching is all: an engine that made
// no progress is left as it is, the workflow stops it by an order (INV-5). A follower of a gang has no probe: its watch
// ends with a failure only, and is aborted when rank 0 is ready.
import type { LoadProgress, MemberOrder, ReadyResult } from '../../contracts/activities.js';
import type { EngineRef } from '../../contracts/ids.js';
import type { Handle } from '../state/handle.js';
import { type Context, loadSecrets, pause, rendererOf } from './context.js';
import { byHost, describeFailure } from './failure.js';
import { noteSegments } from './leftovers.js';
import { LogFollower } from './logs.js';
import { LoadProber, strangerSentence } from './prober.js';
import { ioBytes } from './proc.js';
import { Progress, type Sample } from './progress.js';
import { gpuMemory, wrongGpu } from './tree-gpus.js';

/** The log is read at least this often, so that progress is fresh. */
const LOG_MS = 1_000;
/** I/O and GPU memory are sampled this often: they only matter against no_progress_timeout. */
const SAMPLE_MS = 10_000;
/** A stranger on our port for this long isn't a socket that is being closed. */
const STRANGER_MS = 1_000;

export interface Watcher {
  ctx: Context;
  order: MemberOrder;
  onProgress: (p: LoadProgress) => void;
  /** Ends the watching, never the engine. */
  signal: AbortSignal;
  /** Resolves when the engine has ended; its handle is `exited` then. */
  ended: Promise<void>;
  markReady: (ref: EngineRef, pid: number) => void;
}

export async function watchUntilReady(w: Watcher): Promise<ReadyResult> {
  const { ctx, order, signal } = w;
  const handle = ctx.handles.get(order)!;
  const runtime = await loadSecrets(ctx, handle);
  const renderer = rendererOf(ctx, handle)!;
  const progress = new Progress(renderer, performance.now());
  const follower = new LogFollower(ctx.handles.runDir(order));
  const wake = new AbortController();
  void w.ended.then(() => wake.abort());
  const onAbort = () => wake.abort();
  signal.addEventListener('abort', onAbort);
  let nap = new AbortController();
  const prober = new LoadProber(ctx, handle, () => nap.abort());
  let sampledAt = Number.NEGATIVE_INFINITY;
  let strangerSince: number | null = null;
  try {
    for (;;) {
      signal.throwIfAborted();
      const ended = await exitedResult(ctx, order);
      if (ended !== null) return ended;
      const now = performance.now();
      follower.poll(line => progress.line(line, now));
      if (progress.stage !== null && progress.stage !== runtime.stage) {
        runtime.stage = progress.stage;
        w.onProgress({ ...progress.stage, at: new Date().toISOString() });
      }
      const seen = prober.take();
      if (seen?.kind === 'ready') {
        const wrong = await wrongGpu(ctx, handle);
        if (isOver(ctx, order)) continue;
        if (wrong !== null) return failed(ctx, handle, { class: 'retry', sentence: wrong });
        noteSegments(ctx, handle, runtime.tree.scan());
        w.markReady(order, handle.engine!.pid);
        return { ready: true, pid: handle.engine!.pid, model_ids: seen.models };
      }
      if (seen !== null) strangerSince = seen.kind === 'stranger' ? (strangerSince ?? now) : null;
      if (strangerSince !== null && now - strangerSince >= STRANGER_MS) {
        return failed(ctx, handle, { class: 'port_conflict', sentence: strangerSentence(handle) });
      }
      prober.poll(wake.signal);
      if (now - sampledAt >= SAMPLE_MS) {
        sampledAt = now;
        progress.sample(await sample(ctx, handle), now);
      }
      const idle = progress.stalled(performance.now(), order.spec.no_progress_timeout);
      if (idle !== null) {
        return {
          ready: false,
          failure: describeFailure(ctx, handle, { exit: null, noProgressMs: Math.round(idle) }),
        };
      }
      nap = new AbortController();
      if (!prober.answered) {
        const ms = Math.min(prober.dueMs, LOG_MS, order.spec.no_progress_timeout);
        await pause(ms, AbortSignal.any([wake.signal, nap.signal]));
      }
    }
  } finally {
    signal.removeEventListener('abort', onAbort);
    // A probe that is under way ends with the watch.
    wake.abort();
  }
}

/** Whether the engine has ended, by itself or by a stop. */
function isOver(ctx: Context, ref: EngineRef): boolean {
  const state = ctx.handles.get(ref)?.state;
  return state === 'exited' || state === 'stopped';
}

/** The failure of an engine that has ended, as its event told it; null: it lives, or was never started. */
export async function exitedResult(ctx: Context, ref: EngineRef): Promise<ReadyResult | null> {
  const handle = ctx.handles.get(ref);
  if (handle === undefined || !isOver(ctx, ref) || handle.proof?.proof === 'never_started') return null;
  if (handle.last_failure !== null) return { ready: false, failure: handle.last_failure };
  await loadSecrets(ctx, handle);
  // A reboot is no failure of the engine, also of one that hadn't been started yet.
  const rebooted = handle.proof?.proof === 'rebooted';
  const known = rebooted ? { known: byHost('the node was rebooted before the engine was started') } : {};
  const exit = handle.exit ?? (rebooted ? null : { code: null, signal: null });
  return { ready: false, failure: describeFailure(ctx, handle, { exit, ...known }) };
}

function failed(
  ctx: Context,
  handle: Handle,
  known: { class: 'retry' | 'port_conflict'; sentence: string },
): ReadyResult {
  return {
    ready: false,
    failure: describeFailure(ctx, handle, { exit: null, known: { code: 'ENGINE_FAILED', ...known } }),
  };
}

async function sample(ctx: Context, handle: Handle): Promise<Sample> {
  const procs = ctx.runtimes.of(handle).tree.scan();
  const io = procs.map(p => ioBytes(p.pid));
  return {
    io: io.every(n => n === null) ? null : io.reduce<number>((a, n) => a + (n ?? 0), 0),
    cpu: procs.reduce((a, p) => a + p.cpu, 0),
    gpuMib: await gpuMemory(ctx, handle),
  };
}
