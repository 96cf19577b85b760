// The ledger's state: plain JSON that survives continue-as-new (no Map, Set, Date). INV-1: a GPU has one holder from
// the grant until proof of stop, so `grants` is the one place that says who holds what.
import type { EngineEvent, StopProof } from '../../contracts/engine.js';
import type { GrantMember, InstanceMsg, NodeFacts, ReserveMsg } from '../../contracts/messages.js';
import type { Endpoint } from '../../contracts/routes.js';
import type { Candidate } from '../placement.js';
import { countOf, maskOf, union, without } from '../slots.js';

export interface Grant {
  key: string;
  replica: string;
  run_id: string;
  first_run_id: string;
  fence: number;
  at: number;
  why: string;
  members: GrantMember[];
  /** A member whose hold was left without proof: node id → why. */
  left: Record<string, string>;
  /** Its replica's workflow has it. */
  delivered?: boolean;
  /** Key of the latest endpoint message of this grant. */
  endpoint_key?: string;
  /** The later run (its first_run_id) that tried to stop what was left, in vain: it isn't asked again. */
  tried?: string;
}

export interface NodeEntry {
  facts: NodeFacts;
  cordoned: boolean;
  draining: boolean;
}

export interface LedgerState {
  v: 1;
  /** INV-6: grows across restarts, cancels, resets. */
  last_fence: number;
  /** Version of the route table: grows with each change of an endpoint. */
  version: number;
  nodes: Record<string, NodeEntry>;
  /** By fence. */
  grants: Record<string, Grant>;
  waiting: (Omit<ReserveMsg, 'kind'> & { since: number; told: string })[];
  endpoints: Record<string, Endpoint>;
  instances: Record<string, InstanceMsg & { at: number }>;
  /** Exits of engines whose replica workflow is closed or unknown, newest last, 50 at most. */
  unclaimed: { event: EngineEvent; why: string; at: number }[];
  journal: { at: number; text: string }[];
}

export const emptyLedger = (): LedgerState => ({
  v: 1,
  last_fence: 0,
  version: 0,
  nodes: {},
  grants: {},
  waiting: [],
  endpoints: {},
  instances: {},
  unclaimed: [],
  journal: [],
});

export const JOURNAL_LENGTH = 50;

export function note(state: { journal: { at: number; text: string }[] }, now: number, text: string): void {
  state.journal.push({ at: now, text });
  if (state.journal.length > JOURNAL_LENGTH) state.journal.splice(0, state.journal.length - JOURNAL_LENGTH);
}

/** Slots of a node that some grant holds. */
export function heldOn(state: LedgerState, nodeId: string, exceptReplica: string | null = null): number {
  let mask = 0;
  for (const g of Object.values(state.grants)) {
    if (g.replica === exceptReplica) continue;
    for (const m of g.members) if (m.node === nodeId) mask = union(mask, maskOf(m.slots));
  }
  return mask;
}

/** Nodes with what is free; `exceptReplica`: its own GPUs count as free (for `apply` and `plan`). */
export function candidates(state: LedgerState, exceptReplica: string | null = null): Candidate[] {
  return Object.values(state.nodes).map(n => ({
    facts: n.facts,
    cordoned: n.cordoned,
    draining: n.draining,
    free: without(without(n.facts.usable, n.facts.foreign), heldOn(state, n.facts.node_id, exceptReplica)),
  }));
}

export function gpuCounts(state: LedgerState, entry: NodeEntry) {
  const held = heldOn(state, entry.facts.node_id);
  const leakedGrants = Object.values(state.grants).filter(g => g.left[entry.facts.node_id] !== undefined);
  const leaked = leakedGrants.flatMap(g =>
    g.members.filter(m => m.node === entry.facts.node_id).flatMap(m => m.slots),
  );
  const foreign = without(entry.facts.foreign, held);
  const free = without(without(entry.facts.usable, entry.facts.foreign), held);
  return {
    total: entry.facts.profile.slots,
    free: countOf(free),
    held: countOf(held) - leaked.length,
    leaked: leaked.length,
    foreign: countOf(foreign),
    unusable: entry.facts.profile.slots - countOf(entry.facts.usable),
  };
}

/** A member's hold ends only with proof (INV-2); without it the hold is kept and says why. */
export function endHold(grant: Grant, nodeId: string, proof: StopProof | null): Grant | null {
  if (proof === null) return { ...grant, left: { ...grant.left, [nodeId]: 'the stop is not proven' } };
  // The tree is gone and GPUs are not: leaked, visible with the pid, not offered.
  if (proof.leaked.length > 0) return { ...grant, left: { ...grant.left, [nodeId]: leakText(proof) } };
  const members = grant.members.filter(m => m.node !== nodeId);
  if (members.length === 0) return null;
  const { [nodeId]: _, ...left } = grant.left;
  return { ...grant, members, left };
}

const leakText = (proof: StopProof): string =>
  `leaked: ${proof.leaked.map(l => `${l.gpu}${l.pids.length === 0 ? '' : ` by pid ${l.pids.join(', ')}`}`).join('; ')}`;
