// The operators' words that stand in for a proof (INV-1): a machine is gone, a GPU that counts as leaked is free.
import { common, countOf, maskOf, slotsOf, union, without } from '../slots.js';
import type { LedgerEffect } from './effects.js';
import { dropEndpoint, membersChanged } from './endpoints.js';
import { withoutMember } from './holds.js';
import { alarm, type Grant, type LedgerState, nodesOf, note } from './state.js';

/** Facts overtake a forgetting by seconds at most. */
const FORGOTTEN = 50;

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
  if (state.doubted !== undefined) delete state.doubted[node];
  state.forgotten = Object.fromEntries(
    [...Object.entries(state.forgotten), [node, now] as const].slice(-FORGOTTEN),
  );
  state.expected = state.expected.filter(n => n !== node);
  for (const [replica, at] of Object.entries(state.silent)) {
    const others = nodesOf(at).filter(n => n !== node);
    if (others.length === 0) delete state.silent[replica];
    else state.silent[replica] = others.join(', ');
  }
  for (const g of Object.values(state.grants)) {
    if (!g.members.some(m => m.node === node)) continue;
    dropEndpoint(state, g.replica, g.fence, now);
    const next = withoutMember(g, node);
    if (next === null) delete state.grants[g.fence];
    else state.grants[g.fence] = { ...next, forgotten: [...(next.forgotten ?? []), node] };
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

export interface LeakCleared {
  /** What was ended by the word. */
  cleared: { replica: string; fence: number; slots: number[] }[];
  /** Why nothing was; null: it was. */
  refused: string | null;
}

/**
 * The operator's word that slots of a node are free although their stop was never proven. `slots` null: all that was left
 * so there. With a `fence` it ends that hold alone: another one on the same GPUs has a proof, or a word, of its own. What a
 * grant holds that isn't left goes by its own stop: one such slot among those that are named refuses all. Its agent
 * must have let go of them before, or it would tell of the engine again at its next hello.
 */
export function clearLeak(
  state: LedgerState,
  node: string,
  slots: number[] | null,
  by: string,
  now: number,
  fence?: number,
): LeakCleared {
  const refused = whyNotCleared(state, node, slots, fence)?.reason ?? null;
  if (refused !== null) {
    note(state, now, `no leak on ${node} was cleared for ${by}: ${refused}`);
    return { cleared: [], refused };
  }
  const cleared: LeakCleared['cleared'] = [];
  for (const g of leftOn(state, node, fence)) {
    const held = heldBy(g, node);
    const ends = slots === null ? held : common(held, maskOf(slots));
    if (ends === 0) continue;
    cleared.push({ replica: g.replica, fence: g.fence, slots: slotsOf(ends) });
    const rest = without(held, ends);
    const next = rest === 0 ? withoutMember(g, node) : g;
    if (next === null) delete state.grants[g.fence];
    else {
      state.grants[g.fence] = next;
      membersChanged(state, next, now);
    }
    if (rest !== 0)
      g.members = g.members.map(m =>
        m.node === node ? { ...m, slots: m.slots.filter(s => common(rest, 2 ** s) !== 0) } : m,
      );
    const word = `slots ${slotsOf(ends).join(',')} of ${node} count as free by the word of ${by}`;
    note(state, now, `${word}: ${g.left[node] ?? 'left'} (${g.replica}, fence ${g.fence})`);
  }
  return { cleared, refused: null };
}

const grantsOn = (state: LedgerState, node: string): Grant[] =>
  Object.values(state.grants).filter(g => g.members.some(m => m.node === node));
const leftOn = (state: LedgerState, node: string, fence?: number): Grant[] =>
  grantsOn(state, node).filter(g => g.left[node] !== undefined && (fence === undefined || g.fence === fence));
const heldBy = (g: Grant, node: string): number =>
  g.members.filter(m => m.node === node).reduce((mask, m) => union(mask, maskOf(m.slots)), 0);

const leftMask = (state: LedgerState, node: string, fence?: number): number =>
  leftOn(state, node, fence).reduce((mask, g) => union(mask, heldBy(g, node)), 0);

/** null: there is something to clear. `held`: by a grant that isn't left. */
export function whyNotCleared(
  state: LedgerState,
  node: string,
  slots: number[] | null,
  fence?: number,
): { reason: string; held: boolean } | null {
  const left = leftMask(state, node, fence);
  if (left === 0 && fence !== undefined)
    return { reason: `nothing with fence ${fence} is left there without proof of stop`, held: false };
  const rest = slots === null ? 0 : without(maskOf(slots), left);
  if (rest === 0)
    return left !== 0 && slots?.length !== 0
      ? null
      : { reason: `no GPU of ${node} is left without proof of stop`, held: false };
  const holder = grantsOn(state, node).find(g => common(heldBy(g, node), rest) !== 0);
  const which = `slot${countOf(rest) === 1 ? '' : 's'} ${slotsOf(rest).join(',')} of ${node}`;
  return holder === undefined
    ? { reason: `${which}: held by nothing that was left without proof of stop`, held: false }
    : {
        reason: `${which}: held by replica/${holder.replica} (fence ${holder.fence}): stop it instead`,
        held: true,
      };
}
