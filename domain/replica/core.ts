// What every transition of the replica uses: the journal, its members, entering a phase, asking the ledger.
import type { GrantMember } from '../../contracts/messages.js';
import { JOURNAL_LENGTH } from '../ledger/state.js';
import { excludeTimer, stillExcluded } from './exclusions.js';
import * as make from './make.js';
import type { Member, Op, ReplicaEffect, ReplicaState } from './state.js';

/** The node of the member with that rank. */
export const node = (s: ReplicaState, rank = 0): string => member(s, rank)?.node ?? '?';

export const member = (s: ReplicaState, rank: number): Member | undefined =>
  s.members.find(m => m.rank === rank);

export const isGang = (s: { members: readonly unknown[] }): boolean => s.members.length > 1;

/** How people are told of a member: its node, with its rank where there are several. */
export const named = (s: { members: readonly unknown[] }, m: { node: string; rank: number }): string =>
  isGang(s) ? `${m.node} (rank ${m.rank})` : m.node;

export const membersOf = (granted: GrantMember[]): Member[] =>
  granted
    .map(({ node, rank }) => ({
      node,
      rank,
      gpus: [],
      pid: null,
      ports: {},
      state: 'preparing',
      prepared: null,
      refused: null,
      proof: null,
      unproven: null,
      gone: null,
      watched: false,
      stalled_at: null,
      loads: null,
    }))
    .sort((a, b) => a.rank - b.rank);

/** Takes what the ledger says. One member is on no fabric, whatever is said. */
export function hold(
  s: ReplicaState,
  r: { fence: number; members: GrantMember[]; fabric?: string | null },
  why: string,
): void {
  s.fence = r.fence;
  s.last_fence = Math.max(s.last_fence, r.fence);
  const fabric = r.members.length > 1 ? (r.fabric ?? null) : null;
  s.grant = { members: r.members, why, ...(fabric === null ? {} : { fabric }) };
  s.members = membersOf(r.members);
}

/** Whose stop is neither proven nor given up. */
export const unstopped = (s: ReplicaState): Member[] =>
  s.members.filter(m => m.proof === null && m.gone === null);

const OPS: readonly Op[] = ['launch', 'prepare', 'spawn', 'adopt', 'await_ready', 'drain'];

/** Nothing that is under way for this generation is waited for any more. */
export const abortAll = (): ReplicaEffect[] => OPS.map(op => ({ do: 'abort', op }));

export function log(s: ReplicaState, now: number, text: string): void {
  s.journal.push({ at: now, text });
  if (s.journal.length > JOURNAL_LENGTH) s.journal.splice(0, s.journal.length - JOURNAL_LENGTH);
}

/** Every waiting state has a reason and, but for pending and ready, a deadline (INV-9). */
export function enter(
  s: ReplicaState,
  now: number,
  phase: ReplicaState['phase'],
  reason: string,
  within: number | null,
): void {
  s.phase = phase;
  s.reason = reason;
  s.since = now;
  s.deadline = within === null ? null : now + within;
  if (phase !== 'loading') s.progress = null;
  log(s, now, `${phase}: ${reason}`);
}

/**
 * The reserve of the next generation, with what is released in the same message. Timers of an earlier wait end: the
 * spec that armed them may not be the present one.
 */
export function ask(
  s: ReplicaState,
  now: number,
  reason: string,
  release: make.Released | null = null,
): ReplicaEffect[] {
  s.exclude = stillExcluded(s.exclude, now);
  const msg = make.reserve(s, release);
  s.reserving = msg.key;
  s.fence = null;
  s.grant = null;
  s.claiming = false;
  s.lost = [];
  s.members = [];
  s.endpoint = null;
  s.key_id = null;
  s.stop_ms = null;
  s.was_ready = false;
  s.failing = null;
  s.after_stop = null;
  enter(s, now, 'pending', reason, s.spec.placement.timeout);
  return [{ do: 'ledger', msg }, { do: 'clear_timer', id: 'node_loss' }, ...waitTimers(s, now)];
}

/** Timers of pending: placement.timeout, and the end of the next exclusion. */
export function waitTimers(s: ReplicaState, now: number): ReplicaEffect[] {
  const effects: ReplicaEffect[] = [
    { do: 'clear_timer', id: 'pending' },
    { do: 'clear_timer', id: 'exclusion' },
  ];
  if (s.deadline !== null) effects.push({ do: 'timer', id: 'pending', ms: Math.max(1, s.deadline - now) });
  const ms = excludeTimer(s.exclude, now);
  if (ms !== null) effects.push({ do: 'timer', id: 'exclusion', ms });
  return effects;
}
