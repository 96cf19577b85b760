// Asking and granting: which reserve counts, what a run must deal with first, and who is placed next.
import { keyNumber } from '../../contracts/ids.js';
import type { LedgerReply, ReserveMsg } from '../../contracts/messages.js';
import { type Candidate, type Placed, place } from '../placement.js';
import { maskOf, without } from '../slots.js';
import { ackReply, type LedgerEffect } from './effects.js';
import { gathering } from './found.js';
import { giveUp } from './holds.js';
import {
  blockOf,
  candidates,
  type Grant,
  heldOn,
  isBeingStopped,
  isOf,
  isWhole,
  type LedgerState,
  note,
  type RunIds,
} from './state.js';

type Want = Omit<ReserveMsg, 'kind'>;

export function reserve(state: LedgerState, msg: Want, now: number, effects: LedgerEffect[]): void {
  const say = (reply: LedgerReply) => effects.push({ do: 'reply', replica: msg.replica, reply });
  const own = Object.values(state.grants).filter(g => g.replica === msg.replica && isOf(g, msg));
  const granted = own.find(g => g.key === msg.key);
  // Of a gang whose member was forgotten on the way, the rest is given up below: it is no grant to begin with.
  if (granted !== undefined && isWhole(granted)) {
    say(grantedReply(granted));
    return;
  }
  if (isOvertaken(state, msg)) {
    // Answered, or it would be sent again for ever; what it released is released.
    say(ackReply(state, msg.key, now));
    return;
  }
  // Who asks holds nothing: what is still in its name was lost on the way (a claim given up, an assertion told twice).
  for (const g of own) giveUp(state, g, 'its replica asks for other GPUs', now);
  const stale = leftByAnotherRun(state, msg);
  if (stale !== undefined) {
    say(offer(stale, msg, now));
    return;
  }
  const at = state.waiting.findIndex(w => w.replica === msg.replica);
  if (at >= 0 && state.waiting[at]!.key === msg.key && state.waiting[at]!.run_id === msg.run_id) {
    // Sent again: told again.
    state.waiting[at] = { ...state.waiting[at]!, told: '' };
    return;
  }
  if (at >= 0) state.waiting.splice(at, 1);
  state.waiting.push({ ...msg, since: now, told: '' });
}

/**
 * Signals may arrive out of order: a newer reserve of the same run counts, whatever came of it, and so does one of the
 * run that continues it. A run that continues none of those known was reset: its keys begin anew, and it counts.
 */
export function isOvertaken(state: LedgerState, msg: Pick<Want, 'key' | 'replica' | keyof RunIds>): boolean {
  return [...state.waiting, ...Object.values(state.grants)].some(w => {
    if (w.replica !== msg.replica || w.first_run_id !== msg.first_run_id) return false;
    if (w.run_id === msg.run_id) return keyNumber(w.key) > keyNumber(msg.key);
    return w.continued_run_id === msg.run_id;
  });
}

/**
 * What another run of this replica has left (terminated, reset, or never claimed), newest first. Only where every node
 * can be asked about it: what is on a node that is away stays held (INV-2); see keptWhereAway.
 */
function leftByAnotherRun(state: LedgerState, msg: Want, among = Object.values(state.grants)) {
  return among
    .filter(
      g =>
        g.replica === msg.replica &&
        !isOf(g, msg) &&
        g.tried !== msg.run_id &&
        // Claimed now, it would be stopped under its new run.
        !isBeingStopped(g) &&
        gathering(state, g) === null &&
        g.members.every(m => state.nodes[m.node]?.facts.state === 'connected'),
    )
    .sort((a, b) => b.fence - a.fence)[0];
}

/**
 * Why a run waits for what another run has left: a routed engine on a node that isn't heard and isn't lost serves its
 * clients, and a second one would end it when the node is back (INV-5). Nor is a gang taken for stopped of which not all
 * members were heard yet.
 */
function keptWhereAway(state: LedgerState, msg: Want, among: Grant[]): string | null {
  for (const g of among) {
    const partly = g.replica === msg.replica && g.tried !== msg.run_id ? gathering(state, g) : null;
    if (partly !== null) return `${partly}: it is offered when they have`;
    const routed = g.gave_up === undefined && state.endpoints[g.replica]?.fence === g.fence;
    if (g.replica !== msg.replica || isOf(g, msg) || g.tried === msg.run_id || !routed) continue;
    for (const { node } of g.members) {
      const now = state.nodes[node]?.facts.state;
      if (now === undefined || now === 'connected' || (now === 'lost' && !state.brake.on)) continue;
      return `its engine (fence ${g.fence}) serves on ${node}, which is ${now}: taken over when that node is heard, replaced when it is lost`;
    }
  }
  return null;
}

/** Adoption of somebody else's process gets it too: nothing of that name may run already. */
function offer(left: Grant, { key, run_id }: Pick<Want, 'key' | 'run_id'>, now: number): LedgerReply {
  left.claimed_at = now;
  left.claimed_by = run_id;
  return offerOf(left, key);
}

export function offerOf(left: Grant, key: string): Extract<LedgerReply, { kind: 'stale' }> {
  const { fence, members, fabric, nodes } = left;
  return {
    kind: 'stale',
    key,
    fence,
    members,
    ...(fabric === undefined ? {} : { fabric }),
    ...(isWhole(left) ? {} : { nodes: nodes! }),
  };
}

/** Highest priority first, then who waits longest. A shape that doesn't fit holds nobody else back. */
export function placeWaiting(state: LedgerState, now: number, effects: LedgerEffect[]): void {
  const order = [...state.waiting].sort((a, b) => b.shape.priority - a.shape.priority || a.since - b.since);
  let fleet: Candidate[] | null = null;
  const waiting = new Set(order.map(w => w.replica));
  const theirs = waiting.size === 0 ? [] : Object.values(state.grants).filter(g => waiting.has(g.replica));
  for (const want of order) {
    // Its node came back, or said hello to a ledger that began anew, since it asked.
    const left = leftByAnotherRun(state, want, theirs);
    if (left !== undefined) {
      state.waiting = state.waiting.filter(w => !(w.key === want.key && w.replica === want.replica));
      effects.push({ do: 'reply', replica: want.replica, reply: offer(left, want, now) });
      continue;
    }
    fleet ??= candidates(state);
    const kept = keptWhereAway(state, want, theirs);
    const placed: Placed =
      kept !== null
        ? { fits: false, reason: kept, hopeless: false, refusals: [] }
        : want.adopt === null
          ? place(want.shape, fleet, want.exclude, want.prefer_nodes ?? want.prefer, now)
          : placeAdopted(state, want, want.adopt);
    if (!placed.fits) {
      // Nodes that were there before the ledger began anew may yet fit.
      const heardAll = state.rebuilding === null && state.expected.length === 0;
      const hopeless = placed.hopeless && heardAll;
      const refused = placed.refused === true && heardAll ? { refused: true as const } : {};
      // The same reason may become hopeless, when the last node has been heard.
      const tell = hopeless ? `hopeless: ${placed.reason}` : placed.reason;
      if (want.told === tell) continue;
      want.told = tell;
      effects.push({
        do: 'reply',
        replica: want.replica,
        reply: { kind: 'waiting', key: want.key, reason: placed.reason, hopeless, ...refused },
      });
      continue;
    }
    state.waiting = state.waiting.filter(w => !(w.key === want.key && w.replica === want.replica));
    state.last_fence = Math.max(state.last_fence + 1, now);
    const { key, replica, run_id, continued_run_id, first_run_id } = want;
    const grant: Grant = {
      key,
      replica,
      run_id,
      continued_run_id,
      first_run_id,
      fence: state.last_fence,
      at: now,
      why: placed.why,
      members: placed.members,
      left: {},
      ...(placed.members.length === 1 ? {} : { nodes: placed.members.length }),
      ...(placed.fabric === null ? {} : { fabric: placed.fabric }),
    };
    state.grants[grant.fence] = grant;
    fleet = null;
    note(state, now, `granted to ${grant.replica}: ${placed.why} (fence ${grant.fence})`);
    effects.push({ do: 'reply', replica: grant.replica, reply: grantedReply(grant) });
  }
}

/** The process has these GPUs already: these or none. That they are busy is no hindrance, that they are held is. */
function placeAdopted(
  state: LedgerState,
  { replica, shape }: Want,
  { node, slots }: { node: string; slots: number[] },
): Placed {
  const refuse = (reason: string): Placed => ({
    fits: false,
    reason: `${node}: ${reason}`,
    hopeless: state.rebuilding === null,
    refusals: [{ reason, nodes: [node] }],
  });
  if (shape.nodes > 1)
    return refuse(`one process is adopted, and the spec has ${shape.nodes} nodes: adopt it with nodes: 1`);
  const blocked = blockOf(state, node);
  if (blocked !== null) return refuse(blocked);
  const entry = state.nodes[node];
  if (entry === undefined) return refuse('there is no such node');
  if (entry.facts.state !== 'connected') return refuse(`it is ${entry.facts.state}`);
  const wanted = maskOf(slots);
  if (without(wanted, heldOn(state, node, replica)) !== wanted)
    return refuse('another replica holds its GPUs');
  return {
    fits: true,
    members: [{ node, rank: 0, slots }],
    fabric: null,
    why: `${node}: slots ${slots.join(',')}, which the adopted process has`,
  };
}

const grantedReply = (g: Grant): LedgerReply => ({
  kind: 'granted',
  key: g.key,
  fence: g.fence,
  members: g.members,
  why: g.why,
  ...(g.fabric === undefined ? {} : { fabric: g.fabric }),
});

export function withdraw(state: LedgerState, replica: string, key: string): void {
  state.waiting = state.waiting.filter(w => !(w.replica === replica && w.key === key));
  // Granted while the withdrawal was on its way: the replica sends no order for a key that it withdrew.
  // One that has reached it comes back by its own release, or is in use by a run that was reset since (INV-1).
  for (const g of Object.values(state.grants))
    if (g.replica === replica && g.key === key && !g.delivered) delete state.grants[g.fence];
}
