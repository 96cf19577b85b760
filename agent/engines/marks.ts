// How far a load is, from lines of a log that mark its stages. The shares are rough: they order the stages, they don't
// predict times.
import type { Stage } from './types.js';

/** `from` to `to`: the part of the load, percent, over which a line's own percentage (group 1) runs. */
export interface Mark {
  match: RegExp;
  stage: string;
  from: number;
  to?: number;
}

/** What `line` says of the load; null when it says nothing of it. */
export function stageOf(marks: Mark[], line: string): Stage | null {
  for (const { match, stage, from, to } of marks) {
    const found = match.exec(line);
    if (found === null) continue;
    const share = found[1] === undefined || to === undefined ? 0 : Math.min(100, Number(found[1])) / 100;
    const percent = Math.round(from + share * ((to ?? from) - from));
    const eta = to === undefined ? null : barEta(line);
    return { stage, percent, ...(eta === null ? {} : { eta_ms: eta }) };
  }
  return null;
}

/** What is left by a progress bar of tqdm: `[00:13<01:11, 2.87s/it]`; null: it doesn't know yet (`?`). */
export function barEta(line: string): number | null {
  const found = /\[[\d:]{4,9}<(?:(\d{1,3}):)?(\d{1,2}):(\d\d)[,\]]/.exec(line);
  if (found === null) return null;
  const [hours, minutes, seconds] = [found[1] ?? '0', found[2], found[3]].map(Number);
  return ((hours! * 60 + minutes!) * 60 + seconds!) * 1_000;
}
