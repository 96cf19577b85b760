// Folders of engines that are proven stopped and whose events are acknowledged: kept for their logs like evidence is
// (first 3 and last 5 generations of a replica), and at most this many on a node.
import type { Handle } from '../state/handle.js';
import type { Context } from './context.js';
import { survivors } from './failure.js';

const MAX_STOPPED = 128;

export function pruneRuns(ctx: Context): void {
  const all = ctx.handles.all();
  const nameOf = (h: Handle) => `${h.fence}-${h.rank}`;
  const done = all
    // One with leaked GPUs is what a later proof goes by.
    .filter(h => h.state === 'stopped' && h.events.length === 0 && h.proof?.leaked.length === 0)
    .sort((a, b) => b.created_at.localeCompare(a.created_at));
  done.forEach((h, i) => {
    const siblings = all.filter(x => x.replica === h.replica).map(nameOf);
    // The highest fence is in its own file, so that a removed folder makes no room for an old order.
    if (i >= MAX_STOPPED || !survivors(siblings).has(nameOf(h))) {
      ctx.handles.remove(h);
      ctx.runtimes.forget(h);
    }
  });
}
