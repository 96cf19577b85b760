// How a generation and a replica end: drain, stop with proof, what follows the stop. INV-1, INV-2: GPUs go back with
// proof, or the hold stays. INV-7: all members are stopped; nothing follows before each one's proof is there, or its
// hold is left.
import { TIMING } from '../../contracts/timing.js';
import { abortAll, ask, enter, isGang, log, member, named, unstopped } from './core.js';
import * as make from './make.js';
import type { AfterStop, Member, ReplicaEffect, ReplicaEvent, ReplicaState } from './state.js';

/** The order is given again after 5, 10, 20, 40, 60 s: a node that refuses answers in milliseconds. */
const AGAIN_MS = 5_000;
const AGAIN_LONGEST_MS = 60_000;

const stopBound = (s: ReplicaState): number => (s.stop_ms ?? TIMING.stopAssumed) + TIMING.stopMargin;

export function stop(s: ReplicaState, now: number, after: AfterStop, why: string): ReplicaEffect[] {
  const wasServing = s.phase === 'ready' || s.phase === 'draining';
  s.after_stop = after;
  s.draining_key = null;
  for (const m of unstopped(s)) m.state = 'stopping';
  s.stop_tries = 0;
  enter(s, now, 'stopping', why, stopBound(s));
  const effects: ReplicaEffect[] = [
    ...abortAll(),
    { do: 'clear_timer', id: 'stop_again' },
    ...(unstopped(s).length === 0 ? conclude(s, now) : [stopEffect(s)]),
  ];
  // The endpoint leaves the table before the engine does, so that no router sends it anything more.
  if (wasServing) effects.unshift({ do: 'ledger', msg: make.endpointMsg(s, null) });
  return effects;
}

/** To whom it isn't proven yet; a repeated order finds the others as they were. */
export function stopEffect(s: ReplicaState): ReplicaEffect {
  const open = unstopped(s);
  for (const m of open) m.unproven = null;
  return { do: 'stop', bound_ms: stopBound(s), orders: make.stopOrders(s, open, s.reason) };
}

export function onStopped(s: ReplicaState, proofs: Proofs, now: number): ReplicaEffect[] {
  for (const { node, proof } of proofs) {
    const m = s.members.find(m => m.node === node);
    if (m !== undefined) Object.assign(m, { proof, unproven: null, pid: null, state: 'stopped' });
  }
  return conclude(s, now);
}

type Proofs = Extract<ReplicaEvent, { type: 'stopped' }>['proofs'];

export function onStopFailed(
  s: ReplicaState,
  ev: Extract<ReplicaEvent, { type: 'stop_failed' }>,
  now: number,
): ReplicaEffect[] {
  const m = s.members.find(m => m.node === ev.node);
  if (m === undefined || m.proof !== null) return [];
  m.unproven = { sentence: ev.sentence, leaked: ev.leaked };
  if (ev.leaked) log(s, now, `GPUs on ${m.node} are leaked: ${ev.sentence}`);
  return conclude(s, now);
}

/** Something about the stop has changed: is it over, and how? */
export function conclude(s: ReplicaState, now: number): ReplicaEffect[] {
  const open = unstopped(s);
  if (open.length === 0) return s.members.some(m => m.gone !== null) ? leave(s, now) : afterStop(s, now);
  // The others' answers come within the bound of their orders.
  if (open.some(m => m.unproven === null)) return [];
  return withoutProof(s, open, now);
}

function afterStop(s: ReplicaState, now: number): ReplicaEffect[] {
  const after: AfterStop = s.cancelled ? { next: 'end' } : (s.after_stop ?? { next: 'renew' });
  switch (after.next) {
    case 'renew':
      return ask(s, now, 'asking the ledger for the next generation', make.proven(s));
    case 'back_off':
      // The grant is kept through the wait: nobody takes the GPUs of a replica that is only waiting to try again.
      s.after_stop = { next: 'renew' };
      enter(
        s,
        now,
        'backing_off',
        `next try in ${Math.round(after.wait / 1000)} s; ${s.last_failure?.sentence ?? ''}`,
        after.wait,
      );
      return [{ do: 'timer', id: 'back_off', ms: after.wait }];
    case 'end':
      return finish(s, now, { kind: 'stopped', holds: [] }, 'stopped as asked', make.proven(s));
    case 'fail':
      return failed(s, after, now);
  }
}

/** Every order was answered, and not each with a proof. */
function withoutProof(s: ReplicaState, open: Member[], now: number): ReplicaEffect[] {
  const at = open.map(m => m.node).join(', ');
  const said = open.map(m => (open.length > 1 ? `${m.node}: ` : '') + m.unproven!.sentence).join('; ');
  if (s.cancelled) {
    // The hold and the later stop belong to fleet and node from here on.
    const outcome = { kind: 'stopped' as const, holds: open.map(m => m.node) };
    return finish(s, now, outcome, `hold left on ${at}: ${said}`, make.proven(s));
  }
  if (open.every(m => m.unproven!.leaked)) {
    if (s.after_stop?.next === 'fail') return failed(s, s.after_stop, now);
    return ask(s, now, `GPUs on ${at} are leaked (${said}); asking for others`, make.proven(s));
  }
  // Lost contact is not "free" (INV-2): the order is given again until the node answers.
  const wait = Math.min(AGAIN_LONGEST_MS, AGAIN_MS * 2 ** s.stop_tries);
  s.stop_tries++;
  const reason = `${at} ${open.length > 1 ? 'have' : 'has'} not stopped it yet: ${said}`;
  // Said once: a node that is away for a day would push everything else out of the journal.
  if (s.reason !== reason) enter(s, now, 'stopping', reason, null);
  s.deadline = now + wait + stopBound(s);
  return [{ do: 'timer', id: 'stop_again', ms: wait }];
}

const failed = (
  s: ReplicaState,
  { code, sentence }: Extract<AfterStop, { next: 'fail' }>,
  now: number,
  release: make.Released | null = make.proven(s),
): ReplicaEffect[] =>
  finish(s, now, { kind: 'failed', code, sentence, digest: s.last_failure }, sentence, release);

/**
 * Goes on without what some members held: their hold is the ledger's (INV-1), or was ended by an operator's word. Not
 * counted against restart.max_failures: the node was lost, not the engine.
 */
export function leave(
  s: ReplicaState,
  now: number,
  why = s.members.flatMap(m => m.gone?.why ?? []).join('; '),
): ReplicaEffect[] {
  const held = make.proven(s);
  const release = held.members.length === 0 ? null : held;
  const aborts: ReplicaEffect[] = [
    ...abortAll(),
    { do: 'clear_timer', id: 'stop_again' },
    { do: 'clear_timer', id: 'back_off' },
    { do: 'clear_timer', id: 'node_loss' },
  ];
  s.draining_key = null;
  if (s.cancelled) {
    const holds = held.members.filter(m => m.proof === null).map(m => m.node);
    return [...aborts, ...finish(s, now, { kind: 'stopped', holds }, `stopped as asked; ${why}`, release)];
  }
  if (s.after_stop?.next === 'fail') return [...aborts, ...failed(s, s.after_stop, now, release)];
  s.exclude = [];
  return [...aborts, ...ask(s, now, `${why}: asking for other GPUs`, release)];
}

/** `left`: an earlier run's engine; this run has no endpoint of it to show as draining, it only leaves the table. */
export function drain(
  s: ReplicaState,
  now: number,
  after: AfterStop,
  why: string,
  left = false,
): ReplicaEffect[] {
  s.after_stop = after;
  for (const m of s.members) m.state = 'draining';
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
  release: make.Released | null = null,
): ReplicaEffect[] {
  const msg = make.release(s, release, s.reserving);
  s.outcome = outcome;
  s.reserving = null;
  s.fence = null;
  s.endpoint = null;
  const left = new Set(release?.members.filter(m => m.proof === null).map(m => m.node));
  for (const m of s.members) Object.assign(m, { pid: null, state: left.has(m.node) ? 'left' : 'stopped' });
  enter(s, now, outcome?.kind === 'failed' ? 'failed' : 'stopped', why, null);
  return [{ do: 'ledger', msg }];
}

/** A failure as people are told of it: which member, where there are several. */
export function told(s: ReplicaState, rank: number, sentence: string): string {
  const m = member(s, rank);
  return isGang(s) && m !== undefined ? `${named(s, m)}: ${sentence}` : sentence;
}
