// Whether work_dir has room. On a full disk engines go on and their state on disk stays whole (state/files.ts), but
// nothing new starts and no exit can be told of: an operator must see that before the next order finds it out.
import { statfs } from 'node:fs/promises';
import { aligned, type Context } from './context.js';

/** Less than this is full: logs take more between two looks. Of a small file system, a hundredth. */
const LEAST = 16 * 1_048_576;
/** Looks are this many times health_interval apart: a disk fills more slowly than an engine dies. */
const SELDOM = 5;

export class SpaceWatch {
  private timer: NodeJS.Timeout | null = null;
  private full = false;

  constructor(private readonly ctx: Context) {}

  start(): void {
    if (this.ctx.closed.aborted) return;
    this.timer = setTimeout(
      () => void this.look().then(() => this.start()),
      aligned(SELDOM * this.ctx.opts.healthIntervalMs),
    );
    this.timer.unref();
  }

  private async look(): Promise<void> {
    const { opts } = this.ctx;
    try {
      const fs = await statfs(opts.workDir);
      // What is kept for root counts as free for nobody: as root one sees it run out before it has.
      const free = fs.bavail * fs.bsize;
      const full = free < Math.min(LEAST, (fs.blocks * fs.bsize) / 100);
      if (full === this.full) return;
      this.full = full;
      const sentence = `no space in work_dir: ${opts.workDir} is full; engines go on, none starts`;
      opts.condition?.('disk_full', full ? sentence : null);
      if (full) opts.log.warn({ free }, sentence);
    } catch {
      // Unreadable for a moment, as a network file system is: the next look tells.
    }
  }

  close(): void {
    if (this.timer !== null) clearTimeout(this.timer);
  }
}
