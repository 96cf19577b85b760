// The highest fence seen of each replica, on disk for good: an order that was delayed, retried or replayed must not
// start or stop what a newer one owns (INV-6). One small file a replica; what started is in a handle too, so that a
// file that a loss of power took is made good from there.
import path from 'node:path';
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';
import type { EngineRef } from '../../contracts/ids.js';
import { isDiskError, makeDir, readText, writeAtomic } from './files.js';

const FenceFile = z.object({
  highest: z.number().int(),
  /** Rank → hash of the order that carried the highest fence. */
  orders: z.record(z.string(), z.string()),
});
type FenceFile = z.infer<typeof FenceFile>;

export class FenceStore {
  private readonly cache = new Map<string, FenceFile | null>();
  private readonly dir: string;

  constructor(workDir: string, started: (EngineRef & { order_hash: string })[]) {
    this.dir = path.join(workDir, 'fences');
    makeDir(this.dir);
    for (const h of started) {
      const seen = this.read(h.replica);
      if (seen === null || seen.highest < h.fence) {
        this.makeGood(h.replica, { highest: h.fence, orders: { [h.rank]: h.order_hash } });
      } else if (seen.highest === h.fence && h.order_hash !== '' && seen.orders[h.rank] !== h.order_hash) {
        // The agent died while an engine was bound to another order: its handle is written first, and is right.
        this.makeGood(h.replica, { ...seen, orders: { ...seen.orders, [h.rank]: h.order_hash } });
      }
    }
  }

  /** What the handles say holds for this agent also when the disk can't take it; the next one finds it there again. */
  private makeGood(replica: string, value: FenceFile): void {
    this.cache.set(replica, value);
    try {
      this.write(replica, value);
    } catch (error) {
      if (!isDiskError(error)) throw error;
    }
  }

  /** null: this node has never had an order for that replica. */
  highest(replica: string): number | null {
    return this.read(replica)?.highest ?? null;
  }

  /** Throws STALE_FENCE or FENCE_CONFLICT; otherwise the order is on disk when this returns. */
  admit(ref: EngineRef, hash: string): void {
    const seen = this.read(ref.replica);
    const rank = String(ref.rank);
    if (seen !== null && ref.fence < seen.highest) throw staleFence(ref, seen.highest);
    if (seen !== null && ref.fence === seen.highest) {
      const known = seen.orders[rank];
      if (known === hash) return;
      if (known !== undefined) {
        throw new LlmgwError(
          'FENCE_CONFLICT',
          `replica ${ref.replica}, fence ${ref.fence}, rank ${ref.rank}: this fence came before with another order`,
        );
      }
    }
    const orders = seen?.highest === ref.fence ? { ...seen.orders, [rank]: hash } : { [rank]: hash };
    this.write(ref.replica, { highest: ref.fence, orders });
  }

  /** The engine of the highest fence goes on under another order: from now on the one that it had is refused. */
  rebind(ref: EngineRef, hash: string): void {
    const seen = this.read(ref.replica);
    const others = seen?.highest === ref.fence ? seen.orders : {};
    this.write(ref.replica, { highest: ref.fence, orders: { ...others, [ref.rank]: hash } });
  }

  /** After a stop of a fence that never ran here: no older order may come after it. */
  raise(replica: string, fence: number): void {
    if ((this.highest(replica) ?? -1) < fence) this.write(replica, { highest: fence, orders: {} });
  }

  private read(replica: string): FenceFile | null {
    const cached = this.cache.get(replica);
    if (cached !== undefined) return cached;
    const text = readText(this.file(replica));
    const value = text === null ? null : parse(text);
    this.cache.set(replica, value);
    return value;
  }

  private write(replica: string, value: FenceFile): void {
    // Somebody may have removed the folder while the agent runs.
    makeDir(this.dir);
    writeAtomic(this.file(replica), `${JSON.stringify(value)}\n`);
    this.cache.set(replica, value);
  }

  private file(replica: string): string {
    return path.join(this.dir, `${replica}.json`);
  }
}

function parse(text: string): FenceFile | null {
  try {
    return FenceFile.parse(JSON.parse(text));
  } catch {
    return null;
  }
}

export const staleFence = (ref: EngineRef, highest: number): LlmgwError =>
  new LlmgwError(
    'STALE_FENCE',
    `replica ${ref.replica}: the order carries fence ${ref.fence}, this node has seen ${highest}`,
  );
