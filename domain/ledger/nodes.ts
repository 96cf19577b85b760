// What nodes tell the ledger: their facts, the engines that run on them, their loss. A returning node reports first,
// and each of its engines is then kept or stopped (INV-5, INV-6).
import type { NodeFacts, RunningEngine } from '../../contracts/messages.js';
import { hasSlot, MAX_SLOTS, maskOf } from '../slots.js';
import type { LedgerEffect } from './effects.js';
import { found, newerThan } from './found.js';
import { giveUp, giveUpOn } from './holds.js';
import { AT_HELLO, isHeard, type LedgerState, note } from './state.js';

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
  if (state.doubted !== undefined && isHeard(state, state.nodes[facts.node_id]!))
    delete state.doubted[facts.node_id];
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
    if (g.unclaimed !== undefined) giveUpOn(state, g, node, `${node} has it no longer`, now);
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

/**
 * Tells each replica once that a GPU under it can't go on; what it does about that is its own decision. At each step, not at
 * the node's facts: what is claimed on a node that is sick already has a replica from then on.
 */
export function sickNews(state: LedgerState, now: number, effects: LedgerEffect[]): void {
  for (const g of Object.values(state.grants)) {
    if (g.gave_up !== undefined || g.unclaimed !== undefined) continue;
    for (const { node, slots } of g.members) {
      const facts = state.nodes[node]?.facts;
      if (facts === undefined) continue;
      const sick = facts.fatal?.find(f => hasSlot(maskOf(slots), f.slot));
      const told = g.told_sick?.includes(node) ?? false;
      if ((sick !== undefined) === told) continue;
      const others = (g.told_sick ?? []).filter(n => n !== node);
      g.told_sick = sick === undefined ? others : [...others, node];
      if (sick === undefined) continue;
      const reason = `slot ${sick.slot} of ${node}: ${sick.reason}`;
      effects.push({
        do: 'reply',
        replica: g.replica,
        reply: { kind: 'node', key: '', node, fence: g.fence, news: 'sick', at: now, reason },
      });
    }
  }
}
