// Ending an engine and proving it (INV-2): SIGTERM to its own process, stop_timeout, SIGKILL of the whole tree, then
// the GPUs back at their baseline. A port that is free proves nothing: orphaned workers hold memory without one.
import type { StopProof } from '../../contracts/engine.js';
import { LlmgwError } from '../../contracts/errors.js';
import type { Handle } from '../state/handle.js';
import { type Context, pause } from './context.js';
import type { ExitWatch } from './exits.js';
import { type GpuVerdict, judgeGpu, judgeUnknown, weakest } from './gpu-guard.js';
import { noteSegments } from './leftovers.js';
import { describePid, type ProcStat } from './proc.js';
import { signalProc } from './tree.js';

/** What SIGKILL may take: a process in D state (a driver call) ends when the driver lets go, or never. */
const KILL_MS = 10_000;
/** For those that go last: both need milliseconds. */
const FINISH_MS = 1_000;
/** INV-2, neither memory figure nor process list: the tree has been gone this long. */
const WEAK_MS = 10_000;

/** Ends every process of the engine's tree. `termMs`: between SIGTERM and SIGKILL. Throws STOP_INCOMPLETE. */
export async function endTree(ctx: Context, exits: ExitWatch, handle: Handle, termMs: number): Promise<void> {
  const { tree } = ctx.runtimes.of(handle);
  // Before the engine goes: its children are its children only as long as it lives.
  noteSegments(ctx, handle, tree.scan());
  if (handle.engine !== null && signalProc(handle.engine, 'SIGTERM')) {
    const timer = new AbortController();
    await Promise.race([exits.ended(handle), pause(termMs, timer.signal)]);
    timer.abort();
    // This agent ends: the engine has its time to end in, the next attempt of this order goes on.
    ctx.closed.throwIfAborted();
  }
  await killTree(ctx, handle);
}

/** SIGKILL until nothing of the tree is left: children may fork while they are being killed. */
export async function killTree(ctx: Context, handle: Handle): Promise<void> {
  const { tree } = ctx.runtimes.of(handle);
  const started = performance.now();
  for (let wait = 5; ; wait = Math.min(wait * 2, 200)) {
    const left = tree.scan();
    if (left.length === 0 && !tree.scopeLives) return;
    ctx.closed.throwIfAborted();
    if (performance.now() - started > KILL_MS) throw incomplete(handle, left);
    // Two go last, and leave by themselves: the shim, which records how the engine ended, and Python's tracker, which
    // removes the shared memory and semaphores that nobody else knows of once all who had them are gone.
    const isShim = (p: ProcStat) => p.pid === handle.shim?.pid && p.start === handle.shim.start;
    const mayFinish = performance.now() - started < FINISH_MS;
    for (const p of left) if (!mayFinish || !(isShim(p) || isTracker(p))) signalProc(p, 'SIGKILL');
    if (!mayFinish) tree.killScope();
    await pause(wait);
  }
}

/** By its argv: this decides only who is killed a second later. */
const isTracker = (p: ProcStat): boolean => describePid(p.pid).includes('multiprocessing.resource_tracker');

function incomplete(handle: Handle, left: ProcStat[]): LlmgwError {
  const named = left.slice(0, 5).map(p => `pid ${p.pid} (${describePid(p.pid)}, state ${p.state})`);
  const who = named.length > 0 ? named.join(', ') : `processes of ${handle.scope?.unit ?? 'its tree'}`;
  return new LlmgwError(
    'STOP_INCOMPLETE',
    `${handle.replica} (fence ${handle.fence}, rank ${handle.rank}) is not gone: ${who} survive SIGKILL`,
    { details: { pids: left.map(p => p.pid) } },
  );
}

/** The tree is gone: waits up to `waitMs` until the GPUs are free too. Those that aren't then are `leaked`. */
export async function proveGpus(ctx: Context, handle: Handle, waitMs: number): Promise<StopProof> {
  const { tree } = ctx.runtimes.of(handle);
  // An order without GPUs: its processes were all there was.
  if (handle.order !== null && handle.baseline.length === 0) return proof('strong', []);
  const started = performance.now();
  for (let wait = 25; ; wait = Math.min(wait * 2, 1_000)) {
    const verdicts = await judgeAll(ctx, handle, pid => tree.has(pid));
    const held = verdicts.filter(v => !v.verdict.free);
    const kinds = verdicts.flatMap(v => (v.verdict.free ? [v.verdict.kind] : []));
    // No answer about any GPU is what `weak` means.
    const kind = verdicts.length === 0 ? 'weak' : weakest(kinds);
    const settled = kind !== 'weak' || performance.now() - started >= (ctx.opts.weakProofMs ?? WEAK_MS);
    if (held.length === 0 && settled) return proof(kind, []);
    if (held.length > 0 && performance.now() - started >= waitMs) {
      return proof(
        kinds.length === 0 ? 'processes' : kind,
        held.map(({ uuid, verdict }) => ({
          gpu: uuid,
          pids: verdict.free ? [] : verdict.pids,
          used_mib: verdict.free ? null : verdict.used_mib,
        })),
      );
    }
    await pause(wait, ctx.closed);
    ctx.closed.throwIfAborted();
  }
}

async function judgeAll(
  ctx: Context,
  handle: Handle,
  inTree: (pid: number) => boolean,
): Promise<{ uuid: string; verdict: GpuVerdict }[]> {
  const gpus = await ctx.opts.gpus.snapshot().then(
    s => s.gpus,
    // A driver that doesn't answer: no figure of any GPU.
    () => [],
  );
  // A fence that was burnt here, or whose handle could not be read: nobody knows which GPUs it was given.
  if (handle.order === null) return gpus.map(gpu => ({ uuid: gpu.uuid, verdict: judgeUnknown(gpu, inTree) }));
  return handle.baseline.map(base => ({
    uuid: base.uuid,
    verdict: judgeGpu(
      base,
      gpus.find(g => g.uuid === base.uuid),
      inTree,
    ),
  }));
}

export const proof = (kind: StopProof['proof'], leaked: StopProof['leaked']): StopProof => ({
  proof: kind,
  at: new Date().toISOString(),
  leaked,
});
