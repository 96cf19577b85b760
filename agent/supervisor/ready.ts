// Watching an engine load until it serves, has ended, or gets nowhere (INV-9). Watching is all: an engine that made
// no progress is left as it is, the workflow stops it by an order (INV-5).
import type { LoadProgress, MemberOrder, ReadyResult } from '../../contracts/activities.js';
import type { EngineRef } from '../../contracts/ids.js';
import type { Handle } from '../state/handle.js';
import { type Context, loadSecrets, pause, rendererOf } from './context.js';
import { byHost, describeFailure } from './failure.js';
import { noteSegments } from './leftovers.js';
import { LogFollower } from './logs.js';
import { httpGet, modelIds } from './probe.js';
import { describePid, ioBytes, isListening, listenerAmong } from './proc.js';
import { Progress, type Sample } from './progress.js';

/** The first looks come quickly (a warm engine is up in well under a second), later ones every health_interval. */
const FIRST_MS = 20;
const GROWTH = 1.2;
const FAST_MS = 100;
/** Looks at the fast pace; after that the engine is one that loads for minutes. */
const FAST_LOOKS = 50;
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
  let sampledAt = Number.NEGATIVE_INFINITY;
  let strangerSince: number | null = null;
  let delay = FIRST_MS;
  let nextProbe = 0;
  try {
    for (let look = 0; ; ) {
      signal.throwIfAborted();
      const ended = await exitedResult(ctx, order);
      if (ended !== null) return ended;
      const now = performance.now();
      follower.poll(line => progress.line(line, now));
      if (progress.stage !== null && progress.stage !== runtime.stage) {
        runtime.stage = progress.stage;
        w.onProgress({ ...progress.stage, at: new Date().toISOString() });
      }
      if (now >= nextProbe) {
        const seen = await probeOnce(ctx, handle, wake.signal);
        if (seen.kind === 'ready') {
          const wrong = await wrongGpu(ctx, handle);
          if (isOver(ctx, order)) continue;
          if (wrong !== null) return failed(ctx, handle, { class: 'retry', sentence: wrong });
          noteSegments(ctx, handle, runtime.tree.scan());
          w.markReady(order, handle.engine!.pid);
          return { ready: true, pid: handle.engine!.pid, model_ids: seen.models };
        }
        strangerSince = seen.kind === 'stranger' ? (strangerSince ?? now) : null;
        if (seen.kind === 'stranger' && now - strangerSince! >= STRANGER_MS) {
          return failed(ctx, handle, { class: 'port_conflict', sentence: strangerSentence(handle) });
        }
        look++;
        delay = Math.min(delay * GROWTH, look < FAST_LOOKS ? FAST_MS : ctx.opts.healthIntervalMs);
        nextProbe = performance.now() + Math.min(delay, ctx.opts.healthIntervalMs);
      }
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
      await pause(Math.max(1, Math.min(nextProbe - performance.now(), LOG_MS)), wake.signal);
    }
  } finally {
    signal.removeEventListener('abort', onAbort);
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

type Seen = { kind: 'loading' | 'stranger' } | { kind: 'ready'; models: string[] };

/** Ready: 200 from /health, by a listener of our own tree, and /v1/models answers too. */
async function probeOnce(ctx: Context, handle: Handle, signal: AbortSignal): Promise<Seen> {
  const port = handle.ports.http;
  const probe = handle.probe;
  if (port === undefined || probe === null) return { kind: 'loading' };
  // Without the key: whoever listens there isn't known yet. Refused connections, the usual answer, cost nothing.
  const health = await httpGet(probe.health_url, null, signal);
  if (health.status === null) return { kind: 'loading' };
  if (!listensInTree(ctx, handle, port)) return { kind: isListening(port) ? 'stranger' : 'loading' };
  if (health.status !== 200) return { kind: 'loading' };
  const models = await httpGet(probe.models_url, ctx.runtimes.of(handle).bearer ?? null, signal);
  const ids = models.status === 200 ? modelIds(models.body) : null;
  return ids === null ? { kind: 'loading' } : { kind: 'ready', models: ids };
}

/** The engine's own process first; all of its tree only if that isn't it. */
export function listensInTree(ctx: Context, handle: Handle, port: number): boolean {
  const { tree } = ctx.runtimes.of(handle);
  const known = [handle.engine!.pid, ...tree.seen().map(p => p.pid)];
  return (
    listenerAmong(port, known) !== null ||
    listenerAmong(
      port,
      tree.scan().map(p => p.pid),
    ) !== null
  );
}

function strangerSentence(handle: Handle): string {
  const port = handle.ports.http!;
  return `port ${port}, reserved for this engine, is listened on by another process, which is not of its tree (engine pid ${handle.engine?.pid}, ${describePid(handle.engine?.pid ?? 0)})`;
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

async function gpuMemory(ctx: Context, handle: Handle): Promise<number | null> {
  if (handle.gpus.length === 0) return null;
  const gpus = await snapshot(ctx);
  const used = gpus.filter(g => handle.gpus.some(h => h.uuid === g.uuid)).map(g => g.memory_used_mib);
  return used.length === 0 || used.includes(null) ? null : used.reduce<number>((a, n) => a + n!, 0);
}

/** INV-13, once at ready: a process of the tree on a GPU that wasn't granted. */
async function wrongGpu(ctx: Context, handle: Handle): Promise<string | null> {
  if (handle.gpus.length === 0) return null;
  const { tree } = ctx.runtimes.of(handle);
  tree.scan();
  for (const gpu of await snapshot(ctx)) {
    const own = gpu.processes?.find(p => tree.has(p.pid));
    const granted = handle.gpus.some(g => g.uuid === gpu.uuid);
    if (own !== undefined && !granted) {
      return `pid ${own.pid} of the engine is on GPU ${gpu.index} (${gpu.uuid}), which was not granted to it`;
    }
    if (own === undefined && granted && gpu.processes !== null) {
      ctx.opts.log.warn(
        { replica: handle.replica, gpu: gpu.uuid },
        'a granted GPU has no process of the engine',
      );
    }
  }
  return null;
}

const snapshot = (ctx: Context) =>
  ctx.opts.gpus.snapshot().then(
    s => s.gpus,
    // A driver that doesn't answer tells nothing; readiness is judged without it.
    () => [],
  );
