// The ledger's decisions: (state, message, now) → state and effects. Every message is keyed and may come twice; the
// answer to the second is the answer to the first. The state is changed in place on a copy that the caller owns.
import type { EngineEvent } from '../../contracts/engine.js';
import { keyNumber, runOf } from '../../contracts/ids.js';
import type {
  EndpointMsg,
  InstanceMsg,
  LedgerMsg,
  LedgerReply,
  NodeFacts,
  ReserveMsg,
} from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { place } from '../placement.js';
import { candidates, endHold, type Grant, type LedgerState, note } from './state.js';

export type LedgerInput =
  | LedgerMsg
  | { kind: 'node'; facts: NodeFacts }
  | ({ kind: 'instance' } & InstanceMsg)
  | { kind: 'unclaimed'; event: EngineEvent; why: string }
  /** The replica's workflow is gone: the grant's message never reached anybody, so no order was ever given. */
  | { kind: 'undeliverable'; replica: string; fence: number }
  /** A signal that hasn't its shape: somebody's hand, or a future version's. */
  | { kind: 'ignored'; what: string; fault: string }
  /** The grant is in its replica's history: from here on only a proof ends it. */
  | { kind: 'delivered'; fence: number };

export type LedgerEffect =
  | { do: 'reply'; replica: string; reply: LedgerReply }
  /** The route table has a new version: every live instance is told. */
  | { do: 'routes'; version: number; queues: string[] };

/** Applies one batch (all that one workflow task brought) and places what waits, once. */
export function ledgerStep(state: LedgerState, inputs: LedgerInput[], now: number): LedgerEffect[] {
  const effects: LedgerEffect[] = [];
  const before = state.version;
  for (const input of inputs) apply(state, input, now, effects);
  placeWaiting(state, now, effects);
  if (state.version !== before) {
    effects.push({ do: 'routes', version: state.version, queues: liveQueues(state, now) });
  }
  return effects;
}

export const liveQueues = (state: LedgerState, now: number): string[] =>
  Object.values(state.instances)
    .filter(i => now - i.at < TIMING.instanceGone)
    .map(i => i.queue);

function apply(state: LedgerState, input: LedgerInput, now: number, effects: LedgerEffect[]): void {
  switch (input.kind) {
    case 'reserve':
      reserve(state, input, now, effects);
      return;
    case 'renew': {
      const { release, ...rest } = input;
      for (const m of release.members) endMember(state, release.fence, m.node, m.proof, now);
      const left = state.grants[release.fence];
      if (left !== undefined) left.tried = input.first_run_id;
      reserve(state, { ...rest, kind: 'reserve' }, now, effects);
      return;
    }
    case 'release': {
      if (input.withdraw !== null) withdraw(state, input.replica, input.withdraw);
      if (input.fence !== null)
        for (const m of input.members) endMember(state, input.fence, m.node, m.proof, now);
      if (input.fence !== null) dropEndpoint(state, input.replica, input.fence, now);
      effects.push({
        do: 'reply',
        replica: input.replica,
        reply: ackReply(state, input.key, now),
      });
      return;
    }
    case 'endpoint': {
      if (isLatestEndpoint(state, input)) {
        if (input.endpoint === null) dropEndpoint(state, input.replica, input.fence, now);
        else setEndpoint(state, input.replica, input.endpoint, now);
      }
      if (!input.answer) return;
      effects.push({
        do: 'reply',
        replica: input.replica,
        reply: ackReply(state, input.key, now),
      });
      return;
    }
    case 'node': {
      const known = state.nodes[input.facts.node_id];
      if (known !== undefined && known.facts.seq >= input.facts.seq) return;
      if (known?.facts.state !== input.facts.state)
        note(state, now, `${input.facts.node_id} is ${input.facts.state}: ${input.facts.reason}`);
      state.nodes[input.facts.node_id] = { cordoned: false, draining: false, ...known, facts: input.facts };
      return;
    }
    case 'instance': {
      const { kind: _, ...instance } = input;
      state.instances[instance.instance] = { ...instance, at: now };
      for (const [id, i] of Object.entries(state.instances))
        if (now - i.at > 2 * TIMING.instanceGone) delete state.instances[id];
      return;
    }
    case 'unclaimed':
      state.unclaimed = [...state.unclaimed, { event: input.event, why: input.why, at: now }].slice(-50);
      note(
        state,
        now,
        `an exit of ${input.event.replica} (fence ${input.event.fence}) found no workflow: ${input.why}`,
      );
      return;
    case 'ignored':
      note(state, now, `ignored a signal ${input.what} that has not its shape (${input.fault})`);
      return;
    case 'delivered': {
      const grant = state.grants[input.fence];
      if (grant !== undefined) grant.delivered = true;
      return;
    }
    case 'undeliverable': {
      const grant = state.grants[input.fence];
      // Delivered once, it may be in use, whoever can't be reached now (INV-1).
      if (grant === undefined || grant.replica !== input.replica || grant.delivered) return;
      delete state.grants[input.fence];
      note(
        state,
        now,
        `grant ${input.fence} of ${input.replica} returned: its workflow is closed and never received it`,
      );
      return;
    }
  }
}

function reserve(state: LedgerState, msg: ReserveMsg, now: number, effects: LedgerEffect[]): void {
  const granted = Object.values(state.grants).find(g => g.replica === msg.replica && g.key === msg.key);
  if (granted !== undefined) {
    effects.push({ do: 'reply', replica: msg.replica, reply: grantedReply(granted) });
    return;
  }
  if (isOvertaken(state, msg)) {
    // Answered, or it would be sent again for ever; what it released is released.
    effects.push({ do: 'reply', replica: msg.replica, reply: ackReply(state, msg.key, now) });
    return;
  }
  const stale = leftByEarlierRun(state, msg);
  if (stale !== undefined) {
    const { fence, members } = stale;
    effects.push({
      do: 'reply',
      replica: msg.replica,
      reply: { kind: 'stale', key: msg.key, fence, members },
    });
    return;
  }
  const { kind: _, ...want } = msg;
  const at = state.waiting.findIndex(w => w.replica === msg.replica);
  if (at >= 0 && state.waiting[at]!.key === msg.key) {
    // Sent again: told again.
    state.waiting[at] = { ...state.waiting[at]!, told: '' };
    return;
  }
  if (at >= 0) state.waiting.splice(at, 1);
  state.waiting.push({ ...want, since: now, told: '' });
}

/** Signals may arrive out of order: `ready` after its own end would be a route to nowhere, for ever. */
function isLatestEndpoint(state: LedgerState, msg: EndpointMsg): boolean {
  const grant = state.grants[msg.fence];
  if (grant === undefined || grant.replica !== msg.replica) return false;
  const last = grant.endpoint_key;
  const sameRun = last !== undefined && runOf(last) === runOf(msg.key);
  if (sameRun && keyNumber(last) > keyNumber(msg.key)) return false;
  grant.endpoint_key = msg.key;
  return true;
}

/** Signals may arrive out of order: a newer reserve of the same run counts, whatever came of it. */
function isOvertaken(state: LedgerState, msg: ReserveMsg): boolean {
  return [...state.waiting, ...Object.values(state.grants)].some(
    w =>
      w.replica === msg.replica &&
      w.first_run_id === msg.first_run_id &&
      keyNumber(w.key) > keyNumber(msg.key),
  );
}

/** Only where every node can be asked to stop it: what is on a node that is away stays held (INV-2) and is passed by. */
function leftByEarlierRun(state: LedgerState, msg: ReserveMsg): Grant | undefined {
  return Object.values(state.grants).find(
    g =>
      g.replica === msg.replica &&
      g.first_run_id !== msg.first_run_id &&
      g.tried !== msg.first_run_id &&
      g.members.every(m => state.nodes[m.node]?.facts.state === 'connected'),
  );
}

/** Highest priority first, then who waits longest. A shape that doesn't fit holds nobody else back. */
function placeWaiting(state: LedgerState, now: number, effects: LedgerEffect[]): void {
  const order = [...state.waiting].sort((a, b) => b.shape.priority - a.shape.priority || a.since - b.since);
  for (const want of order) {
    const placed = place(want.shape, candidates(state), want.exclude, want.prefer, now);
    if (!placed.fits) {
      if (want.told === placed.reason) continue;
      want.told = placed.reason;
      effects.push({
        do: 'reply',
        replica: want.replica,
        reply: { kind: 'waiting', key: want.key, reason: placed.reason, hopeless: placed.hopeless },
      });
      continue;
    }
    state.waiting = state.waiting.filter(w => !(w.key === want.key && w.replica === want.replica));
    state.last_fence = Math.max(state.last_fence + 1, now);
    const grant: Grant = {
      key: want.key,
      replica: want.replica,
      run_id: want.run_id,
      first_run_id: want.first_run_id,
      fence: state.last_fence,
      at: now,
      why: placed.why,
      members: placed.members,
      left: {},
    };
    state.grants[grant.fence] = grant;
    note(state, now, `granted to ${grant.replica}: ${placed.why} (fence ${grant.fence})`);
    effects.push({ do: 'reply', replica: grant.replica, reply: grantedReply(grant) });
  }
}

const grantedReply = (g: Grant): LedgerReply => ({
  kind: 'granted',
  key: g.key,
  fence: g.fence,
  members: g.members,
  why: g.why,
});

const ackReply = (state: LedgerState, key: string, now: number): LedgerReply => ({
  kind: 'ack',
  key,
  version: state.version,
  queues: liveQueues(state, now),
});

function withdraw(state: LedgerState, replica: string, key: string): void {
  state.waiting = state.waiting.filter(w => !(w.replica === replica && w.key === key));
  // Granted while the withdrawal was on its way: the replica sends no order for a key that it withdrew.
  for (const g of Object.values(state.grants))
    if (g.replica === replica && g.key === key) delete state.grants[g.fence];
}

function endMember(
  state: LedgerState,
  fence: number,
  node: string,
  proof: Parameters<typeof endHold>[2],
  now: number,
): void {
  const grant = state.grants[fence];
  if (grant === undefined) return;
  dropEndpoint(state, grant.replica, fence, now);
  const next = endHold(grant, node, proof);
  if (next === null) delete state.grants[fence];
  else state.grants[fence] = next;
  const left = next?.left[node];
  if (left !== undefined)
    note(state, now, `hold of ${grant.replica} left on ${node}: ${left} (fence ${fence})`);
}

/** At least the time, so that the table of a rebuilt ledger is newer than what routers hold of the lost one. */
function newVersion(state: LedgerState, now: number): void {
  state.version = Math.max(state.version + 1, now);
}

function dropEndpoint(state: LedgerState, replica: string, fence: number, now: number): void {
  if (state.endpoints[replica]?.fence !== fence) return;
  delete state.endpoints[replica];
  newVersion(state, now);
}

function setEndpoint(
  state: LedgerState,
  replica: string,
  endpoint: NonNullable<LedgerState['endpoints'][string]>,
  now: number,
): void {
  const known = state.endpoints[replica];
  if (known !== undefined && known.fence > endpoint.fence) return;
  if (
    known !== undefined &&
    known.fence === endpoint.fence &&
    known.state === endpoint.state &&
    known.url === endpoint.url
  )
    return;
  state.endpoints[replica] = endpoint;
  newVersion(state, now);
}
