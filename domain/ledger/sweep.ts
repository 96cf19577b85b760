// The janitor's sweep: what Temporal positively says is closed is stopped, but never much at once (INV-5).
import type { ClosedMsg } from '../../contracts/messages.js';
import { listed } from '../placement/types.js';
import { dropEndpoint } from './endpoints.js';
import { endedUnheard } from './rebuild.js';
import { alarm, engineCount, type LedgerState, note } from './state.js';

/** A sweep that would stop more than this share of the engines, and more than so many, stops none. */
const SWEEP_SHARE = 0.1;
const SWEEP_MIN = 3;

/** A replica that a live run asks for is that run's to claim. */
export function closed(state: LedgerState, msg: ClosedMsg, now: number): void {
  if (state.rebuilding !== null) return;
  for (const c of msg.closed) endedUnheard(state, c.replica, now);
  const victims = msg.closed.flatMap(c =>
    Object.values(state.grants)
      .filter(g => g.replica === c.replica && g.gave_up === undefined)
      // A word that was on its way while a later run came: what that one was offered is its own to claim. Not when it is
      // that run which has ended: what it claimed was only heard later.
      .filter(
        g =>
          g.claimed_at === undefined ||
          g.claimed_at <= c.closed_at ||
          (c.run_id !== undefined && g.claimed_by === c.run_id),
      )
      // A start or an adoption that was refused is no word about the engine of a workflow that Temporal has lost.
      .filter(g => g.unclaimed === undefined || c.status !== 'FAILED')
      // Started before that run: it is no engine of its, and nothing is known of the one that started it.
      .filter(g => g.unclaimed === undefined || g.fence >= (c.started_at ?? 0))
      // The latest run of the id is closed, so all earlier ones are: what was granted before is theirs.
      .filter(g => g.first_run_id === c.first_run_id || g.fence <= c.closed_at)
      .filter(g => !state.waiting.some(w => w.replica === g.replica && w.first_run_id !== g.first_run_id))
      .map(grant => ({ grant, status: c.status })),
  );
  const engines = engineCount(victims.map(v => v.grant));
  const limit = Math.max(SWEEP_MIN, Math.floor(engineCount(Object.values(state.grants)) * SWEEP_SHARE));
  if (engines > limit) {
    // The rest of a refused sweep must not pass as a small one, when some are claimed or the word is said again.
    for (const { grant } of victims) grant.spared = true;
    const names = listed(victims.map(v => v.grant.replica).sort(), 6);
    const what =
      victims.length === 1
        ? `replica ${names}, which holds GPUs, was closed`
        : `${victims.length} replicas that hold GPUs were closed at once (${names})`;
    alarm(
      state,
      now,
      `${what}, with ${engines} engines: more than ${limit}, so none is stopped. They serve on; stop each replica by starting and cancelling it${victims.length === 1 ? '' : ', or terminate fewer at a time'}`,
      'sweep',
    );
    return;
  }
  for (const { grant, status } of victims) {
    if (grant.spared) continue;
    grant.gave_up = `the workflow of replica/${grant.replica} is ${status.toLowerCase()}`;
    dropEndpoint(state, grant.replica, grant.fence, now);
    note(state, now, `${grant.gave_up}: its engine is stopped (fence ${grant.fence})`);
  }
}
