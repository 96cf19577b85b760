// Engines that have been ready and now say they are dead. vLLM's API process can outlive its engine core and answer
// 503 for ever, or exit 0 five seconds later. 503 without a break for more than ten seconds is a failure: it is told,
// and the workflow's order ends the process (INV-5). No answer at all isn't judged here: that may be a busy engine; one
// that produces nothing either is found by the watch for hangs beside it.
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import { refOf } from '../state/handle.js';
import { aligned, type Context } from './context.js';
import type { FailureInput } from './failure.js';
import { HangWatch } from './hang.js';
import { httpStatus } from './probe.js';

/** vLLM's own watchdog ends the server within 5 s where it can; twice that is a server that stays. */
const DEAD_MS = 10_000;

interface Watched {
  ref: EngineRef;
  timer: NodeJS.Timeout | null;
  deadSince: number | null;
}

export class HealthWatch {
  private readonly watched = new Map<string, Watched>();
  private readonly hangs: HangWatch;

  constructor(
    private readonly ctx: Context,
    private readonly onDead: (ref: EngineRef, failure: FailureInput) => void,
  ) {
    this.hangs = new HangWatch(ctx, onDead);
  }

  add(ref: EngineRef): void {
    this.hangs.add(ref);
    const key = engineKeyOf(ref);
    if (this.watched.has(key)) return;
    const entry: Watched = { ref: refOf(ref), timer: null, deadSince: null };
    this.watched.set(key, entry);
    this.arm(entry);
  }

  private arm(entry: Watched): void {
    entry.timer = setTimeout(
      () => {
        this.look(entry).then(
          goOn => {
            if (goOn && this.watched.has(engineKeyOf(entry.ref))) this.arm(entry);
            else this.watched.delete(engineKeyOf(entry.ref));
          },
          error => {
            this.ctx.opts.log.warn({ ...entry.ref, err: error }, 'an engine could not be looked at');
            if (this.watched.has(engineKeyOf(entry.ref))) this.arm(entry);
          },
        );
      },
      aligned(this.periodOf(entry.ref)),
    );
    entry.timer.unref();
  }

  /** An engine whose health costs it a generation is asked as seldom as it says. */
  private periodOf(ref: EngineRef): number {
    const own = this.ctx.handles.get(ref)?.probe?.period_ms ?? 0;
    return Math.max(own, this.ctx.opts.healthIntervalMs);
  }

  /** false: nothing more to watch. */
  private async look(entry: Watched): Promise<boolean> {
    const handle = this.ctx.handles.get(entry.ref);
    if (handle?.state !== 'running' || handle.probe === null || handle.marks.failure_told) return false;
    const { health_url, timeout_ms } = handle.probe;
    const status = await httpStatus(health_url, this.ctx.closed, timeout_ms);
    if (status !== 503) {
      entry.deadSince = null;
      return true;
    }
    entry.deadSince ??= performance.now();
    const ms = performance.now() - entry.deadSince;
    if (ms < (this.ctx.opts.deadAfterMs ?? DEAD_MS)) return true;
    const now = this.ctx.handles.get(entry.ref);
    const over = now?.marks.failure_told === true || now?.marks.requested_stop != null;
    if (now?.state !== 'running' || over) return false;
    this.onDead(entry.ref, {
      exit: null,
      known: {
        class: 'retry',
        code: 'ENGINE_FAILED',
        sentence: `the engine says 503 on /health for ${Math.round(ms / 1000)} s: its core is dead, its API process (pid ${now.engine?.pid}) is not`,
      },
    });
    return false;
  }

  close(): void {
    for (const entry of this.watched.values()) if (entry.timer !== null) clearTimeout(entry.timer);
    this.watched.clear();
    this.hangs.close();
  }
}
