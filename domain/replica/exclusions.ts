// Nodes that are left out of the next placement. What is missing on a node (model, engine, flag, secret) for a spec that
// never served stays missing until the spec changes; for one that has served, it may be a file system that is away for a
// moment. That and everything else (a node that didn't take the order, a GPU in use, a fault) passes, so it is
// left out for a while only: a replica never fails or waits for ever because of a bad moment.
import type { Excluded } from '../../contracts/messages.js';

const FOR_GOOD: ReadonlySet<string> = new Set([
  'ENGINE_MISSING',
  'MODEL_MISSING',
  'SECRET_MISSING',
  'FLAG_UNKNOWN',
  'ENGINE_UNFIT',
]);

/** Doubles with each time in a row: 30 s, 1 min, 2 min, 4 min, 5 min. The first lets a short outage pass. */
const FIRST_MS = 30_000;
const LONGEST_MS = 300_000;

export function excluding(
  list: Excluded[],
  node: string,
  code: string,
  reason: string,
  everReady: boolean,
  now: number,
): Excluded[] {
  const times = (list.find(e => e.node === node)?.times ?? 0) + 1;
  const until =
    FOR_GOOD.has(code) && !everReady ? null : now + Math.min(LONGEST_MS, FIRST_MS * 2 ** (times - 1));
  return [...list.filter(e => e.node !== node), { node, reason, until, times }];
}

/** What has passed is kept with `until` in the past, for its count; placement and timers look at `until`. */
export const stillExcluded = (list: Excluded[], now: number): Excluded[] =>
  list.filter(e => e.until === null || e.until > now - LONGEST_MS);

/** ms until the next exclusion passes; null: none will. */
export function excludeTimer(list: Excluded[], now: number): number | null {
  const ends = list.map(e => e.until).filter(u => u !== null && u > now) as number[];
  return ends.length === 0 ? null : Math.min(...ends) - now;
}
