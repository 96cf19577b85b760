// The ledger's decisions: (state, messages, now) → state and effects. Every message is keyed and may come twice; the
// answer to the second is the answer to the first. The state is changed in place on a copy that the caller owns.
import type { EngineEvent, StopProof } from '../../contracts/engine.js';
import type { ClosedMsg, InstanceMsg, LedgerMsg, NodeFacts, Survey } from '../../contracts/messages.js';
import type { Endpoint } from '../../contracts/routes.js';
import { TIMING } from '../../contracts/timing.js';
import { judgeBrake, setBrake } from './brake.js';
import { ackReply, type LedgerEffect, liveQueues } from './effects.js';
import { dropEndpoint, isLatestEndpoint, isTableHeld, lookHeld, setEndpoint } from './endpoints.js';
import { lookGathering, nextGathered } from './found.js';
import {
  canEnd,
  endMember,
  giveUpOn,
  nextSettle,
  settle,
  settled,
  settleFailed,
  supersede,
} from './holds.js';
import { lossNews, nodeFacts, sickNews } from './nodes.js';
import {
  asserted,
  beginRebuild,
  endedUnheard,
  heardOf,
  leftUnknown,
  nextAsk,
  rebuildEnds,
  rebuildLook,
  surveyed,
} from './rebuild.js';
import { placeWaiting, reserve, withdraw } from './reserve.js';
import { type LedgerState, note, type RunIds } from './state.js';
import { closed } from './sweep.js';
import { clearLeak, forget } from './words.js';

export type { LedgerEffect } from './effects.js';

export type LedgerInput =
  | LedgerMsg
  | { kind: 'node'; facts: NodeFacts }
  | ({ kind: 'instance' } & InstanceMsg)
  | { kind: 'unclaimed'; event: EngineEvent; why: string }
  | ({ kind: 'closed' } & ClosedMsg)
  /** This run continues none, or it was reset: what it knows is not to be trusted. */
  | { kind: 'rebuild'; why: string; since?: number }
  | { kind: 'survey'; survey: Survey }
  | { kind: 'settled'; fence: number; node: string; proof: StopProof }
  | { kind: 'settle_failed'; fence: number; node: string; sentence: string }
  | { kind: 'forget'; node: string; by: string }
  /** `slots` null: all that is left without proof there; `fence`: of that hold alone, absent: of all. */
  | { kind: 'clear_leak'; node: string; slots: number[] | null; by: string; fence?: number }
  | { kind: 'brake'; on: boolean; by: string }
  /** The replica's workflow is gone: nothing was heard there. A grant never reached it, so no order was ever given. */
  | { kind: 'undeliverable'; replica: string; fence: number | null }
  /** A signal that hasn't its shape: somebody's hand, or a future version's. */
  | { kind: 'ignored'; what: string; fault: string }
  /** The grant is in its replica's history: from here on only a proof ends it. */
  | { kind: 'delivered'; fence: number }
  /** Time has passed. */
  | { kind: 'look' };

/** Applies one batch (all that one workflow task brought) and places what waits, once. */
export function ledgerStep(state: LedgerState, inputs: LedgerInput[], now: number): LedgerEffect[] {
  const effects: LedgerEffect[] = [];
  const before = state.version;
  for (const input of inputs) apply(state, input, now, effects);
  rebuildLook(state, now, effects);
  lookGathering(state, now);
  lookHeld(state, now);
  judgeBrake(state, now);
  lossNews(state, now, effects);
  sickNews(state, now, effects);
  settle(state, now, effects);
  placeWaiting(state, now, effects);
  if (state.version !== before && !isTableHeld(state)) {
    effects.push({ do: 'routes', version: state.version, queues: liveQueues(state, now) });
  }
  return effects;
}

/** When the ledger must look by itself, ms; null: only messages move it. */
export function nextLook(state: LedgerState): number | null {
  const times = [
    nextSettle(state),
    nextGathered(state),
    rebuildEnds(state),
    nextAsk(state),
    state.held_until ?? null,
  ].filter(t => t !== null);
  return times.length === 0 ? null : Math.min(...times);
}

function apply(state: LedgerState, input: LedgerInput, now: number, effects: LedgerEffect[]): void {
  switch (input.kind) {
    case 'reserve':
      reserve(state, input, now, effects);
      return;
    case 'renew': {
      const { release, ...rest } = input;
      if (endMembers(state, release.fence, release.members, input, now)) {
        const left = state.grants[release.fence];
        if (left !== undefined) left.tried = input.run_id;
      }
      reserve(state, rest, now, effects);
      return;
    }
    case 'release': {
      if (input.withdraw !== null) withdraw(state, input.replica, input.withdraw);
      if (input.fence !== null && endMembers(state, input.fence, input.members, runOfRelease(input), now))
        dropEndpoint(state, input.replica, input.fence, now);
      effects.push({ do: 'reply', replica: input.replica, reply: ackReply(state, input.key, now) });
      return;
    }
    case 'endpoint': {
      // A grant that isn't known: the word of it was lost with an earlier ledger, or is on its way behind this one.
      if (input.endpoint !== null && state.grants[input.fence]?.replica !== input.replica)
        effects.push({ do: 'reply', replica: input.replica, reply: { kind: 'assert', key: '' } });
      if (isLatestEndpoint(state, input)) {
        if (input.endpoint === null) dropEndpoint(state, input.replica, input.fence, now);
        else routed(state, input.fence, input.endpoint, now);
      }
      if (input.answer)
        effects.push({ do: 'reply', replica: input.replica, reply: ackReply(state, input.key, now) });
      return;
    }
    case 'assert':
      asserted(state, input, now, effects);
      return;
    case 'node':
      nodeFacts(state, input.facts, now, effects);
      return;
    case 'instance': {
      const { kind: _, ...instance } = input;
      state.instances[instance.instance] = { ...instance, at: now };
      if (instance.brake !== undefined) Object.assign(state.brake, instance.brake);
      for (const [id, i] of Object.entries(state.instances))
        if (now - i.at > 2 * TIMING.instanceGone) delete state.instances[id];
      return;
    }
    case 'unclaimed':
      exitOfNobody(state, input.event, input.why, now);
      return;
    case 'closed':
      closed(state, input, now);
      return;
    case 'rebuild':
      beginRebuild(state, input, now, effects);
      return;
    case 'survey':
      surveyed(state, input.survey, now, effects);
      return;
    case 'settled':
      settled(state, input.fence, input.node, input.proof, now);
      return;
    case 'settle_failed':
      settleFailed(state, input.fence, input.node, input.sentence, now);
      return;
    case 'forget':
      forget(state, input.node, input.by, now, effects);
      return;
    case 'clear_leak':
      clearLeak(state, input.node, input.slots, input.by, now, input.fence);
      return;
    case 'brake':
      setBrake(state, input.on, input.by, now);
      return;
    case 'ignored':
      note(state, now, `ignored a signal ${input.what} that has not its shape (${input.fault})`);
      return;
    case 'delivered': {
      const grant = state.grants[input.fence];
      if (grant !== undefined) grant.delivered = true;
      return;
    }
    case 'undeliverable':
      undeliverable(state, input.replica, input.fence, now, effects);
      return;
    case 'look':
      return;
  }
}

/** Member by member: what is proven of one ends there, whatever is known of the others. False: nothing of it may end. */
function endMembers(
  state: LedgerState,
  fence: number,
  members: { node: string; proof: StopProof | null }[],
  by: RunIds | null,
  now: number,
): boolean {
  const held = state.grants[fence];
  if (held === undefined) leftUnknown(state, fence, members, now);
  const ending = members.filter(m => held === undefined || canEnd(held, m.proof, by));
  for (const m of ending) endMember(state, fence, m.node, m.proof, now);
  return ending.length > 0 || members.length === 0;
}

function routed(state: LedgerState, fence: number, endpoint: Endpoint, now: number): void {
  const grant = state.grants[fence]!;
  setEndpoint(state, grant, endpoint, now);
  if (endpoint.state === 'ready') supersede(state, grant, now);
}

/** null: a replica of an earlier build doesn't say which run it is. */
function runOfRelease(msg: Extract<LedgerInput, { kind: 'release' }>): RunIds | null {
  const { run_id, continued_run_id = null, first_run_id } = msg;
  return run_id === undefined || first_run_id === undefined
    ? null
    : { run_id, continued_run_id, first_run_id };
}

function exitOfNobody(state: LedgerState, event: EngineEvent, why: string, now: number): void {
  state.exits = [...state.exits, { event, why, at: now }].slice(-50);
  note(state, now, `an exit of ${event.replica} (fence ${event.fence}) found no workflow: ${why}`);
  const grant = state.grants[event.fence];
  // Any node's certificate can send an event; only where the engine runs it counts (INV-8).
  const from = event.node;
  const own = from === undefined || grant?.members.some(m => m.node === from && m.rank === event.rank);
  if (grant?.replica !== event.replica || grant.unclaimed === undefined || !own) return;
  const at = grant.members.find(m => m.rank === event.rank)?.node;
  if (at !== undefined) giveUpOn(state, grant, at, 'it has ended, and its stop is not proven', now);
}

function undeliverable(
  state: LedgerState,
  replica: string,
  fence: number | null,
  now: number,
  effects: LedgerEffect[],
): void {
  endedUnheard(state, replica, now);
  heardOf(state, replica, now, effects);
  const grant = fence === null ? undefined : state.grants[fence];
  // Delivered once, it may be in use, whoever can't be reached now (INV-1).
  if (grant === undefined || grant.replica !== replica || grant.delivered) return;
  delete state.grants[grant.fence];
  note(
    state,
    now,
    `grant ${grant.fence} of ${replica} returned: its workflow is closed and never received it`,
  );
}
