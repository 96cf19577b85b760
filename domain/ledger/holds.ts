// How a hold ends: with its replica's proof, or by the ledger's own stop order for what its replica gave up (INV-1,
// INV-2, INV-5: only on positive knowledge). A gang's members end one by one, each with a proof of its own.
import type { StopProof } from '../../contracts/engine.js';
import { TIMING } from '../../contracts/timing.js';
import type { LedgerEffect } from './effects.js';
import { dropEndpoint, membersChanged } from './endpoints.js';
import {
  AT_HELLO,
  type Grant,
  isOf,
  type LedgerState,
  note,
  type RunIds,
  stopReason,
  UNDER_WAY,
} from './state.js';

/** Of one GPU: enough to say who holds it. */
const LEAK_PIDS = 16;

/**
 * `never_started` is a run's word on its own orders. Of what was routed, or granted to a run that it was reset from (whose
 * grants Temporal tells it again), it can't know that: such a hold stays (INV-1, INV-5).
 */
export function canEnd(grant: Grant, proof: StopProof | null, by: RunIds | null): boolean {
  if (proof?.proof !== 'never_started') return true;
  return grant.ready_at === undefined && (by === null || isOf(grant, by));
}

/** What the ledger may stop from here on, all of it: what is known of it is about all its members. */
export function giveUp(state: LedgerState, g: Grant, why: string, now: number): void {
  if (g.gave_up !== undefined) return;
  g.gave_up = why;
  dropEndpoint(state, g.replica, g.fence, now);
  note(state, now, `${g.replica} (fence ${g.fence}): ${why}`);
}

/**
 * A node's word of its own member ends nothing that runs on another one, nor what another one tells of later (INV-5, INV-8).
 */
export function giveUpOn(state: LedgerState, g: Grant, node: string, why: string, now: number): void {
  if ((g.nodes ?? 1) === 1) {
    giveUp(state, g, why, now);
    return;
  }
  if (stopReason(g, node) !== undefined) return;
  g.ended = { ...g.ended, [node]: why };
  if (state.endpoints[g.replica]?.node === node) dropEndpoint(state, g.replica, g.fence, now);
  note(state, now, `${g.replica} (fence ${g.fence}) on ${node}: ${why}`);
}

/** What a workflow holds for a replica serves: what it held before is given up where its nodes are there (INV-5). */
export function supersede(state: LedgerState, { replica, fence }: Grant, now: number): void {
  for (const g of Object.values(state.grants)) {
    if (g.replica !== replica || g.fence >= fence) continue;
    if (!g.members.some(m => state.nodes[m.node]?.facts.state === 'connected')) continue;
    giveUp(state, g, `its replica has a newer engine (fence ${fence})`, now);
  }
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
  // Told again, or of a member that another word has ended: nothing is held there any more.
  if (!grant?.members.some(m => m.node === node)) return;
  const alone = grant.gave_up === undefined && grant.ended?.[node] !== undefined;
  if (!alone) dropEndpoint(state, grant.replica, fence, now);
  const next = endHold(grant, node, proof);
  if (next === null) {
    delete state.grants[fence];
    return;
  }
  const left = next.left[node];
  state.grants[fence] = next;
  membersChanged(state, next, now);
  if (left === undefined) return;
  if (!alone) next.gave_up ??= 'its replica could not prove the stop';
  // What is leaked will be so for the next order too, until something on the node has changed.
  if (proof !== null) next.settling = { ...next.settling, [node]: AT_HELLO };
  note(state, now, `hold of ${grant.replica} left on ${node}: ${left} (fence ${fence})`);
}

/** Orders the stop of what was given up, on each node that is there. Nothing is settled by a ledger that isn't whole. */
export function settle(state: LedgerState, now: number, effects: LedgerEffect[]): void {
  if (state.rebuilding !== null) return;
  for (const g of Object.values(state.grants)) {
    for (const m of g.members) {
      const why = stopReason(g, m.node);
      if (why === undefined || !dueAt(state, g, m.node, now)) continue;
      g.settling = { ...g.settling, [m.node]: UNDER_WAY };
      const reason = `by the ledger: ${why}`.slice(0, 300);
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
    .flatMap(g => g.members.filter(m => stopReason(g, m.node) !== undefined).map(m => settlingOf(g, m.node)))
    .filter(t => t.at > 0 && t.at !== AT_HELLO && state.nodes[t.node]?.facts.state === 'connected')
    .map(t => t.at);
  return times.length === 0 ? null : Math.min(...times);
}

const settlingOf = (g: Grant, node: string) => ({ node, at: g.settling?.[node] ?? 0 });

export function settled(
  state: LedgerState,
  fence: number,
  node: string,
  proof: StopProof,
  now: number,
): void {
  const grant = state.grants[fence];
  if (!grant?.members.some(m => m.node === node)) return;
  const why = stopReason(grant, node) ?? 'its replica let it go';
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
  if (!grant?.members.some(m => m.node === node)) return;
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

/** A member's hold ends only with proof (INV-2); without it the hold is kept and says why. */
function endHold(grant: Grant, nodeId: string, proof: StopProof | null): Grant | null {
  if (proof === null) return { ...grant, left: { ...grant.left, [nodeId]: 'the stop is not proven' } };
  // The tree is gone and GPUs are not: leaked, visible with the pid, not offered.
  if (proof.leaked.length > 0) {
    // A process more or less is no other leak; the list is bounded as the state is (INV-11).
    const gpus = proof.leaked.map(l => ({ ...l, pids: l.pids.slice(0, LEAK_PIDS) }));
    const leak = { since: grant.leaks?.[nodeId]?.since ?? proof.at, gpus };
    const left = { ...grant.left, [nodeId]: leakText(proof) };
    return { ...grant, left, leaks: { ...grant.leaks, [nodeId]: leak } };
  }
  return withoutMember(grant, nodeId);
}

/** The grant without its member there; null: it was the last one. */
export function withoutMember(grant: Grant, nodeId: string): Grant | null {
  const members = grant.members.filter(m => m.node !== nodeId);
  if (members.length === 0) return null;
  const next: Grant = { ...grant, members, left: dropped(grant.left, nodeId) };
  // Should its node come back with it after all, it is another order that stops it.
  if (next.settling !== undefined) next.settling = dropped(next.settling, nodeId);
  if (next.leaks !== undefined) next.leaks = dropped(next.leaks, nodeId);
  return next;
}

function dropped<T>(record: Record<string, T>, key: string): Record<string, T> {
  const { [key]: _, ...rest } = record;
  return rest;
}

const leakText = (proof: StopProof): string =>
  `leaked: ${proof.leaked.map(l => `${l.gpu}${l.pids.length === 0 ? '' : ` by pid ${l.pids.join(', ')}`}`).join('; ')}`;
