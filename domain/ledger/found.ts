// Engines that a node's hello tells of. Such that no grant covers are unclaimed: kept, held, routed, offered to the next
// run of their name (INV-5). A gang is gathered member by member, as its nodes say hello.
import type { RunningEngine } from '../../contracts/messages.js';
import { REPLICA_NAME_PATTERN } from '../../contracts/names.js';
import type { Endpoint } from '../../contracts/routes.js';
import { TIMING } from '../../contracts/timing.js';
import { holdTable, isRoute, membersChanged, setEndpoint } from './endpoints.js';
import { giveUp, giveUpOn } from './holds.js';
import { alarm, type Grant, isHeard, isWhole, type LedgerState, note, stopReason } from './state.js';

/** A fence is a time in ms: one far ahead of now is no fence of ours, and would end their growth. */
const FENCE_AHEAD_MS = 86_400_000;
/** How long the members of a gang that nobody speaks for are waited for, once the first was told of. */
const GATHER_MS = TIMING.rebuildPatience;

/** What a workflow of this replica holds that is newer. */
export const newerThan = (state: LedgerState, replica: string, fence: number): Grant | undefined =>
  Object.values(state.grants).find(
    g => g.replica === replica && g.fence > fence && g.unclaimed === undefined && g.gave_up === undefined,
  );

export function found(state: LedgerState, node: string, e: RunningEngine, now: number): void {
  const ignored = whyIgnored(state, node, e, now);
  if (ignored !== null) {
    alarm(state, now, `${node} tells of ${ignored}: ignored`);
    return;
  }
  state.last_fence = Math.max(state.last_fence, e.fence);
  const known = state.grants[e.fence];
  // Only what nobody claims grows by hearsay: a node can't put itself into somebody's grant.
  if (known !== undefined && known.unclaimed === undefined) {
    backFromTheDead(state, known, node, e, now);
    return;
  }
  const grant = known ?? unclaimed(node, e, now);
  if (!grant.members.some(m => m.node === node)) {
    grant.members = withMember(grant, node, e);
    if (grant.fabric === undefined && e.fabric != null) grant.fabric = e.fabric;
    state.grants[e.fence] = grant;
    membersChanged(state, grant, now);
    note(state, now, `${node} runs ${e.replica} (fence ${e.fence}), which no grant covers`);
  }
  if (stopReason(grant, node) !== undefined) return;
  const newer = newerThan(state, e.replica, e.fence);
  if (newer !== undefined) giveUp(state, grant, `its replica has a newer engine (fence ${newer.fence})`, now);
  else if (e.state === 'exited')
    giveUpOn(state, grant, node, 'it has ended, and its stop is not proven', now);
  else if (e.state === 'ready' && isRoute(e.serves) && e.rank === 0 && !isSpokenFor(state, e.replica)) {
    setEndpoint(state, grant, routeOf(grant, node, e, e.serves), now);
    holdTable(state, now);
  }
}

/** What a node can't be believed (INV-8), or null. */
function whyIgnored(state: LedgerState, node: string, e: RunningEngine, now: number): string | null {
  if (!REPLICA_NAME_PATTERN.test(e.replica))
    return `an engine of ${JSON.stringify(e.replica.slice(0, 80))}: no such name`;
  const engine = `${e.replica} with fence ${e.fence}`;
  if (e.fence > now + FENCE_AHEAD_MS) return `${engine}, which lies in the future`;
  const known = state.grants[e.fence];
  if (known === undefined) return null;
  if (known.replica !== e.replica) return `${engine}, which is ${known.replica}'s`;
  if (known.unclaimed === undefined || known.members.some(m => m.node === node && m.rank === e.rank))
    return null;
  // It could end what runs on another node by leaving, or by an exit of its own.
  return isMissing(known, node, e) ? null : `${engine}, which ${known.members[0]!.node} has`;
}

const unclaimed = (node: string, e: RunningEngine, now: number): Grant => ({
  key: '',
  replica: e.replica,
  run_id: '',
  continued_run_id: null,
  first_run_id: '',
  fence: e.fence,
  at: now,
  why: `found running on ${node}`,
  members: [],
  left: {},
  delivered: true,
  unclaimed: `no workflow speaks for it: its history may be lost; \`llmgw ctl replica adopt\` takes it over`,
  ...((e.nodes ?? 1) === 1 ? {} : { nodes: e.nodes!, gather_until: now + GATHER_MS }),
});

const withMember = (g: Grant, node: string, { rank, slots }: RunningEngine): Grant['members'] =>
  [...g.members, { node, rank, slots }].sort((a, b) => a.rank - b.rank);

/** The route of a replica that a workflow speaks for is that workflow's to tell, not any node's (INV-8). */
function isSpokenFor(state: LedgerState, replica: string): boolean {
  const route = state.endpoints[replica];
  const grant = route === undefined ? undefined : state.grants[route.fence];
  return grant !== undefined && grant.unclaimed === undefined;
}

const routeOf = (
  g: Grant,
  node: string,
  e: RunningEngine,
  serves: NonNullable<RunningEngine['serves']>,
): Endpoint => ({
  ...serves,
  replica: g.replica,
  fence: e.fence,
  node,
  auth: serves.key_id === null ? 'none' : 'derived',
  state: 'ready',
});

/** Members of a gang say the same of its size, and each has a rank and a node of its own. */
function isMissing(known: Grant, node: string, e: RunningEngine): boolean {
  const nodes = known.nodes ?? 1;
  return (
    (e.nodes ?? 1) === nodes &&
    e.rank < nodes &&
    !isWhole(known) &&
    !known.members.some(m => m.node === node || m.rank === e.rank)
  );
}

/** The operator's word was wrong, or the machine was away: what it runs is held again, and stopped there (INV-1). */
function backFromTheDead(
  state: LedgerState,
  known: Grant,
  node: string,
  e: RunningEngine,
  now: number,
): void {
  if (!known.forgotten?.includes(node) || known.members.some(m => m.node === node)) return;
  known.members = withMember(known, node, e);
  known.ended = { ...known.ended, [node]: 'its node was forgotten, and has come back with it' };
  note(state, now, `${node} was forgotten and runs ${e.replica} (fence ${e.fence}) still: it is stopped`);
}

/**
 * Why a gang that nobody speaks for isn't offered yet; null: it is whole, or nothing more will come. Offered in part, it
 * would be stopped for a hello that is late (INV-5).
 */
export function gathering(state: LedgerState, g: Grant): string | null {
  if (g.unclaimed === undefined || g.gave_up !== undefined || isWhole(g)) return null;
  // One of its members has ended, and so the gang has (INV-7).
  if (g.ended !== undefined || g.forgotten !== undefined) return null;
  const silent = unheard(state);
  if (g.gather_until === undefined && !mayServe(state, g, silent)) return null;
  const nodes = g.members.map(m => m.node).join(', ');
  const by =
    silent.length > 0
      ? `; ${silent.slice(0, 3).join(', ')} may have the others`
      : g.gather_until === undefined
        ? '; it serves, so the others run on a node whose agent has not said hello yet: start it'
        : '';
  return `its engine (fence ${g.fence}) is a gang of ${g.nodes}, of which only ${nodes} has told yet${by}`;
}

/**
 * It is routed, and its other members may be where nobody was heard yet: a ledger without a database knows of no node before
 * that says hello. Nodes that were given up without a hello to this ledger account for as many of them.
 */
function mayServe(state: LedgerState, g: Grant, silent: string[]): boolean {
  const route = state.endpoints[g.replica];
  if (route?.fence !== g.fence || route.state !== 'ready') return false;
  if (silent.length > 0) return true;
  const lost = Object.values(state.nodes).filter(n => !isHeard(state, n)).length;
  const forgotten = Object.values(state.forgotten).filter(at => at >= state.began_at).length;
  return lost + forgotten < g.nodes! - g.members.length;
}

/** Nodes whose engines this ledger doesn't know, and that may come. */
const unheard = (state: LedgerState): string[] => [
  ...state.expected,
  ...Object.values(state.nodes)
    .filter(n => !isHeard(state, n) && (n.facts.state !== 'lost' || state.brake.on))
    .map(n => n.facts.node_id),
];

export function lookGathering(state: LedgerState, now: number): void {
  for (const g of Object.values(state.grants))
    if (g.gather_until !== undefined && (isWhole(g) || now >= g.gather_until)) delete g.gather_until;
}

/** When a gang that is waited for is taken as it is; null: none is. */
export function nextGathered(state: LedgerState): number | null {
  const times = Object.values(state.grants)
    .map(g => g.gather_until)
    .filter(t => t !== undefined);
  return times.length === 0 ? null : Math.min(...times);
}
