// The replica's one transition function: (state, event, now) → effects, with the state changed in place on a copy that
// the driver owns. A late answer is known by its fence or key and ignored (INV-6). INV-1: GPUs go back only through a
// stop with proof, whichever way a generation ends.
import type { LedgerReply } from '../../contracts/messages.js';
import { ask, enter, log, waitTimers } from './core.js';
import { onEngine, onMissing, onSick } from './failing.js';
import { assertHold, lossTimer, onLooked, onNodeLoss, onNodeNews, onStale } from './holding.js';
import { onProgress, onReadyResult } from './loading.js';
import * as make from './make.js';
import { onAnswer, onGranted, onNoAnswer, onSpawned, onSpawnFailed } from './starting.js';
import type { ReplicaEffect, ReplicaEvent, ReplicaState, TimerId } from './state.js';
import { drain, end, finish, onStopFailed, onStopped, stop, stopEffect } from './stopping.js';

export function replicaStep(s: ReplicaState, ev: ReplicaEvent, now: number): ReplicaEffect[] {
  if (s.outcome !== null) return ev.type === 'ledger' ? afterTheEnd(s, ev.reply, now) : [];
  switch (ev.type) {
    case 'started':
      return started(s, now);
    case 'resumed':
      return resume(s, now);
    case 'ledger':
      return onLedger(s, ev.reply, now);
    case 'launched':
    case 'prepared':
      return onAnswer(s, ev, now);
    case 'launch_failed':
    case 'prepare_failed':
      return onNoAnswer(s, ev, now);
    case 'adopt_failed':
      return onNoAnswer(s, { ...ev, delivered: true }, now);
    case 'spawned':
      return onSpawned(s, ev, now);
    case 'spawn_failed':
      return onSpawnFailed(s, ev, now);
    case 'looked':
      return onLooked(s, ev.result, now);
    case 'look_failed':
      return s.phase === 'pending' ? end(s, now, ev.code, ev.sentence) : [];
    case 'ready_result':
      return onReadyResult(s, ev, now);
    case 'progress':
      return onProgress(s, ev.msg, now);
    case 'ignored':
      log(s, now, `ignored a signal ${ev.what} that has not its shape (${ev.fault})`);
      return [];
    case 'engine':
      return onEngine(s, ev.event, now);
    case 'stopped':
      return ev.fence === s.fence && s.phase === 'stopping' ? onStopped(s, ev.proofs, now) : [];
    case 'stop_failed':
      return ev.fence === s.fence && s.phase === 'stopping' ? onStopFailed(s, ev, now) : [];
    case 'drained':
      if (ev.fence !== s.fence || s.phase !== 'draining') return [];
      if (!ev.heard)
        log(s, now, 'no control plane instance told how the drain went; drain_timeout was waited for');
      else if (!ev.drained) log(s, now, `drain_timeout reached with ${ev.outstanding} requests outstanding`);
      return stop(s, now, s.after_stop ?? { next: 'renew' }, s.reason);
    case 'timer':
      return onTimer(s, ev.id, now);
    case 'apply':
      s.given = ev.given ?? { ...ev.spec };
      return onApply(s, ev.spec, now);
    case 'restart':
      s.exclude = [];
      return again(s, now, `restart asked for${ev.by === '' ? '' : ` by ${ev.by}`}`);
    case 'cancel':
      return onCancel(s, now);
  }
}

/** An adoption looks first: which GPUs the process has decides what is asked for. */
function started(s: ReplicaState, now: number): ReplicaEffect[] {
  if (s.adopt === null) return ask(s, now, 'asking the ledger for GPUs');
  const { node: at, pid, port } = s.adopt;
  enter(s, now, 'pending', `looking at pid ${pid} on ${at}`, null);
  return [{ do: 'look', node: at, process: { pid, port } }];
}

/** What comes while the release is on its way: a grant that is given back, a ledger that asks. */
function afterTheEnd(s: ReplicaState, r: LedgerReply, now: number): ReplicaEffect[] {
  return r.kind === 'assert' ? assertHold(s) : giveBack(s, r, now);
}

function onLedger(s: ReplicaState, r: LedgerReply, now: number): ReplicaEffect[] {
  if (r.kind === 'assert') return assertHold(s);
  if (r.kind === 'stale') return onStale(s, r, now);
  if (r.kind === 'node') return onNode(s, r, now);
  if (r.kind === 'ack') {
    if (r.key === s.asserting) s.asserting = null;
    if (r.key !== s.draining_key || s.phase !== 'draining') return [];
    s.draining_key = null;
    return [
      {
        do: 'drain',
        queues: r.queues,
        input: {
          replica: s.name,
          fence: s.fence!,
          version: r.version,
          url: s.endpoint ?? '',
          timeout_ms: s.spec.drain_timeout,
        },
      },
    ];
  }
  if (r.key !== s.reserving || s.phase !== 'pending') return giveBack(s, r, now);
  if (r.kind === 'granted') return onGranted(s, r, now);
  if (r.hopeless && !s.ever_ready) return end(s, now, 'DOES_NOT_FIT', r.reason);
  const reason = `${waitsFor(s, r.refused === true)}: ${r.reason}`;
  if (s.reason !== reason) log(s, now, reason);
  s.reason = reason;
  return [];
}

/** More GPUs are no help where it is the spec that was refused. `all`: by every node that could host it. */
function waitsFor(s: ReplicaState, all: boolean): string {
  if (all) return 'waiting: every node that could host it has refused it';
  const some = s.exclude.some(e => e.until === null);
  return some ? 'waiting for a node that has not refused it' : 'waiting for GPUs';
}

function onNode(s: ReplicaState, r: Extract<LedgerReply, { kind: 'node' }>, now: number): ReplicaEffect[] {
  if (r.news === 'missing') return onMissing(s, r, now);
  return r.news === 'sick' ? onSick(s, r, now) : onNodeNews(s, r, now);
}

/**
 * A grant of this run that it waits for no longer: its reserve was withdrawn or overtaken on the way. Only a fence above
 * all that it took is certain to have been given no order (INV-1); another run's grants are the ledger's to settle.
 */
function giveBack(s: ReplicaState, r: LedgerReply, now: number): ReplicaEffect[] {
  if (r.kind !== 'granted' || !r.key.startsWith(`${s.first_run_id}/`) || !(r.fence > s.last_fence)) return [];
  s.last_fence = r.fence;
  log(s, now, `gave back a grant that came too late (fence ${r.fence})`);
  return [{ do: 'ledger', msg: make.unused(s, r, now) }];
}

function onTimer(s: ReplicaState, id: TimerId, now: number): ReplicaEffect[] {
  switch (id) {
    case 'pending':
      if (s.phase !== 'pending') return [];
      return end(s, now, 'DOES_NOT_FIT', `placement.timeout reached; ${s.reason}`);
    case 'exclusion':
      if (s.phase !== 'pending') return [];
      return askAgain(s, now);
    case 'back_off':
      if (s.phase !== 'backing_off') return [];
      return ask(s, now, 'asking the ledger for the next generation', make.atRest(s, now));
    case 'stop_again':
      return s.phase === 'stopping' ? [stopEffect(s)] : [];
    case 'node_loss':
      return onNodeLoss(s, now);
  }
}

/** The ledger places with what it was told of exclusions, so it is told anew; placement.timeout goes on running. */
function askAgain(s: ReplicaState, now: number): ReplicaEffect[] {
  const { since, deadline, reason, journal } = s;
  const withdrawn: ReplicaEffect = { do: 'ledger', msg: make.release(s, null, s.reserving) };
  s.journal = [];
  const effects = ask(s, now, reason);
  // It is one wait: asked again in the middle of it, which is no news.
  Object.assign(s, { since, deadline, journal });
  return [withdrawn, effects[0]!, ...waitTimers(s, now)];
}

/** After continue-as-new: what was waited for by a timer is waited for again. */
function resume(s: ReplicaState, now: number): ReplicaEffect[] {
  if (s.phase === 'pending') return waitTimers(s, now);
  // The ledger knows its holder by the run that tells of it.
  const effects = assertHold(s);
  if (s.lost.some(l => l.until !== null)) effects.push(...lossTimer(s, now));
  if (s.phase === 'backing_off')
    effects.push({ do: 'timer', id: 'back_off', ms: Math.max(1, (s.deadline ?? now) - now) });
  if (s.phase === 'stopping') effects.push(stopEffect(s));
  return effects;
}

function onApply(s: ReplicaState, spec: ReplicaState['spec'], now: number): ReplicaEffect[] {
  s.spec = spec;
  s.exclude = [];
  s.failures = [];
  s.ever_ready = false;
  return again(s, now, 'a changed spec was applied');
}

/** A new generation because people want one: never counted. */
function again(s: ReplicaState, now: number, why: string): ReplicaEffect[] {
  switch (s.phase) {
    case 'pending':
      return [{ do: 'ledger', msg: make.release(s, null, s.reserving) }, ...ask(s, now, why)];
    case 'backing_off':
      return [{ do: 'clear_timer', id: 'back_off' }, ...ask(s, now, why, make.atRest(s, now))];
    case 'ready':
      return drain(s, now, { next: 'renew' }, why);
    case 'placing':
    case 'starting':
    case 'loading':
      return stop(s, now, { next: 'renew' }, why);
    case 'draining':
    case 'stopping':
      // What is heard of this generation's end changes that no more.
      s.failing = null;
      if (!s.cancelled) s.after_stop = { next: 'renew' };
      return [];
    case 'stopped':
    case 'failed':
      return [];
  }
}

function onCancel(s: ReplicaState, now: number): ReplicaEffect[] {
  if (s.cancelled) return [];
  s.cancelled = true;
  log(s, now, 'cancel asked for');
  switch (s.phase) {
    case 'pending':
      return [
        { do: 'clear_timer', id: 'pending' },
        ...finish(s, now, { kind: 'stopped', holds: [] }, 'stopped as asked, before any GPU was granted'),
      ];
    case 'backing_off':
      return [
        { do: 'clear_timer', id: 'back_off' },
        ...finish(s, now, { kind: 'stopped', holds: [] }, 'stopped as asked', make.atRest(s, now)),
      ];
    case 'ready':
      return drain(s, now, { next: 'end' }, 'cancelled');
    case 'draining':
    case 'stopping':
      s.failing = null;
      s.after_stop = { next: 'end' };
      return [];
    default:
      return stop(s, now, { next: 'end' }, 'cancelled');
  }
}
