// How a hold ends: with its replica's proof, or by the ledger's own stop order for what its replica gave up (INV-1,
// INV-2, INV-5: only on positive knowledge, and never a sweep of many at once).
import type { StopProof } from '../../contracts/engine.js';
import type { ClosedMsg } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import type { LedgerEffect } from './effects.js';
import { dropEndpoint } from './endpoints.js';
import {
  AT_HELLO,
  alarm,
  endHold,
  type Grant,
  isOf,
  type LedgerState,
  note,
  type RunIds,
  UNDER_WAY,
} from './state.js';

/** INV-5: a sweep that would stop more than this share, and more than so many, stops none. */
const SWEEP_SHARE = 0.1;
const SWEEP_MIN = 3;

/**
 * `never_started` is a run's word on its own orders. Of what was routed, or granted to a run that it was reset from (whose
 * grants Temporal tells it again), it can't know that: such a hold stays (INV-1, INV-5).
 */
export function canEnd(grant: Grant, proof: StopProof | null, by: RunIds | null): boolean {
  if (proof?.proof !== 'never_started') return true;
  return grant.ready_at === undefined && (by === null || isOf(grant, by));
}

/** `proof` null: its replica gives it up as it is, and the ledger stops it when the node is there. */
export function endMember(
  state: LedgerState,
  fence: number,
  node: string,
  proof: StopProof | null,
  now: number,
): void {
  const grant = state.grants[fence];
  if (grant === undefined) return;
  dropEndpoint(state, grant.replica, fence, now);
  const next = endHold(grant, node, proof);
  if (next === null) {
    delete state.grants[fence];
    return;
  }
  const left = next.left[node];
  state.grants[fence] = next;
  if (left === undefined) return;
  next.gave_up ??= 'its replica could not prove the stop';
  // What is leaked will be so for the next order too, until something on the node has changed.
  if (proof !== null) next.settling = { ...next.settling, [node]: AT_HELLO };
  note(state, now, `hold of ${grant.replica} left on ${node}: ${left} (fence ${fence})`);
}

/** Orders the stop of what was given up, on each node that is there. Nothing is settled by a ledger that isn't whole. */
export function settle(state: LedgerState, now: number, effects: LedgerEffect[]): void {
  if (state.rebuilding !== null) return;
  for (const g of Object.values(state.grants)) {
    if (g.gave_up === undefined) continue;
    for (const m of g.members) {
      if (!dueAt(state, g, m.node, now)) continue;
      g.settling = { ...g.settling, [m.node]: UNDER_WAY };
      const reason = `by the ledger: ${g.gave_up}`.slice(0, 300);
      effects.push({
        do: 'stop',
        node: m.node,
        order: { replica: g.replica, fence: g.fence, rank: m.rank, reason },
      });
    }
  }
}

function dueAt(state: LedgerState, g: Grant, node: string, now: number): boolean {
  const at = g.settling?.[node] ?? 0;
  return state.nodes[node]?.facts.state === 'connected' && at !== UNDER_WAY && now >= at;
}

/** When `settle` must be called by itself; null: nothing waits for a time. */
export function nextSettle(state: LedgerState): number | null {
  if (state.rebuilding !== null) return null;
  const times = Object.values(state.grants)
    .filter(g => g.gave_up !== undefined)
    .flatMap(g => g.members.map(m => ({ node: m.node, at: g.settling?.[m.node] ?? 0 })))
    .filter(t => t.at > 0 && t.at !== AT_HELLO && state.nodes[t.node]?.facts.state === 'connected')
    .map(t => t.at);
  return times.length === 0 ? null : Math.min(...times);
}

export function settled(
  state: LedgerState,
  fence: number,
  node: string,
  proof: StopProof,
  now: number,
): void {
  const grant = state.grants[fence];
  if (grant === undefined) return;
  const why = grant.gave_up ?? 'its replica let it go';
  endMember(state, fence, node, proof, now);
  if (proof.leaked.length === 0)
    note(state, now, `stopped ${grant.replica} on ${node} (fence ${fence}, proof ${proof.proof}): ${why}`);
}

export function settleFailed(
  state: LedgerState,
  fence: number,
  node: string,
  sentence: string,
  now: number,
): void {
  const grant = state.grants[fence];
  if (grant === undefined) return;
  grant.settling = { ...grant.settling, [node]: now + TIMING.settleAgain };
  if (grant.left[node] === sentence) return;
  grant.left = { ...grant.left, [node]: sentence };
  note(state, now, `hold of ${grant.replica} left on ${node}: ${sentence} (fence ${fence})`);
}

/** Orders that were under way when the run before ended are given again: run twice is run once. */
export function forgetUnderWay(state: LedgerState): void {
  for (const g of Object.values(state.grants)) {
    if (g.settling === undefined) continue;
    g.settling = Object.fromEntries(Object.entries(g.settling).filter(([, at]) => at !== UNDER_WAY));
  }
}

/** The janitor's sweep. A replica that a live run asks for is that run's to claim. */
export function closed(state: LedgerState, msg: ClosedMsg, now: number): void {
  if (state.rebuilding !== null) return;
  for (const c of msg.closed) delete state.silent[c.replica];
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
  const limit = Math.max(SWEEP_MIN, Math.floor(Object.keys(state.grants).length * SWEEP_SHARE));
  if (victims.length > limit) {
    // The rest of a refused sweep must not pass as a small one, when some are claimed or the word is said again.
    for (const { grant } of victims) grant.spared = true;
    const names = victims.map(v => v.grant.replica).sort();
    const shown =
      names.length > 5 ? `${names.slice(0, 5).join(', ')} and ${names.length - 5} more` : names.join(', ');
    alarm(
      state,
      now,
      `${victims.length} replicas that hold GPUs were closed at once (${shown}): more than ${limit}, so none is stopped. Their engines serve on; stop each by starting and cancelling it, or terminate fewer at a time`,
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
