// How a generation and a replica end: drain, stop with proof, what follows the stop. INV-1, INV-2: GPUs go back with
// proof, or the hold stays.
import { TIMING } from '../../contracts/timing.js';
import { ask, enter, log, node } from './core.js';
import * as make from './make.js';
import type { AfterStop, ReplicaEffect, ReplicaEvent, ReplicaState } from './state.js';

/** The order is given again after 5, 10, 20, 40, 60 s: a node that refuses answers in milliseconds. */
const AGAIN_MS = 5_000;
const AGAIN_LONGEST_MS = 60_000;

const stopBound = (s: ReplicaState): number => (s.stop_ms ?? TIMING.stopAssumed) + TIMING.stopMargin;

export function stop(s: ReplicaState, now: number, after: AfterStop, why: string): ReplicaEffect[] {
  const wasServing = s.phase === 'ready' || s.phase === 'draining';
  s.after_stop = after;
  s.draining_key = null;
  s.members = s.members.map(m => ({ ...m, state: 'stopping' }));
  s.stop_tries = 0;
  enter(s, now, 'stopping', why, stopBound(s));
  const effects: ReplicaEffect[] = [
    { do: 'abort', op: 'launch' },
    { do: 'abort', op: 'adopt' },
    { do: 'abort', op: 'await_ready' },
    { do: 'abort', op: 'drain' },
    { do: 'clear_timer', id: 'stop_again' },
    stopEffect(s),
  ];
  // The endpoint leaves the table before the engine does, so that no router sends it anything more.
  if (wasServing) effects.unshift({ do: 'ledger', msg: make.endpointMsg(s, null) });
  return effects;
}

export function afterStop(s: ReplicaState, proofs: make.Proofs, now: number): ReplicaEffect[] {
  const after: AfterStop = s.cancelled ? { next: 'end' } : (s.after_stop ?? { next: 'renew' });
  switch (after.next) {
    case 'renew':
      return ask(s, now, 'asking the ledger for the next generation', make.released(s, proofs));
    case 'back_off':
      // The grant is kept through the wait: nobody takes the GPUs of a replica that is only waiting to try again.
      s.members = s.members.map(m => ({ ...m, pid: null, state: 'stopped' }));
      s.after_stop = { next: 'renew' };
      s.proofs = proofs;
      enter(
        s,
        now,
        'backing_off',
        `next try in ${Math.round(after.wait / 1000)} s; ${s.last_failure?.sentence ?? ''}`,
        after.wait,
      );
      return [{ do: 'timer', id: 'back_off', ms: after.wait }];
    case 'end':
      return finish(s, now, { kind: 'stopped', holds: [] }, 'stopped as asked', make.released(s, proofs));
    case 'fail':
      return finish(
        s,
        now,
        { kind: 'failed', code: after.code, sentence: after.sentence, digest: s.last_failure },
        after.sentence,
        make.released(s, proofs),
      );
  }
}

export function onStopFailed(
  s: ReplicaState,
  ev: Extract<ReplicaEvent, { type: 'stop_failed' }>,
  now: number,
): ReplicaEffect[] {
  const at = node(s);
  if (s.cancelled) {
    // The hold and the later stop belong to fleet and node from here on.
    return finish(
      s,
      now,
      { kind: 'stopped', holds: [at] },
      `hold left on ${at}: ${ev.sentence}`,
      make.unproven(s),
    );
  }
  if (ev.leaked) {
    log(s, now, `GPUs on ${at} are leaked: ${ev.sentence}`);
    if (s.after_stop?.next === 'fail') {
      return finish(
        s,
        now,
        { kind: 'failed', code: s.after_stop.code, sentence: s.after_stop.sentence, digest: s.last_failure },
        s.after_stop.sentence,
        make.unproven(s),
      );
    }
    return ask(s, now, `GPUs on ${at} are leaked (${ev.sentence}); asking for others`, make.unproven(s));
  }
  // Lost contact is not "free" (INV-2): the order is given again until the node answers.
  const wait = Math.min(AGAIN_LONGEST_MS, AGAIN_MS * 2 ** s.stop_tries);
  s.stop_tries++;
  const reason = `${at} has not stopped it yet: ${ev.sentence}`;
  // Said once: a node that is away for a day would push everything else out of the journal.
  if (s.reason !== reason) enter(s, now, 'stopping', reason, null);
  s.deadline = now + wait + stopBound(s);
  return [{ do: 'timer', id: 'stop_again', ms: wait }];
}

export const stopEffect = (s: ReplicaState): ReplicaEffect => ({
  do: 'stop',
  bound_ms: stopBound(s),
  orders: make.stopOrders(s, s.reason),
});

/** `left`: an earlier run's engine; this run has no endpoint of it to show as draining, it only leaves the table. */
export function drain(
  s: ReplicaState,
  now: number,
  after: AfterStop,
  why: string,
  left = false,
): ReplicaEffect[] {
  s.after_stop = after;
  s.members = s.members.map(m => ({ ...m, state: 'draining' }));
  enter(s, now, 'draining', why, s.spec.drain_timeout);
  const msg = make.endpointMsg(s, left ? null : 'draining', true);
  s.draining_key = msg.key;
  return [{ do: 'ledger', msg }];
}

export function end(s: ReplicaState, now: number, code: string, sentence: string): ReplicaEffect[] {
  const last = s.last_failure === null ? '' : `; last failure: ${s.last_failure.sentence}`;
  return finish(
    s,
    now,
    { kind: 'failed', code, sentence: `${sentence}${last}`, digest: s.last_failure },
    sentence,
  );
}

export function finish(
  s: ReplicaState,
  now: number,
  outcome: ReplicaState['outcome'],
  why: string,
  release?: make.Released,
): ReplicaEffect[] {
  const msg = make.release(s, release ?? null, s.reserving);
  s.outcome = outcome;
  s.reserving = null;
  s.fence = null;
  s.endpoint = null;
  s.members = s.members.map(m => ({ ...m, pid: null, state: 'stopped' }));
  enter(s, now, outcome?.kind === 'failed' ? 'failed' : 'stopped', why, null);
  return [{ do: 'ledger', msg }];
}
