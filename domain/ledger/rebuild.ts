// A ledger that began anew, or was reset, knows less than the fleet: it asks everybody what they hold and grants nothing
// meanwhile (INV-1). Engines that no replica speaks for are unclaimed: kept, routed, never stopped for that (INV-5).
import type { StopProof } from '../../contracts/engine.js';
import type { AssertMsg, Survey } from '../../contracts/messages.js';
import type { Endpoint } from '../../contracts/routes.js';
import { TIMING } from '../../contracts/timing.js';
import { common, maskOf } from '../slots.js';
import { ackReply, type LedgerEffect } from './effects.js';
import {
  dropEndpoint,
  holdTable,
  isLatestEndpoint,
  membersChanged,
  newVersion,
  setEndpoint,
} from './endpoints.js';
import { giveUp } from './holds.js';
import { isOvertaken, offerOf } from './reserve.js';
import { alarm, type Grant, heldOn, isBeingStopped, isOf, type LedgerState, nodesOf, note } from './state.js';

/** Signals that wait for their delivery at a time: one workflow may have 2,000. */
const ASK_AT_ONCE = 200;
/** A replica that didn't answer is asked again: it may be closed by now, and its node is blocked for it (INV-9). */
const ASK_SILENT_MS = 300_000;

/** `since`: hellos from then on count; by default from now. */
export function beginRebuild(
  state: LedgerState,
  { why, since }: { why: string; since?: number },
  now: number,
  effects: LedgerEffect[],
): void {
  // A second control plane that has seen the same reset: all over again would forget the hellos said since.
  if (state.rebuilt === why) return;
  state.rebuilt = why;
  state.rebuilding = { since: now, why, waits: {}, ask: [], until: null };
  state.began_at = since ?? now;
  note(state, now, `rebuilding: ${why}`);
  effects.push({ do: 'survey' });
}

export function surveyed(state: LedgerState, survey: Survey, now: number, effects: LedgerEffect[]): void {
  const { rebuilding } = state;
  if (rebuilding === null || rebuilding.until !== null) return;
  rebuilding.until = now + TIMING.rebuildPatience;
  state.bare = survey.replicas.length === 0;
  for (const r of survey.replicas) rebuilding.waits[r.name] = r.node;
  rebuilding.ask = Object.keys(rebuilding.waits);
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

/**
 * A replica has said what it holds, or turned out to be closed. That it asks for GPUs is no such word: it may have asked the
 * ledger before this one, been granted them, and the message come once more (INV-1).
 */
export function heardOf(state: LedgerState, replica: string, now: number, effects: LedgerEffect[]): void {
  delete state.silent[replica];
  const { rebuilding } = state;
  if (rebuilding === null || !(replica in rebuilding.waits)) return;
  delete rebuilding.waits[replica];
  rebuilding.ask = rebuilding.ask.filter(name => name !== replica);
  askMore(state, effects);
  finishIfWhole(state, now);
}

/** It ended before it said what it holds. What it ordered until then may have begun after its nodes' hellos (INV-1). */
export function endedUnheard(state: LedgerState, replica: string, now: number): void {
  const memo = state.silent[replica] ?? state.rebuilding?.waits[replica];
  delete state.silent[replica];
  if (memo != null) doubt(state, nodesOf(memo), now);
}

/**
 * What is given up without proof, of a grant that an earlier ledger gave: nothing holds it here, and which GPUs it has only
 * its node can say (INV-1).
 */
export function leftUnknown(
  state: LedgerState,
  fence: number,
  members: { node: string; proof: StopProof | null }[],
  now: number,
): void {
  if (fence >= state.began_at) return;
  const open = members.filter(m => m.proof === null || m.proof.leaked.length > 0);
  doubt(
    state,
    open.map(m => m.node),
    now,
  );
}

/** Nothing is granted on these nodes until their next hellos, which control planes say again for those that are there. */
function doubt(state: LedgerState, nodes: string[], now: number): void {
  if (nodes.length === 0) return;
  state.doubted = { ...state.doubted, ...Object.fromEntries(nodes.map(node => [node, now])) };
}

/** When patience ends; null: not rebuilding, or the survey isn't back. */
export const rebuildEnds = (state: LedgerState): number | null => state.rebuilding?.until ?? null;

/** When those that never answered are asked again; null: there are none. */
export const nextAsk = (state: LedgerState): number | null =>
  state.rebuilding !== null || Object.keys(state.silent).length === 0
    ? null
    : (state.silent_asked ?? 0) + ASK_SILENT_MS;

export function rebuildLook(state: LedgerState, now: number, effects: LedgerEffect[]): void {
  const { rebuilding } = state;
  const ask = nextAsk(state);
  if (ask !== null && now >= ask) {
    state.silent_asked = now;
    for (const replica of Object.keys(state.silent))
      effects.push({ do: 'reply', replica, reply: { kind: 'assert', key: '' } });
  }
  if (rebuilding === null || rebuilding.until === null || now < rebuilding.until) return;
  for (const [replica, node] of Object.entries(rebuilding.waits)) {
    if (node !== null) state.silent[replica] = node;
    alarm(
      state,
      now,
      `replica/${replica} did not say what it holds within ${TIMING.rebuildPatience / 1000} s${node === null ? '' : `: nothing is granted on ${node} until it does`}`,
      { silent: replica },
    );
  }
  rebuilding.waits = {};
  state.silent_asked = now;
  finishIfWhole(state, now);
}

function finishIfWhole(state: LedgerState, now: number): void {
  const { rebuilding } = state;
  if (rebuilding === null || rebuilding.until === null) return;
  if (Object.keys(rebuilding.waits).length > 0) return;
  state.rebuilding = null;
  // Newer than whatever routers hold of the ledger before; an empty one that is newer would end all service.
  if (!state.bare) newVersion(state, now);
  else if (Object.keys(state.endpoints).length > 0) holdTable(state, now);
  note(state, now, `whole again: ${Object.keys(state.grants).length} grants are known`);
}

/** What a replica says that it holds, against what the ledger knows. */
export function asserted(state: LedgerState, msg: AssertMsg, now: number, effects: LedgerEffect[]): void {
  const reply = believe(state, msg, now);
  effects.push({ do: 'reply', replica: msg.replica, reply: reply ?? ackReply(state, msg.key, now) });
  // It had something there when it was looked for: another run of it may answer, which knows nothing of that.
  if (msg.fence === null) endedUnheard(state, msg.replica, now);
  heardOf(state, msg.replica, now, effects);
}

/** null: believed. Else what it must deal with: a newer engine of its own, or one that lost its GPUs to others. */
function believe(state: LedgerState, msg: AssertMsg, now: number) {
  const { replica, fence, members } = msg;
  const own = Object.values(state.grants).filter(g => g.replica === replica);
  // It has asked for other GPUs since, or holds them: what it told before that is over.
  if (isOvertaken(state, msg)) return null;
  if (fence === null || members.length === 0) {
    // What is another run's or nobody's it can't know of: it is offered that where it asks.
    if (state.rebuilding !== null)
      for (const g of own) if (isOf(g, msg)) giveUp(state, g, 'its replica says that it holds nothing', now);
    return null;
  }
  state.waiting = state.waiting.filter(w => w.replica !== replica || w.first_run_id !== msg.first_run_id);
  state.last_fence = Math.max(state.last_fence, fence);
  const known = own.find(g => g.fence === fence);
  // Its own node has it, so a newer one that no workflow holds is only some node's word (INV-8).
  const seen = known !== undefined && known.gave_up === undefined;
  const newest = own
    .filter(g => g.fence > fence && g.gave_up === undefined && !(seen && g.unclaimed !== undefined))
    .sort((a, b) => b.fence - a.fence)[0];
  if (newest !== undefined) {
    return offerOf(newest, msg.key);
  }
  for (const g of own)
    if (g.fence < fence) giveUp(state, g, `its replica has a newer engine (fence ${fence})`, now);
  const beyond = members.filter(m => !known?.members.some(k => k.node === m.node));
  const taken = beyond.some(m => common(heldOn(state, m.node, replica), maskOf(m.slots)) !== 0);
  // Of a gang that it was granted, or had claimed: a member was stopped or forgotten since, and so the gang has ended (INV-7).
  const broken = known !== undefined && known.unclaimed === undefined && beyond.length > 0;
  // The claim came too late: the order to stop a member is on its way to its node, or is given again.
  const ends =
    known !== undefined &&
    (isBeingStopped(known, members) || members.some(m => known.ended?.[m.node] !== undefined));
  // Its GPUs are another's: it may not go on, and its stop is proven before it is given others (INV-1).
  if (taken || broken || ends) return { kind: 'stale' as const, key: msg.key, fence, members };
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
  if (members.length > 1) grant.nodes = members.length;
  const fabric = msg.fabric ?? known?.fabric;
  if (fabric !== undefined) grant.fabric = fabric;
  // What comes back there is stopped, whoever holds the rest.
  if (known?.ended !== undefined) grant.ended = known.ended;
  if (known?.forgotten !== undefined) grant.forgotten = known.forgotten;
  if (known?.told_sick !== undefined) grant.told_sick = known.told_sick;
  if (known?.endpoint_key !== undefined) grant.endpoint_key = known.endpoint_key;
  if (known?.ready_at !== undefined) grant.ready_at = known.ready_at;
  const anew = known !== undefined && !isOf(known, msg);
  const [claimed_at, claimed_by] = anew ? [now, msg.run_id] : [known?.claimed_at, known?.claimed_by];
  if (claimed_at !== undefined) grant.claimed_at = claimed_at;
  if (claimed_by !== undefined) grant.claimed_by = claimed_by;
  // It knows best what it was told, by whichever ledger.
  if (msg.lost !== undefined && msg.lost.length > 0) grant.told_lost = msg.lost;
  state.grants[fence] = grant;
  membersChanged(state, grant, now);
  if (known === undefined) note(state, now, `${replica} holds ${msg.why} (fence ${fence}), by its own word`);
  if (msg.endpoint !== null) takeEndpoint(state, grant, msg, msg.endpoint, now);
  return null;
}

/** What some node told of a route under this name is over: its replica speaks for itself. */
function takeEndpoint(
  state: LedgerState,
  grant: Grant,
  msg: AssertMsg,
  endpoint: Endpoint,
  now: number,
): void {
  const { key, replica, run_id } = msg;
  if (!isLatestEndpoint(state, { key, replica, run_id, fence: grant.fence })) return;
  const shown = state.endpoints[replica];
  if (shown !== undefined && state.grants[shown.fence]?.unclaimed !== undefined)
    dropEndpoint(state, replica, shown.fence, now);
  setEndpoint(state, grant, endpoint, now);
}
