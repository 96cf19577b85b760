// A ledger that began anew, or was reset, knows less than the fleet: it asks everybody what they hold and grants nothing
// meanwhile (INV-1). Engines that no replica speaks for are unclaimed: kept, routed, never stopped for that (INV-5).
import type { AssertMsg, Survey } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { common, maskOf } from '../slots.js';
import { ackReply, type LedgerEffect } from './effects.js';
import { newVersion, setEndpoint } from './endpoints.js';
import { alarm, type Grant, heldOn, type LedgerState, note } from './state.js';

/** Signals that wait for their delivery at a time: one workflow may have 2,000. */
const ASK_AT_ONCE = 200;

/** `since`: hellos from then on count; by default from now. */
export function beginRebuild(
  state: LedgerState,
  { why, since }: { why: string; since?: number },
  now: number,
  effects: LedgerEffect[],
): void {
  state.rebuilding = { since: now, why, waits: {}, ask: [], until: null };
  state.began_at = since ?? now;
  note(state, now, `rebuilding: ${why}`);
  effects.push({ do: 'survey' });
}

export function surveyed(state: LedgerState, survey: Survey, now: number, effects: LedgerEffect[]): void {
  const { rebuilding } = state;
  if (rebuilding === null || rebuilding.until !== null) return;
  rebuilding.until = now + TIMING.rebuildPatience;
  for (const r of survey.replicas) rebuilding.waits[r.name] = r.node;
  rebuilding.ask = survey.replicas.map(r => r.name);
  state.expected = survey.nodes.filter(n => state.nodes[n] === undefined);
  if (survey.nodes.length > 0) effects.push({ do: 'report', nodes: survey.nodes });
  askMore(state, effects);
  finishIfWhole(state, now);
}

function askMore(state: LedgerState, effects: LedgerEffect[]): void {
  const { rebuilding } = state;
  if (rebuilding === null) return;
  const open = Object.keys(rebuilding.waits).length - rebuilding.ask.length;
  for (const replica of rebuilding.ask.splice(0, Math.max(0, ASK_AT_ONCE - open)))
    effects.push({ do: 'reply', replica, reply: { kind: 'assert', key: '' } });
}

/** A replica has spoken, or turned out to be closed. */
export function heardOf(state: LedgerState, replica: string, now: number, effects: LedgerEffect[]): void {
  delete state.silent[replica];
  const { rebuilding } = state;
  if (rebuilding === null || !(replica in rebuilding.waits)) return;
  delete rebuilding.waits[replica];
  rebuilding.ask = rebuilding.ask.filter(name => name !== replica);
  askMore(state, effects);
  finishIfWhole(state, now);
}

/** When patience ends; null: not rebuilding, or the survey isn't back. */
export const rebuildEnds = (state: LedgerState): number | null => state.rebuilding?.until ?? null;

export function rebuildLook(state: LedgerState, now: number): void {
  const { rebuilding } = state;
  if (rebuilding === null || rebuilding.until === null || now < rebuilding.until) return;
  for (const [replica, node] of Object.entries(rebuilding.waits)) {
    if (node !== null) state.silent[replica] = node;
    alarm(
      state,
      now,
      `replica/${replica} did not say what it holds within ${TIMING.rebuildPatience / 1000} s${node === null ? '' : `: nothing is granted on ${node} until it does`}`,
    );
  }
  rebuilding.waits = {};
  finishIfWhole(state, now);
}

function finishIfWhole(state: LedgerState, now: number): void {
  const { rebuilding } = state;
  if (rebuilding === null || rebuilding.until === null) return;
  if (Object.keys(rebuilding.waits).length > 0) return;
  state.rebuilding = null;
  // Newer than whatever routers hold of the ledger before.
  newVersion(state, now);
  note(state, now, `whole again: ${Object.keys(state.grants).length} grants are known`);
}

/** What a replica says that it holds, against what the ledger knows. */
export function asserted(state: LedgerState, msg: AssertMsg, now: number, effects: LedgerEffect[]): void {
  const reply = believe(state, msg, now);
  effects.push({ do: 'reply', replica: msg.replica, reply: reply ?? ackReply(state, msg.key, now) });
  heardOf(state, msg.replica, now, effects);
}

/** null: believed. Else what it must deal with: a newer engine of its own, or one that lost its GPUs to others. */
function believe(state: LedgerState, msg: AssertMsg, now: number) {
  const { replica, fence, members } = msg;
  const own = Object.values(state.grants).filter(g => g.replica === replica);
  if (fence === null || members.length === 0) {
    if (state.rebuilding !== null) for (const g of own) giveUp(g, 'its replica says that it holds nothing');
    return null;
  }
  state.last_fence = Math.max(state.last_fence, fence);
  const newest = own
    .filter(g => g.fence > fence && g.gave_up === undefined)
    .sort((a, b) => b.fence - a.fence)[0];
  if (newest !== undefined) {
    return { kind: 'stale' as const, key: msg.key, fence: newest.fence, members: newest.members };
  }
  for (const g of own) if (g.fence < fence) giveUp(g, `its replica has a newer engine (fence ${fence})`);
  const known = own.find(g => g.fence === fence);
  const taken = members.some(m => common(heldOn(state, m.node, replica), maskOf(m.slots)) !== 0);
  // Its GPUs are another's: it may not go on, and its stop is proven before it is given others (INV-1).
  if (known === undefined && taken) return { kind: 'stale' as const, key: msg.key, fence, members };
  const grant: Grant = {
    key: known?.key ?? msg.key,
    replica,
    run_id: msg.run_id,
    continued_run_id: msg.continued_run_id,
    first_run_id: msg.first_run_id,
    fence,
    at: known?.at ?? now,
    why: msg.why,
    members,
    left: {},
    delivered: true,
  };
  if (known?.endpoint_key !== undefined) grant.endpoint_key = known.endpoint_key;
  if (known?.ready_at !== undefined) grant.ready_at = known.ready_at;
  state.grants[fence] = grant;
  if (known === undefined) note(state, now, `${replica} holds ${msg.why} (fence ${fence}), by its own word`);
  if (msg.endpoint !== null) setEndpoint(state, grant, msg.endpoint, now);
  return null;
}

function giveUp(g: Grant, why: string): void {
  g.gave_up ??= why;
}
