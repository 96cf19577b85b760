// The ledger's state: plain JSON that survives continue-as-new (no Map, Set, Date). INV-1: a GPU has one holder from
// the grant until proof of stop, so `grants` is the one place that says who holds what.
import type { EngineEvent, StopProof } from '../../contracts/engine.js';
import type { GrantMember, InstanceMsg, NodeFacts, ReserveMsg } from '../../contracts/messages.js';
import type { Endpoint } from '../../contracts/routes.js';
import type { BrakeStatus } from '../../contracts/status.js';
import type { Candidate } from '../placement.js';
import { countOf, maskOf, union, without } from '../slots.js';

export interface Grant {
  key: string;
  replica: string;
  /** The latest run of its replica that is known to hold it; '' for an engine that no run has claimed. */
  run_id: string;
  continued_run_id: string | null;
  first_run_id: string;
  fence: number;
  at: number;
  why: string;
  /** One a node. Of a gang fewer than `nodes`, when some have ended or, unclaimed, weren't told of yet. */
  members: GrantMember[];
  /** Members of the gang; absent: one. */
  nodes?: number;
  /** That they are all on (INV-3); absent: one member, or not known. */
  fabric?: string;
  /** A member whose hold was left without proof: node id → why. */
  left: Record<string, string>;
  /** Of those, what a stop order found in use after the engine: since when, and what it found last. */
  leaks?: Record<string, { since: string; gpus: StopProof['leaked'] }>;
  /**
   * Node → why the ledger stops the member there and no other. Of a gang that nobody speaks for, a node's word is about its
   * own member only (INV-8). Stays when that member is gone: the gang isn't whole any more.
   */
  ended?: Record<string, string>;
  /** Nodes of members that an operator said to be gone: one that runs it still is held and stopped there. */
  forgotten?: string[];
  /** Its replica's workflow has it. */
  delivered?: boolean;
  /** Key of the latest endpoint message of this grant. */
  endpoint_key?: string;
  /** When it was first published as ready. */
  ready_at?: number;
  /** The later run that tried to claim or stop what was left, in vain: it isn't asked again. */
  tried?: string;
  /** An engine that was found running and that nobody has claimed (INV-5): why. Held, routed, never stopped. */
  unclaimed?: string;
  /** Unclaimed, and not all members of the gang were told of yet: until then the others are waited for. */
  gather_until?: number;
  /** One of a sweep that was refused: only a run of its own ends it. A claim makes a new grant, without this. */
  spared?: true;
  /** Why the ledger itself may stop it: its replica gave it up, is positively closed, or has a newer fence (INV-5). */
  gave_up?: string;
  /** Node → the ledger's own stop order: UNDER_WAY, or not before this time, ms. */
  settling?: Record<string, number>;
  /** Nodes whose loss its replica was told of. */
  told_lost?: string[];
  /** Nodes of which its replica was told that a GPU of it can't go on. */
  told_sick?: string[];
  /** When a later run was offered it, or said that it holds it: what closed before that has no say in it any more. */
  claimed_at?: number;
  /** That run: what it did while it was open may be heard after its end. */
  claimed_by?: string;
}

/** A stop order is under way at the node. */
export const UNDER_WAY = -1;
/** Not before the node says hello again. */
export const AT_HELLO = Number.MAX_SAFE_INTEGER;

/** A stop of one of these members that the ledger ordered is under way. */
export const isBeingStopped = (g: Grant, among: GrantMember[] = g.members): boolean =>
  g.members.some(m => g.settling?.[m.node] === UNDER_WAY && among.some(a => a.node === m.node));

/** Why the ledger stops the member there; undefined: it doesn't. */
export const stopReason = (g: Grant, node: string): string | undefined => g.gave_up ?? g.ended?.[node];

export const isWhole = (g: Grant): boolean => g.members.length >= (g.nodes ?? 1);

/** Each member is an engine. */
export const engineCount = (grants: Grant[]): number => grants.reduce((n, g) => n + g.members.length, 0);

export type RunIds = Pick<ReserveMsg, 'run_id' | 'continued_run_id' | 'first_run_id'>;

/** Held by this run or by the one that it continues: one that was reset continues neither of those that it forgot. */
export const isOf = (g: Grant, run: RunIds): boolean =>
  g.run_id === run.run_id || g.run_id === run.continued_run_id;

export interface NodeEntry {
  facts: Omit<NodeFacts, 'running'>;
  cordoned: boolean;
  draining: boolean;
}

/** A ledger that began anew, or that was reset, trusts nothing until it was told (INV-1). */
export interface Rebuilding {
  since: number;
  why: string;
  /** Open replicas that haven't said what they hold → their nodes by the memo (nodesOf). */
  waits: Record<string, string | null>;
  /** Of these, who was not asked yet. */
  ask: string[];
  /** null: the survey isn't back. */
  until: number | null;
}

/** `about`: what it is of, which may last or be over; absent: something that has just happened. */
export interface Alarm {
  at: number;
  text: string;
  about?: 'brake' | 'sweep' | { silent: string };
}

export interface LedgerState {
  v: 1;
  /** First run id of this ledger's chain. */
  epoch: string;
  /** Nodes that said hello before this time are unknown: what runs there may have changed. */
  began_at: number;
  rebuilding: Rebuilding | null;
  /** Why it was rebuilt last: each control plane that notices a reset says the same. */
  rebuilt?: string;
  /** No replica was open when it began: what runs then is what a lost database knew of. */
  bare?: boolean;
  /** Until then routers keep the table that they have; null: that is over. */
  held_until?: number | null;
  /** Nodes with an open workflow that a ledger which began anew has not heard of yet. */
  expected: string[];
  /** Replicas that didn't answer in time → the nodes that stay blocked for it (nodesOf). */
  silent: Record<string, string>;
  /** Node → hellos from then on count: something may run there that nobody has told of (rebuild.ts). */
  doubted?: Record<string, number>;
  /** When those were asked last. */
  silent_asked?: number;
  brake: {
    on: boolean;
    by: BrakeStatus['by'];
    since: number | null;
    reason: string;
    /** So many silent nodes an operator released it for. */
    spared: number;
    /** More than this share of the nodes silent at once, and at least so many of them, engage it. */
    share: number;
    min: number;
  };
  /** Node → when it was forgotten: facts of before are on their way still. The latest only. */
  forgotten: Record<string, number>;
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
  exits: { event: EngineEvent; why: string; at: number }[];
  /** What somebody should look at, newest last. */
  alarms: Alarm[];
  journal: { at: number; text: string }[];
}

export const emptyLedger = (epoch: string, now: number): LedgerState => ({
  v: 1,
  epoch,
  began_at: now,
  rebuilding: null,
  expected: [],
  silent: {},
  brake: { on: false, by: null, since: null, reason: '', spared: 0, share: 1 / 3, min: 3 },
  forgotten: {},
  last_fence: 0,
  version: 0,
  nodes: {},
  grants: {},
  waiting: [],
  endpoints: {},
  instances: {},
  exits: [],
  alarms: [],
  journal: [],
});

export const JOURNAL_LENGTH = 50;
const ALARMS = 20;

export function note(state: { journal: { at: number; text: string }[] }, now: number, text: string): void {
  state.journal.push({ at: now, text });
  if (state.journal.length > JOURNAL_LENGTH) state.journal.splice(0, state.journal.length - JOURNAL_LENGTH);
}

/** In the journal too. The same again is no news. */
export function alarm(state: LedgerState, now: number, text: string, about?: Alarm['about']): void {
  if (state.alarms.at(-1)?.text === text) return;
  const said = about === undefined ? { at: now, text } : { at: now, text, about };
  state.alarms = [...state.alarms, said].slice(-ALARMS);
  note(state, now, text);
}

/** Slots of a node that some grant holds. */
export function heldOn(state: LedgerState, nodeId: string, exceptReplica: string | null = null): number {
  const grants = Object.values(state.grants).filter(g => g.replica !== exceptReplica);
  return heldBy(grants, nodeId);
}

/** Node → the grants that hold something on it. Whoever looks at all nodes makes it once: a fleet has thousands of both. */
export function grantsByNode(state: LedgerState): Map<string, Grant[]> {
  const on = new Map<string, Grant[]>();
  for (const g of Object.values(state.grants)) {
    for (const node of new Set(g.members.map(m => m.node))) {
      const there = on.get(node);
      if (there === undefined) on.set(node, [g]);
      else there.push(g);
    }
  }
  return on;
}

const heldBy = (grants: Grant[], nodeId: string): number =>
  grants
    .flatMap(g => g.members)
    .filter(m => m.node === nodeId)
    .reduce((mask, m) => union(mask, maskOf(m.slots)), 0);

/** Of a replica's memo, which names the nodes of all its members. */
export const nodesOf = (memo: string): string[] => memo.split(', ');

/** What runs on it is known to this ledger. */
export const isHeard = (state: LedgerState, { facts }: NodeEntry): boolean =>
  facts.hello_at >= Math.max(state.began_at, state.doubted?.[facts.node_id] ?? 0);

/** Why nothing is granted on a node whatever it has free, or null. */
export function blockOf(state: LedgerState, nodeId: string): string | null {
  if (state.rebuilding !== null)
    return `the ledger is being rebuilt (${state.rebuilding.why}): it grants when all replicas have said what they hold`;
  const entry = state.nodes[nodeId];
  if (entry !== undefined && !isHeard(state, entry))
    return 'it has not said hello since the ledger began anew, so that what runs there is not known';
  const [replica] = Object.entries(state.silent).find(([, at]) => nodesOf(at).includes(nodeId)) ?? [];
  return replica === undefined
    ? null
    : `replica/${replica} was there and has not said what it holds: see why its workflow does not answer`;
}

/** Nodes with what is free; `exceptReplica`: its own GPUs count as free (for `apply` and `plan`). */
export function candidates(state: LedgerState, exceptReplica: string | null = null): Candidate[] {
  const on = grantsByNode(state);
  return Object.values(state.nodes).map(n => {
    const { node_id, usable, foreign } = n.facts;
    const holding = (on.get(node_id) ?? []).filter(g => g.replica !== exceptReplica);
    return {
      facts: n.facts,
      cordoned: n.cordoned,
      draining: n.draining,
      blocked: blockOf(state, node_id),
      free: without(without(usable, foreign), heldBy(holding, node_id)),
    };
  });
}

/** `on`: the grants that hold something on it. */
export function gpuCounts(state: LedgerState, entry: NodeEntry, on: Grant[] = Object.values(state.grants)) {
  const id = entry.facts.node_id;
  const held = heldBy(on, id);
  const leaked = on
    .filter(g => g.left[id] !== undefined)
    .flatMap(g => g.members.filter(m => m.node === id).flatMap(m => m.slots));
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
