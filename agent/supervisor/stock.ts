// What an earlier agent left, found before any order is taken. A disk that can't be written now is no reason to leave
// the engines alone: what can be watched is, nothing new is prepared, and the rest is tried again until it is on disk.
import { engineKeyOf } from '../../contracts/ids.js';
import { isDiskError } from '../state/files.js';
import { type Handle, refOf } from '../state/handle.js';
import { type Context, loadSecrets, pause, update } from './context.js';
import type { Endings } from './endings.js';
import { recoverLost } from './lost.js';
import { installShim } from './shim.js';
import { recoverStart, running } from './start.js';

export class Stock {
  /** Why not all of it is dealt with; one sentence. */
  problem: string | null = null;
  /** Handles that are dealt with, as long as others aren't. */
  private readonly resumed = new Set<string>();

  constructor(
    private readonly ctx: Context,
    private readonly endings: Pick<Endings, 'rebooted'>,
    private readonly watch: (h: Handle) => void,
  ) {}

  async take(): Promise<void> {
    const { ctx } = this;
    let failed: unknown = null;
    const attempt = async (step: () => Promise<void> | void) => {
      try {
        await step();
      } catch (error) {
        if (!isDiskError(error)) throw error;
        failed ??= error;
      }
    };
    // A shim of this version, for the logs of engines that an older one started.
    await attempt(() => void installShim(ctx.opts.workDir));
    await attempt(() => recoverLost(ctx));
    const held = ctx.handles.all().filter(h => h.state !== 'stopped');
    await attempt(() => ctx.ports.releaseAllBut(new Set(held.map(engineKeyOf))));
    for (const handle of held.filter(h => !this.resumed.has(engineKeyOf(h)))) {
      await attempt(async () => {
        await this.resume(handle);
        this.resumed.add(engineKeyOf(handle));
      });
    }
    this.tell(failed);
    if (failed === null) this.resumed.clear();
    else void this.later();
  }

  private tell(failed: unknown): void {
    const { opts } = this.ctx;
    const before = this.problem;
    this.problem =
      failed === null
        ? null
        : `what an earlier agent left can't be recorded in work_dir (${(failed as Error).message}): engines go on, none starts`;
    if (before === this.problem) return;
    opts.condition?.('work_dir_unwritable', this.problem);
    if (this.problem !== null) opts.log.error({ err: failed }, this.problem);
  }

  private async later(): Promise<void> {
    const { closed, opts } = this.ctx;
    await pause(opts.healthIntervalMs, closed);
    if (closed.aborted) return;
    await this.take().catch(err => {
      opts.log.error({ err }, 'what an earlier agent left could not be found out');
    });
  }

  private async resume(handle: Handle): Promise<void> {
    const { ctx } = this;
    // First: what is found below may be told at once, with lines of its log (INV-10).
    await loadSecrets(ctx, handle);
    if (handle.boot_id !== ctx.bootId) {
      this.endings.rebooted(handle);
      return;
    }
    const found = handle.state === 'spawning' ? await recoverStart(ctx, handle) : handle;
    if (found === null) {
      update(ctx, handle, { state: 'prepared' });
      return;
    }
    if (found.state === 'running' || found.state === 'exited') running(ctx, found);
    if (found.state !== 'running') return;
    this.watch(found);
    // The first look is in watch(): one that ended meanwhile has been told of there.
    if (ctx.handles.get(found)?.state !== 'running') return;
    ctx.opts.log.info({ ...refOf(found), pid: found.engine?.pid }, 'engine adopted');
  }
}
