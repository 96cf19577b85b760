// The supervisor: starts, watches, adopts and stops the engines of this node. One order at a time per replica; every
// order may come twice and then has come once. Engines outlive it: closing it only stops the watching (INV-5).
import { spawn } from 'node:child_process';
import type {
  InspectResult,
  LoadProgress,
  MemberOrder,
  Prepared,
  ReadyResult,
  Spawned,
  StopOrder,
} from '../../contracts/activities.js';
import type { EngineEvent, EngineReport, ExitStatus, StopProof } from '../../contracts/engine.js';
import { LlmgwError } from '../../contracts/errors.js';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import { FenceStore, staleFence } from '../state/fences.js';
import { type Handle, HandleStore, refOf } from '../state/handle.js';
import { PortLeases } from '../state/port-leases.js';
import { type Context, loadSecrets, pause, runtimes, update } from './context.js';
import { ExitWatch } from './exits.js';
import { completeEvidence, describeFailure, type FailureInput } from './failure.js';
import { HealthWatch } from './health.js';
import { sizeOf, tailLines } from './logs.js';
import { admit, check, hold, olderAlive, preparedOf } from './prepare.js';
import { bootId, isAlive } from './proc.js';
import { KeyedQueue } from './queue.js';
import { watchUntilReady } from './ready.js';
import { printable, redact } from './redact.js';
import { pruneRuns } from './retention.js';
import { closeRunDir, cutArgs, installShim } from './shim.js';
import { recoverStart, running, startEngine } from './start.js';
import { endTree, proof, proveGpus } from './stopping.js';
import { tombstone } from './tombstone.js';
import type { SupervisorOptions } from './types.js';

/** Between SIGTERM and SIGKILL when the host goes down. */
const HOST_STOP_MS = 2_000;

/** What `tail` may be asked for. */
export interface TailQuery {
  generation?: number;
  rank?: number;
  lines?: number;
}

export class Supervisor {
  private readonly ctx: Context;
  private readonly queue = new KeyedQueue();
  private readonly exits: ExitWatch;
  private readonly health: HealthWatch;
  private readonly closing = new AbortController();
  private readonly cutting = new Set<string>();
  private hostStops = false;
  private logTimer: NodeJS.Timeout | null = null;

  constructor(opts: SupervisorOptions) {
    if (process.platform !== 'linux') {
      throw new LlmgwError(
        'BAD_REQUEST',
        `engines are supervised on Linux only; this machine runs ${process.platform}`,
      );
    }
    const handles = new HandleStore(opts.workDir);
    this.ctx = {
      opts,
      handles,
      fences: new FenceStore(opts.workDir, handles.all()),
      ports: new PortLeases(opts.workDir, opts.ports),
      bootId: bootId(),
      shim: installShim(opts.workDir),
      runtime: runtimes(handles),
      closed: this.closing.signal,
    };
    this.exits = new ExitWatch(this.ctx, (ref, exit) => this.onExit(ref, exit));
    this.health = new HealthWatch(this.ctx, (ref, failure) =>
      this.tell(ref, failure, { failure_told: true }),
    );
  }

  /** Adopts what an earlier agent left, before any order is taken. */
  async start(): Promise<void> {
    const { ctx } = this;
    for (const { dir, problem } of ctx.handles.unreadable) {
      ctx.opts.log.error({ dir, problem }, 'an engine handle can not be read: that engine is left alone');
    }
    ctx.ports.releaseAllBut(
      new Set(
        ctx.handles
          .all()
          .filter(h => h.state !== 'stopped')
          .map(engineKeyOf),
      ),
    );
    for (const handle of ctx.handles.all()) await this.adopt(handle);
    this.logTimer = setInterval(() => this.boundLogs(), ctx.opts.healthIntervalMs);
    this.logTimer.unref();
  }

  private async adopt(handle: Handle): Promise<void> {
    const { ctx } = this;
    if (handle.state === 'stopped') return;
    // Another boot: its pids are other people's processes now, and its GPUs are clean (INV-2).
    if (handle.boot_id !== ctx.bootId) {
      this.afterReboot(handle);
      return;
    }
    let found: Handle | null = handle;
    if (handle.state === 'spawning') found = await recoverStart(ctx, handle);
    if (found === null) {
      update(ctx, handle, { state: 'prepared' });
      return;
    }
    if (found.state === 'exited') ctx.runtime(found).tree.remember(found.engine);
    if (found.state !== 'running') return;
    running(ctx, found);
    await loadSecrets(ctx, found).catch(error => {
      ctx.opts.log.warn({ ...refOf(found), err: error }, 'secrets of an adopted engine can not be read');
    });
    this.watch(found);
    const now = ctx.handles.get(found)!;
    ctx.opts.log.info({ ...refOf(found), pid: found.engine?.pid }, `engine adopted: ${now.state}`);
  }

  private afterReboot(handle: Handle): void {
    const ended = handle.state === 'running' || handle.state === 'spawning';
    const stopped: Partial<Handle> = { state: 'stopped', proof: proof('rebooted', []) };
    this.ctx.ports.release(engineKeyOf(handle));
    if (!ended) {
      update(this.ctx, handle, stopped);
      return;
    }
    const known = {
      class: 'host_stop' as const,
      code: 'ENGINE_FAILED',
      sentence: 'the node was rebooted, the engine ended with it',
    };
    this.tell(handle, { exit: null, known }, {}, stopped);
  }

  /** Checks, takes GPUs and ports. See NodeActivities. */
  prepare(order: MemberOrder): Promise<Prepared> {
    return this.queue.run(order.replica, async () => preparedOf(await this.prepareNow(order)));
  }

  private async prepareNow(order: MemberOrder): Promise<Handle> {
    const known = admit(this.ctx, order);
    if (known !== null) return known;
    await this.clearOlder(order);
    const checked = await check(this.ctx, order);
    const handle = await this.queue.run('\0node', () => hold(this.ctx, order, checked));
    pruneRuns(this.ctx);
    return handle;
  }

  /** Older generations of the replica: what has ended is cleared and proven; what lives refuses the order. */
  private async clearOlder(order: MemberOrder): Promise<void> {
    for (const h of this.ctx.handles.ofReplica(order.replica)) {
      if (h.fence >= order.fence || h.state === 'stopped') continue;
      if (h.state === 'running' && isAlive(h.engine)) throw olderAlive(order, h);
      await this.stopHandle(h, order.fence, 'superseded');
    }
  }

  spawn(order: MemberOrder): Promise<Spawned> {
    return this.queue.run(order.replica, () => this.spawnNow(order));
  }

  private async spawnNow(order: MemberOrder): Promise<Spawned> {
    if (this.hostStops) throw new LlmgwError('SPAWN_FAILED', 'the host is stopping its engines');
    const handle = admit(this.ctx, order);
    if (handle === null) {
      throw new LlmgwError(
        'ENGINE_UNKNOWN',
        `replica ${order.replica}, fence ${order.fence} was not prepared here`,
      );
    }
    if (handle.state === 'spawning') {
      const found = await recoverStart(this.ctx, handle);
      if (found !== null) {
        this.watch(found);
        return { pid: found.engine!.pid, adopted: true };
      }
    } else if (handle.state !== 'prepared') return { pid: handle.engine?.pid ?? 0, adopted: true };
    const started = await startEngine(this.ctx, handle, () => this.exits.check(order));
    this.watch(started);
    this.ctx.opts.log.info({ ...refOf(order), pid: started.engine!.pid }, 'engine started');
    return { pid: started.engine!.pid, adopted: false };
  }

  launch(order: MemberOrder): Promise<Prepared & Spawned> {
    return this.queue.run(order.replica, async () => {
      const prepared = preparedOf(await this.prepareNow(order));
      return { ...prepared, ...(await this.spawnNow(order)) };
    });
  }

  /**
   * Ends when the engine serves or has failed. Rejects with the signal's reason when it aborts: that stops the
   * watching, never the engine. Not queued: a stop must get through while an engine loads.
   */
  async awaitReady(
    order: MemberOrder,
    onProgress: (p: LoadProgress) => void,
    signal: AbortSignal,
  ): Promise<ReadyResult> {
    const handle = admit(this.ctx, order);
    if (handle === null || handle.state === 'prepared' || handle.state === 'spawning') {
      throw new LlmgwError(
        'ENGINE_UNKNOWN',
        `replica ${order.replica}, fence ${order.fence} was not started here`,
      );
    }
    return watchUntilReady({
      ctx: this.ctx,
      order,
      onProgress,
      signal: AbortSignal.any([signal, this.ctx.closed]),
      ended: this.exits.ended(order),
      markReady: (ref, pid) => {
        const h = this.ctx.handles.get(ref)!;
        if (!h.marks.was_ready) update(this.ctx, ref, { marks: { ...h.marks, was_ready: true } });
        this.ctx.opts.log.info({ ...refOf(ref), pid }, 'engine ready');
        this.health.add(ref);
      },
    });
  }

  /** Ends the engine and proves it. Throws STALE_FENCE, STOP_INCOMPLETE. */
  stop(order: StopOrder): Promise<StopProof> {
    return this.queue.run(order.replica, () => this.stopNow(order));
  }

  private async stopNow(order: StopOrder): Promise<StopProof> {
    const own = this.ctx.handles.get(order);
    const highest = this.ctx.fences.highest(order.replica);
    if (own === undefined && highest !== null && highest > order.fence) throw staleFence(order, highest);
    // What an older generation left here is this order's to end too: it carries a newer fence (INV-5).
    for (const h of this.ctx.handles.ofReplica(order.replica)) {
      if (h.fence < order.fence && h.state !== 'stopped') await this.stopHandle(h, order.fence, order.reason);
    }
    return this.stopHandle(own ?? this.unknown(order), order.fence, order.reason);
  }

  /** Burns a fence that this node has no handle of, so that its launch, if it comes late, is refused. */
  private unknown(order: StopOrder): Handle {
    this.ctx.fences.raise(order.replica, order.fence);
    return this.ctx.handles.save(tombstone(order, this.ctx.bootId), true);
  }

  private async stopHandle(handle: Handle, fence: number, reason: string): Promise<StopProof> {
    const { ctx } = this;
    if (handle.state === 'stopped') return handle.proof!;
    const runtime = ctx.runtime(handle);
    closeRunDir(ctx.handles.runDir(handle));
    const marks = { ...handle.marks, requested_stop: handle.marks.requested_stop ?? fence };
    let h = update(ctx, handle, { marks });
    if (h.state === 'spawning') h = (await recoverStart(ctx, h)) ?? h;
    this.watch(h);
    ctx.opts.log.info({ ...refOf(h), reason, pid: h.engine?.pid }, 'stopping engine');
    runtime.stopping = true;
    const started = h.engine !== null || runtime.tree.scan().length > 0;
    try {
      await endTree(ctx, this.exits, h, ctx.opts.stopTimeoutMs);
      await this.recorded(h);
      const done = started ? await proveGpus(ctx, h, performance.now()) : proof('never_started', []);
      ctx.ports.release(engineKeyOf(h));
      update(ctx, h, { state: 'stopped', proof: done });
      ctx.opts.log.info({ ...refOf(h), proof: done.proof, leaked: done.leaked.length }, 'engine stopped');
      return done;
    } finally {
      runtime.stopping = false;
    }
  }

  /** The exit is recorded as soon as it is seen; after the tree is gone that is at once. */
  private async recorded(handle: Handle): Promise<void> {
    while (this.ctx.handles.get(handle)?.state === 'running' && !this.ctx.closed.aborted) {
      this.exits.check(handle);
      await pause(5);
    }
  }

  /** The host goes down: every engine, now, marked so that it isn't counted as a failure (INV-5). */
  async stopAllForHost(): Promise<void> {
    const { ctx } = this;
    this.hostStops = true;
    const alive: Handle[] = [];
    for (const h of ctx.handles.all()) {
      if (h.state !== 'running' && h.state !== 'spawning') continue;
      closeRunDir(ctx.handles.runDir(h));
      const marked = update(ctx, h, { marks: { ...h.marks, host_stop: true } });
      const found = marked.state === 'spawning' ? await recoverStart(ctx, marked) : marked;
      if (found !== null) alive.push(found);
    }
    await Promise.all(
      alive.map(async h => {
        this.watch(h);
        await endTree(ctx, this.exits, h, HOST_STOP_MS);
        await this.recorded(h);
      }),
    );
  }

  inspect(order: StopOrder): InspectResult {
    const h = this.ctx.handles.get(order);
    const alive = h !== undefined && h.state === 'running' && isAlive(h.engine);
    return {
      known: h !== undefined,
      alive,
      pid: h?.engine?.pid ?? null,
      highest_fence: this.ctx.fences.highest(order.replica),
    };
  }

  /** Every engine that holds something here, for Hello and heartbeats. */
  reports(): EngineReport[] {
    return this.ctx.handles
      .all()
      .filter(h => h.state !== 'stopped')
      .map(h => ({
        ...refOf(h),
        state: this.reportState(h),
        pid: h.engine?.pid ?? null,
        gpus: h.gpus.map(g => g.uuid),
        ports: h.ports,
        stage: this.ctx.runtime(h).stage?.stage ?? null,
      }));
  }

  private reportState(h: Handle): EngineReport['state'] {
    if (h.state === 'exited') return 'exited';
    if (this.ctx.runtime(h).stopping) return 'stopping';
    if (h.state !== 'running') return 'spawning';
    return h.marks.was_ready ? 'ready' : 'loading';
  }

  /** Whether a pid belongs, or belonged, to one of this node's engines: then it isn't foreign. */
  ownsPid(pid: number): boolean {
    return this.ctx.handles.all().some(h => h.state === 'running' && this.ctx.runtime(h).tree.owns(pid));
  }

  /** Events that nobody has acknowledged, oldest first. */
  pending(): EngineEvent[] {
    return this.ctx.handles
      .all()
      .flatMap(h => h.events)
      .sort((a, b) => a.at.localeCompare(b.at) || a.seq - b.seq);
  }

  ack(replica: string, fence: number, rank: number, seq: number): void {
    const h = this.ctx.handles.get({ replica, fence, rank });
    if (h?.events.some(e => e.seq === seq) !== true) return;
    update(this.ctx, h, { events: h.events.filter(e => e.seq !== seq) });
  }

  /** Last lines of an engine's log, redacted, oldest first. Newest generation and rank 0 unless told. */
  tail(replica: string, query: TailQuery = {}): string[] {
    const h = this.ctx.handles
      .ofReplica(replica)
      .filter(x => x.order !== null && x.rank === (query.rank ?? 0))
      .findLast(x => query.generation === undefined || x.generation === query.generation);
    if (h === undefined) {
      const which = query.generation === undefined ? '' : `, generation ${query.generation}`;
      throw new LlmgwError(
        'ENGINE_UNKNOWN',
        `this node has no log of replica ${replica}${which}, rank ${query.rank ?? 0}`,
      );
    }
    const secrets = this.ctx.runtime(h).secrets ?? [];
    return tailLines(this.ctx.handles.runDir(h), query.lines ?? this.ctx.opts.logLines).map(line =>
      redact(printable(line), secrets),
    );
  }

  /** Stops watching. Engines, their shims and their logs go on. */
  close(): void {
    this.closing.abort();
    if (this.logTimer !== null) clearInterval(this.logTimer);
    this.health.close();
    this.exits.close();
  }

  private watch(h: Handle): void {
    if (h.state !== 'running') return;
    this.exits.add(h);
    if (h.marks.was_ready) this.health.add(h);
  }

  /** The event is on disk, and out, before anything else is done about an exit (evidence is local and small). */
  private onExit(ref: EngineRef, exit: ExitStatus): void {
    const { ctx } = this;
    ctx.opts.fault?.('after_exit_seen');
    const handle = ctx.handles.get(ref)!;
    const marks = { ...handle.marks, ...onlySet(ctx.handles.marksOnDisk(ref)) };
    const done: Partial<Handle> = { state: 'exited', exit, marks };
    ctx.opts.log.info({ ...refOf(ref), ...exit, requested: marks.requested_stop !== null }, 'engine ended');
    if (marks.host_stop) {
      const known = {
        class: 'host_stop' as const,
        code: 'ENGINE_FAILED',
        sentence: 'the host stopped the engine on purpose',
      };
      this.tell(ref, { exit, known }, {}, done);
      return;
    }
    // An ordered end is the answer of that order, and what was told already isn't news.
    if (marks.requested_stop !== null || marks.failure_told) {
      update(ctx, ref, done);
      return;
    }
    this.tell(ref, { exit }, {}, done);
  }

  private tell(
    ref: EngineRef,
    input: FailureInput,
    marks: Partial<Handle['marks']>,
    change: Partial<Handle> = {},
  ): void {
    const { ctx } = this;
    const before = ctx.handles.get(ref)!;
    const failure = describeFailure(ctx, before, input);
    const event: EngineEvent = {
      ...refOf(ref),
      seq: before.seq + 1,
      kind: 'exited',
      at: new Date().toISOString(),
      requested: before.marks.requested_stop !== null,
      failure,
    };
    const after = update(ctx, ref, {
      marks: { ...before.marks, ...marks },
      ...change,
      seq: event.seq,
      events: [...before.events, event],
    });
    ctx.opts.onEvent?.(event);
    void completeEvidence(ctx, after);
  }

  /** The agent cuts at three quarters of log_max, the shim (no agent there) at all of it: they never meet. */
  private boundLogs(): void {
    for (const h of this.ctx.handles.all()) {
      if (h.state !== 'running') continue;
      const runDir = this.ctx.handles.runDir(h);
      if (sizeOf(`${runDir}/log`) <= (this.ctx.opts.logMaxBytes / 4) * 3 || this.cutting.has(runDir))
        continue;
      this.cutting.add(runDir);
      const child = spawn('/bin/sh', cutArgs(this.ctx.shim, runDir, this.ctx.opts.logMaxBytes), {
        stdio: 'ignore',
      });
      const done = () => this.cutting.delete(runDir);
      child.once('exit', done);
      child.once('error', done);
      child.unref();
    }
  }
}

/** Marks only ever get set. */
function onlySet(marks: Handle['marks'] | null): Partial<Handle['marks']> {
  if (marks === null) return {};
  return Object.fromEntries(Object.entries(marks).filter(([, v]) => v !== false && v !== null));
}
