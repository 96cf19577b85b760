// What nodes tell the ledger: their facts, the engines that run on them, their loss. A returning node reports first,
// and each of its engines is then kept or stopped (INV-5, INV-6).
import type { NodeFacts, RunningEngine } from '../../contracts/messages.js';
import { REPLICA_NAME_PATTERN } from '../../contracts/names.js';
import type { Endpoint } from '../../contracts/routes.js';
import { MAX_SLOTS } from '../slots.js';
import type { LedgerEffect } from './effects.js';
import { dropEndpoint, holdTable, isRoute, setEndpoint } from './endpoints.js';
import { AT_HELLO, alarm, type Grant, type LedgerState, note } from './state.js';

/** A fence is a time in ms: one far ahead of now is no fence of ours, and would end their growth. */
const FENCE_AHEAD_MS = 86_400_000;
/** Facts overtake a forgetting by seconds at most. */
const FORGOTTEN = 50;
/** A hello may have been written this long before it was heard: what got ready since then isn't missing. */
const HELLO_LAG_MS = 30_000;

export function nodeFacts(state: LedgerState, told: NodeFacts, now: number, effects: LedgerEffect[]): void {
  const { running, ...facts } = told;
  const known = state.nodes[facts.node_id];
  if (known !== undefined && known.facts.seq >= facts.seq) return;
  if (facts.hello_at <= (state.forgotten[facts.node_id] ?? 0)) return;
  delete state.forgotten[facts.node_id];
  if (known?.facts.state !== facts.state)
    note(state, now, `${facts.node_id} is ${facts.state}: ${facts.reason}`);
  state.expected = state.expected.filter(n => n !== facts.node_id);
  state.nodes[facts.node_id] = { cordoned: false, draining: false, ...known, facts };
  if (facts.hello_at > (known?.facts.hello_at ?? 0)) reconcile(state, facts, running, now, effects);
}

function reconcile(
  state: LedgerState,
  facts: Omit<NodeFacts, 'running'>,
  running: RunningEngine[],
  now: number,
  effects: LedgerEffect[],
): void {
  const node = facts.node_id;
  // Each has a GPU: a node that tells of more than it can have may not fill the ledger (INV-11).
  for (const engine of running.slice(0, MAX_SLOTS)) found(state, node, engine, now);
  for (const g of Object.values(state.grants)) {
    if (!g.members.some(m => m.node === node)) continue;
    // Something may have changed on it: what could not be stopped is tried again.
    if (g.settling?.[node] === AT_HELLO) g.settling = { ...g.settling, [node]: 0 };
    const newer = newerThan(state, g.replica, g.fence);
    if (newer?.ready_at !== undefined)
      giveUp(state, g, `its replica has a newer engine (fence ${newer.fence})`, now);
    if (running.some(e => e.fence === g.fence && e.replica === g.replica)) continue;
    if (g.unclaimed !== undefined) giveUp(state, g, `${node} has it no longer`, now);
    else if (
      g.gave_up === undefined &&
      g.ready_at !== undefined &&
      g.ready_at < facts.hello_at - HELLO_LAG_MS
    ) {
      const reason = `${node} said hello and has no such engine, nor an end of it to tell`;
      effects.push({
        do: 'reply',
        replica: g.replica,
        reply: { kind: 'node', key: '', node, fence: g.fence, news: 'missing', at: now, reason },
      });
    }
  }
}

/** What a workflow of this replica holds that is newer. */
const newerThan = (state: LedgerState, replica: string, fence: number): Grant | undefined =>
  Object.values(state.grants).find(
    g => g.replica === replica && g.fence > fence && g.unclaimed === undefined && g.gave_up === undefined,
  );

function found(state: LedgerState, node: string, e: RunningEngine, now: number): void {
  if (!REPLICA_NAME_PATTERN.test(e.replica)) {
    alarm(
      state,
      now,
      `${node} tells of an engine of ${JSON.stringify(e.replica.slice(0, 80))}: no such name, ignored`,
    );
    return;
  }
  if (e.fence > now + FENCE_AHEAD_MS) {
    alarm(
      state,
      now,
      `${node} tells of ${e.replica} with fence ${e.fence}, which lies in the future: ignored`,
    );
    return;
  }
  state.last_fence = Math.max(state.last_fence, e.fence);
  const known = state.grants[e.fence];
  if (known !== undefined && known.replica !== e.replica) {
    alarm(
      state,
      now,
      `${node} tells of ${e.replica} with fence ${e.fence}, which is ${known.replica}'s: ignored`,
    );
    return;
  }
  const told = known?.members.some(m => m.node === node && m.rank === e.rank) ?? false;
  // Only what nobody claims grows by hearsay: a node can't put itself into somebody's grant.
  if (known !== undefined && known.unclaimed === undefined) return;
  // Nor into that of another node: it could end it by leaving, or by an exit of its own (INV-8).
  if (known?.members.some(m => m.node !== node)) {
    alarm(
      state,
      now,
      `${node} tells of ${e.replica} with fence ${e.fence}, which ${known.members[0]!.node} has: ignored`,
    );
    return;
  }
  const grant: Grant = known ?? {
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
  };
  if (!told) {
    const member = { node, rank: e.rank, slots: e.slots };
    grant.members = [...grant.members, member].sort((a, b) => a.rank - b.rank);
    state.grants[e.fence] = grant;
    note(state, now, `${node} runs ${e.replica} (fence ${e.fence}), which no grant covers`);
  }
  if (grant.gave_up !== undefined) return;
  const newer = newerThan(state, e.replica, e.fence);
  if (newer !== undefined) giveUp(state, grant, `its replica has a newer engine (fence ${newer.fence})`, now);
  else if (e.state === 'exited') giveUp(state, grant, 'it has ended, and its stop is not proven', now);
  else if (e.state === 'ready' && isRoute(e.serves) && e.rank === 0 && !isSpokenFor(state, e.replica)) {
    setEndpoint(state, grant, routeOf(grant, node, e, e.serves), now);
    holdTable(state, now);
  }
}

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

export function giveUp(state: LedgerState, g: Grant, why: string, now: number): void {
  if (g.gave_up !== undefined) return;
  g.gave_up = why;
  dropEndpoint(state, g.replica, g.fence, now);
  note(state, now, `${g.replica} (fence ${g.fence}): ${why}`);
}

/** Tells replicas that their node is lost, and that it isn't (or that the brake holds). */
export function lossNews(state: LedgerState, now: number, effects: LedgerEffect[]): void {
  for (const g of Object.values(state.grants)) {
    if (g.gave_up !== undefined || g.unclaimed !== undefined) continue;
    for (const { node } of g.members) {
      const facts = state.nodes[node]?.facts;
      // A ledger that began anew hasn't heard of it yet: no news.
      if (facts === undefined) continue;
      const lost = facts.state === 'lost' && !state.brake.on;
      const told = g.told_lost?.includes(node) ?? false;
      if (lost === told) continue;
      g.told_lost = lost ? [...(g.told_lost ?? []), node] : g.told_lost!.filter(n => n !== node);
      const reason = lost
        ? facts.reason
        : facts.state === 'lost'
          ? `the brake is on: ${state.brake.reason}`
          : `${node} is ${facts.state}`;
      effects.push({
        do: 'reply',
        replica: g.replica,
        reply: {
          kind: 'node',
          key: '',
          node,
          fence: g.fence,
          news: lost ? 'lost' : 'back',
          at: lost ? facts.since : now,
          reason,
        },
      });
    }
  }
}

/** The operator's word that nothing of it runs any more ends every hold on it (INV-1). */
export function forget(
  state: LedgerState,
  node: string,
  by: string,
  now: number,
  effects: LedgerEffect[],
): void {
  const there = state.nodes[node]?.facts.state;
  if (there === undefined) return;
  if (there === 'connected' || there === 'unsupervised') {
    note(state, now, `${node} was not forgotten for ${by}: it is ${there} again`);
    return;
  }
  alarm(state, now, `${node} was forgotten by ${by}: what it held counts as stopped by the operator's word`);
  delete state.nodes[node];
  state.forgotten = Object.fromEntries(
    [...Object.entries(state.forgotten), [node, now] as const].slice(-FORGOTTEN),
  );
  state.expected = state.expected.filter(n => n !== node);
  for (const [replica, at] of Object.entries(state.silent)) if (at === node) delete state.silent[replica];
  for (const g of Object.values(state.grants)) {
    if (!g.members.some(m => m.node === node)) continue;
    dropEndpoint(state, g.replica, g.fence, now);
    const { [node]: _, ...left } = g.left;
    g.left = left;
    g.members = g.members.filter(m => m.node !== node);
    if (g.members.length === 0) delete state.grants[g.fence];
    // Unclaimed: a run may be at it; where there is none, nobody hears it.
    if (g.gave_up !== undefined) continue;
    effects.push({
      do: 'reply',
      replica: g.replica,
      reply: {
        kind: 'node',
        key: '',
        node,
        fence: g.fence,
        news: 'forgotten',
        at: now,
        reason: `${node} was forgotten by ${by}`,
      },
    });
  }
}
