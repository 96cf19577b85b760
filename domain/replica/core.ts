// What every transition of the replica uses: the journal, entering a phase, asking the ledger.
import { JOURNAL_LENGTH } from '../ledger/state.js';
import { excludeTimer, stillExcluded } from './exclusions.js';
import * as make from './make.js';
import type { ReplicaEffect, ReplicaState } from './state.js';

/** The node of the one member. */
export const node = (s: ReplicaState): string => s.grant?.members[0]?.node ?? '?';

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
export function ask(s: ReplicaState, now: number, reason: string, release?: make.Released): ReplicaEffect[] {
  s.exclude = stillExcluded(s.exclude, now);
  const msg = make.reserve(s, release);
  s.reserving = msg.key;
  s.fence = null;
  s.grant = null;
  s.claiming = false;
  s.lost = null;
  s.members = [];
  s.endpoint = null;
  s.key_id = null;
  s.stop_ms = null;
  s.was_ready = false;
  s.after_stop = null;
  s.proofs = null;
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
