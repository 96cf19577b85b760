// The supervisor: starts, watches, adopts and stops the engines of this node. One order at a time per replica; every
// order may come twice and then has come once. Engines outlive it: closing it only stops the watching (INV-5).
import type {
  AdoptOrder,
  InspectResult,
  LoadProgress,
  LookedAt,
  MemberOrder,
  Prepared,
  ReadyResult,
  Spawned,
  SpawnOrder,
  StopOrder,
} from '../../contracts/activities.js';
import type { EngineEvent, StopProof } from '../../contracts/engine.js';
import { LlmgwError } from '../../contracts/errors.js';
import type { EngineRef } from '../../contracts/ids.js';
import type { LogPiece } from '../../contracts/logs.js';
import type { LiveEngine } from '../../proto/codec.js';
import { FenceStore } from '../state/fences.js';
import { type Handle, HandleStore, orderHash, refOf } from '../state/handle.js';
import { Outbox } from '../state/outbox.js';
import { PortLeases } from '../state/port-leases.js';
import { adoptedBefore, asRefusal, claim, examine, take } from './adopt.js';
import { type Context, loadSecrets, Runtimes, update } from './context.js';
import { Endings } from './endings.js';
import { ExitWatch } from './exits.js';
import { peersOf, refuseAlone } from './gang.js';
import { HealthWatch } from './health.js';
import { LogKeeper, type TailQuery } from './log-keeper.js';
import { stopEngine, stopForHost } from './orders.js';
import { admit, check, hold, olderAlive, preparedOf } from './prepare.js';
import { bootId, describePid, isAlive, readStat } from './proc.js';
import { KeyedQueue } from './queue.js';
import { exitedResult, watchUntilReady } from './ready.js';
import { reportOf } from './report.js';
import { pruneRuns } from './retention.js';
import { shimFile } from './shim.js';
import { SpaceWatch } from './space.js';
import { recoverStart, startEngine } from './start.js';
import { Stock } from './stock.js';
import { look, type Named } from './stranger.js';
import { tombstone } from './tombstone.js';
import { wrongGpu } from './tree-gpus.js';
import type { SupervisorOptions } from './types.js';

/** Key of the node's own queue; no replica can have that name. */
const NODE = '\0node';

export class Supervisor {
  private readonly ctx: Context;
  private readonly queue = new KeyedQueue();
  private readonly outbox: Outbox;
  private readonly endings: Endings;
  private readonly exits: ExitWatch;
  private readonly health: HealthWatch;
  private readonly logs: LogKeeper;
  private readonly space: SpaceWatch;
  private readonly stock: Stock;
  private readonly closing = new AbortController();
  private hostStops = false;

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
      shim: shimFile(opts.workDir),
      runtimes: new Runtimes(handles),
      closed: this.closing.signal,
    };
    this.outbox = new Outbox(handles);
    this.endings = new Endings(this.ctx, this.outbox);
    this.exits = new ExitWatch(this.ctx, (ref, exit) => this.endings.exited(ref, exit));
    this.health = new HealthWatch(this.ctx, (ref, failure) => this.endings.dead(ref, failure));
    this.logs = new LogKeeper(this.ctx);
    this.space = new SpaceWatch(this.ctx);
    this.stock = new Stock(this.ctx, this.endings, h => this.watch(h));
  }

  /** Adopts what an earlier agent left, before any order is taken. */
  async start(): Promise<void> {
    const { ctx } = this;
    for (const { dir, problem } of ctx.handles.unreadable) {
      ctx.opts.log.error(
        { dir, problem },
        'an engine handle can not be read: that engine keeps the GPUs of this node until it has ended or is stopped',
      );
    }
    await this.stock.take();
    this.logs.start();
    this.space.start();
  }

  /** Checks, takes GPUs and ports. See NodeActivities. */
  prepare(order: MemberOrder): Promise<Prepared> {
    return this.queue.run(order.replica, async () => preparedOf(this.ctx, await this.prepareNow(order)));
  }

  private async prepareNow(order: MemberOrder): Promise<Handle> {
    const known = admit(this.ctx, order);
    if (known !== null) return known;
    if (this.stock.problem !== null) throw new LlmgwError('NO_SPACE', this.stock.problem);
    if (order.nodes > 1 && order.fabric == null) {
      // INV-3.
      const sentence = 'the order names no fabric, and a multi-node replica runs on one';
      throw new LlmgwError('FABRIC_DOWN', sentence);
    }
    await this.clearOlder(order);
    const checked = await check(this.ctx, order);
    const handle = await this.queue.run(NODE, () => hold(this.ctx, order, checked));
    pruneRuns(this.ctx);
    return handle;
  }

  /** Older generations of the replica: what has ended is cleared and proven; what lives refuses the order. */
  private async clearOlder(order: MemberOrder): Promise<void> {
    for (const h of this.ctx.handles.ofReplica(order.replica)) {
      if (h.fence >= order.fence || h.state === 'stopped') continue;
      if (h.state === 'running' && isAlive(h.engine)) throw olderAlive(order, h);
      await stopEngine(this.ctx, this.exits, h, { fence: order.fence, reason: 'superseded' });
    }
  }

  spawn(order: SpawnOrder): Promise<Spawned> {
    return this.queue.run(order.replica, () => this.spawnNow(order));
  }

  private async spawnNow(order: SpawnOrder): Promise<Spawned> {
    if (this.hostStops) throw new LlmgwError('SPAWN_FAILED', 'the host is stopping its engines');
    const handle = admit(this.ctx, order);
    if (handle === null) throw notHere(order, 'prepared');
    if (handle.state === 'spawning') {
      const found = await recoverStart(this.ctx, handle);
      if (found !== null) {
        await loadSecrets(this.ctx, found);
        this.watch(found);
        return { pid: found.engine!.pid, adopted: true };
      }
    } else if (handle.state !== 'prepared') return { pid: handle.engine?.pid ?? 0, adopted: true };
    const peers = peersOf(handle, order);
    const started = await startEngine(this.ctx, handle, peers, () => this.exits.check(order));
    this.watch(started);
    this.ctx.opts.log.info({ ...refOf(order), pid: started.engine!.pid }, 'engine started');
    return { pid: started.engine!.pid, adopted: false };
  }

  launch(order: MemberOrder): Promise<Prepared & Spawned> {
    return this.queue.run(order.replica, async () => {
      refuseAlone(order);
      const prepared = preparedOf(this.ctx, await this.prepareNow(order));
      return { ...prepared, ...(await this.spawnNow(order)) };
    });
  }

  /** Whose a process is, and which GPUs it has. See NodeActivities. */
  look(process: Named): Promise<LookedAt> {
    return look(this.ctx, process);
  }

  /** An engine that lives goes on under this order. See NodeActivities. */
  adopt(order: AdoptOrder): Promise<Prepared & Spawned> {
    const { process: named, ...member } = order;
    return this.queue.run(order.replica, async () => {
      const h = named == null ? await claim(this.ctx, member) : await this.takeOver(member, named);
      await loadSecrets(this.ctx, h);
      this.watch(h);
      this.ctx.opts.log.info({ ...refOf(h), pid: h.engine!.pid }, 'engine adopted by an order');
      return { ...preparedOf(this.ctx, h), pid: h.engine!.pid, adopted: true };
    });
  }

  private async takeOver(order: MemberOrder, named: Named): Promise<Handle> {
    const known = admit(this.ctx, order);
    if (known !== null) return adoptedBefore(known, order, named);
    if (this.hostStops) throw new LlmgwError('ADOPT_REFUSED', 'the host is stopping its engines');
    await this.clearOlder(order).catch(asRefusal);
    const found = await examine(this.ctx, order, named);
    return this.queue.run(NODE, () => take(this.ctx, order, found)).catch(asRefusal);
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
    // Before the fence is judged: an engine that is over has an answer, though its fence may start nothing any more.
    if (this.ctx.handles.get(order)?.order_hash === orderHash(order)) {
      const over = await exitedResult(this.ctx, order);
      if (over !== null) return over;
    }
    const handle = admit(this.ctx, order);
    if (handle === null || handle.state === 'prepared' || handle.state === 'spawning') {
      throw notHere(order, 'started');
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

  /**
   * Its gang serves: rank 0 is ready, and nobody waits for this follower any more. The once-at-ready look at GPUs that
   * rank 0 has in its own wait comes here for the others (INV-13).
   */
  async settled(order: MemberOrder): Promise<void> {
    const running = () => {
      const h = this.ctx.handles.get(order);
      const over = h?.marks.requested_stop != null || h?.marks.failure_told === true;
      return h?.state === 'running' && !over && h.order_hash === orderHash(order) ? h : null;
    };
    const follower = order.rank === 0 ? null : running();
    if (follower === null) return;
    const h = update(this.ctx, follower, { marks: { ...follower.marks, was_ready: true } });
    const wrong = await wrongGpu(this.ctx, h);
    if (wrong === null || running() === null) return;
    await loadSecrets(this.ctx, h);
    this.endings.dead(h, { exit: null, known: { class: 'retry', code: 'ENGINE_FAILED', sentence: wrong } });
  }

  /**
   * Ends the engine and proves it. A fence that this node has no handle of can't start here afterwards; what carries
   * its mark all the same is ended with it. One whose GPUs were leaked is looked at again. Throws STOP_INCOMPLETE.
   */
  stop(order: StopOrder): Promise<StopProof> {
    return this.queue.run(order.replica, async () => {
      const { ctx } = this;
      const own = ctx.handles.get(order);
      // What an older generation left here is this order's to end too: it carries a newer fence (INV-5).
      for (const h of ctx.handles.ofReplica(order.replica)) {
        if (h.fence >= order.fence || h.state === 'stopped') continue;
        await stopEngine(ctx, this.exits, h, order);
      }
      const byWord = order.by_word === undefined ? {} : { byWord: order.by_word };
      return stopEngine(ctx, this.exits, own ?? this.burn(order), { ...order, ...byWord });
    });
  }

  /** Takes a fence that this node has no handle of, so that its launch, if it comes late, is refused. */
  private burn(ref: EngineRef): Handle {
    this.ctx.fences.raise(ref.replica, ref.fence);
    return this.ctx.handles.save(tombstone(ref, this.ctx.bootId), true);
  }

  /** The host goes down: every engine ends now, and nothing starts any more. */
  async stopAllForHost(): Promise<void> {
    this.hostStops = true;
    await stopForHost(this.ctx, this.exits);
  }

  /** Throws what a launch of this order would be refused with before it takes anything. */
  async check(order: MemberOrder): Promise<void> {
    await check(this.ctx, order);
  }

  inspect(order: StopOrder): InspectResult {
    const h = this.ctx.handles.get(order);
    return {
      known: h !== undefined,
      alive: h?.state === 'running' && isAlive(h.engine),
      pid: h?.engine?.pid ?? null,
      highest_fence: this.ctx.fences.highest(order.replica),
    };
  }

  /** Every engine that holds something here, for Hello and heartbeats. */
  reports(): LiveEngine[] {
    const held = this.ctx.handles.all().filter(h => h.state !== 'stopped');
    return held.map(h => reportOf(this.ctx, h));
  }

  /** Whether a pid belongs, or belonged, to one of this node's engines: then it isn't foreign. */
  ownsPid(pid: number): boolean {
    return this.ctx.handles.all().some(h => h.state !== 'stopped' && this.ctx.runtimes.of(h).tree.owns(pid));
  }

  /** Whether one of this node's engines was granted this GPU and isn't proven stopped. */
  holdsGpu(uuid: string): boolean {
    return this.ctx.handles.all().some(h => h.state !== 'stopped' && h.gpus.some(gpu => gpu.uuid === uuid));
  }

  /** Events that nobody has acknowledged, oldest first. */
  pending(): EngineEvent[] {
    return this.outbox.pending();
  }

  ack(ref: EngineRef & { seq: number }): void {
    this.outbox.ack(ref);
  }

  /** Hears of each new event when it is on disk; it stays pending until `ack`. */
  onEvent(listener: (event: EngineEvent) => void): void {
    this.endings.onEvent(listener);
  }

  /** Last lines of an engine's log, redacted, oldest first. Throws ENGINE_UNKNOWN. */
  tail(replica: string, query: TailQuery = {}): Promise<string[]> {
    return this.logs.tail(replica, query);
  }

  /** The same, then what comes, until its generation has ended. See LogKeeper. */
  follow(replica: string, query: TailQuery, signal: AbortSignal): AsyncIterable<LogPiece[]> {
    return this.logs.follow(replica, query, signal);
  }

  /** What a process of this node is, for an operator who is asked about it; null: there is none. */
  describe(pid: number): string | null {
    return readStat(pid) === null ? null : describePid(pid);
  }

  /** Stops watching. Engines, their shims and their logs go on. */
  close(): void {
    this.closing.abort();
    this.logs.close();
    this.space.close();
    this.health.close();
    this.exits.close();
  }

  private watch(h: Handle): void {
    this.exits.add(h);
    if (h.marks.was_ready) this.health.add(h);
  }
}

const notHere = (order: MemberOrder, what: string): LlmgwError =>
  new LlmgwError(
    'ENGINE_UNKNOWN',
    `replica ${order.replica}, fence ${order.fence}, rank ${order.rank} was not ${what} on this node`,
  );
