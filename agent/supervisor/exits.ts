// Notices that an engine has ended. The shim's exit record makes the folder's watch fire within milliseconds; the
// shim's own end does so where it is our child; a slow look at /proc catches what neither can tell (a killed shim).
import { type FSWatcher, watch } from 'node:fs';
import type { ExitStatus } from '../../contracts/engine.js';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import { type Handle, refOf } from '../state/handle.js';
import { aligned, type Context } from './context.js';
import { isAlive } from './proc.js';
import { readExit } from './shim.js';

/** Without a shim nobody writes a record: only looking tells. One line of /proc each time. */
const ORPHAN_MS = 100;
/** A shim that lives but has written nothing is about to: its engine ended milliseconds ago. */
const RECORD_MS = 20;
/** A shim that is stopped (SIGSTOP) or stuck on a full disk never writes: then the status is unknown. */
const RECORD_LIMIT_MS = 2_000;

export type Observed = { state: 'alive' | 'ending' } | { state: 'ended'; exit: ExitStatus };

/** Whether the engine of a running handle lives. */
export function observe(ctx: Context, handle: Handle): Observed {
  const exit = readExit(ctx.handles.runDir(handle));
  if (exit !== null) return { state: 'ended', exit };
  if (isAlive(handle.engine)) return { state: 'alive' };
  if (isAlive(handle.shim)) return { state: 'ending' };
  // Written between the first look and the shim's end?
  return { state: 'ended', exit: readExit(ctx.handles.runDir(handle)) ?? { code: null, signal: null } };
}

interface Watched {
  ref: EngineRef;
  watcher: FSWatcher | null;
  timer: NodeJS.Timeout | null;
  /** When the engine was first seen dead without a record. */
  endingSince: number | null;
  /** Why its end could not be recorded, as last logged. */
  problem: string | null;
}

export class ExitWatch {
  private readonly watched = new Map<string, Watched>();
  private readonly waiters = new Map<string, (() => void)[]>();

  constructor(
    private readonly ctx: Context,
    /** Must put the handle into `exited`; called once an engine. */
    private readonly onExit: (ref: EngineRef, exit: ExitStatus) => void,
  ) {}

  add(ref: EngineRef): void {
    const key = engineKeyOf(ref);
    if (this.watched.has(key)) return;
    const entry: Watched = { ref: refOf(ref), watcher: null, timer: null, endingSince: null, problem: null };
    this.watched.set(key, entry);
    try {
      entry.watcher = watch(this.ctx.handles.runDir(ref), { persistent: false }, (_, file) => {
        if (file === 'exit') this.check(ref);
      });
      entry.watcher.on('error', () => {});
    } catch {
      // inotify's limit is reached: the timer looks more often instead.
    }
    this.check(ref);
  }

  /** Looks now; the watch, the shim's end and the timer all come here. */
  check(ref: EngineRef): void {
    const entry = this.watched.get(engineKeyOf(ref));
    if (entry === undefined) return;
    const handle = this.ctx.handles.get(ref);
    if (handle?.state !== 'running') {
      this.drop(ref);
      return;
    }
    const seen = this.look(entry, handle);
    if (seen.state === 'ended') {
      try {
        this.onExit(entry.ref, seen.exit);
      } catch (error) {
        // A full disk, most likely: the engine stays `running` on disk and is looked at again. Said once, not at
        // every look: the log may lie on that disk.
        const problem = error instanceof Error ? error.message : String(error);
        if (entry.problem !== problem) {
          this.ctx.opts.log.error({ ...entry.ref, err: error }, 'the end of an engine could not be recorded');
        }
        entry.problem = problem;
        this.arm(entry, this.ctx.opts.healthIntervalMs);
        return;
      }
      this.drop(ref);
      return;
    }
    const blind = entry.watcher === null || !isAlive(handle.shim);
    const usual = blind ? ORPHAN_MS : aligned(this.ctx.opts.healthIntervalMs);
    this.arm(entry, seen.state === 'ending' ? RECORD_MS : usual);
  }

  private look(entry: Watched, handle: Handle): Observed {
    const seen = observe(this.ctx, handle);
    if (seen.state !== 'ending') return seen;
    entry.endingSince ??= performance.now();
    if (performance.now() - entry.endingSince < RECORD_LIMIT_MS) return seen;
    return { state: 'ended', exit: { code: null, signal: null } };
  }

  private arm(entry: Watched, ms: number): void {
    if (entry.timer !== null) clearTimeout(entry.timer);
    entry.timer = setTimeout(() => this.check(entry.ref), ms);
    entry.timer.unref();
  }

  /** Resolves when the engine has ended and that is recorded; at once if so already. */
  ended(ref: EngineRef): Promise<void> {
    const key = engineKeyOf(ref);
    if (!this.watched.has(key)) return Promise.resolve();
    return new Promise(resolve => {
      this.waiters.set(key, [...(this.waiters.get(key) ?? []), resolve]);
    });
  }

  private drop(ref: EngineRef): void {
    const key = engineKeyOf(ref);
    const entry = this.watched.get(key);
    if (entry === undefined) return;
    entry.watcher?.close();
    if (entry.timer !== null) clearTimeout(entry.timer);
    this.watched.delete(key);
    for (const resolve of this.waiters.get(key) ?? []) resolve();
    this.waiters.delete(key);
  }

  /** Stops looking; engines aren't touched. */
  close(): void {
    for (const { ref } of [...this.watched.values()]) this.drop(ref);
  }
}
