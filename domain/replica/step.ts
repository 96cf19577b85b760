// The replica's one transition function: (state, event, now) → effects, with the state changed in place on a copy that
// the driver owns. A late answer is known by its fence or key and ignored (INV-6). INV-1: GPUs go back only through a
// stop with proof, whichever way a generation ends.
import type { FailureClass, FailureDigest } from '../../contracts/engine.js';
import type { LedgerReply } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { ask, enter, log, node, waitTimers } from './core.js';
import { excluding } from './exclusions.js';
import { decideFailure } from './failure.js';
import {
  assertHold,
  onAdoptFailed,
  onLooked,
  onNodeLoss,
  onNodeNews,
  onNothingToAdopt,
  onStale,
} from './holding.js';
import * as make from './make.js';
import type { ReplicaEffect, ReplicaEvent, ReplicaState, TimerId } from './state.js';
import { afterStop, drain, end, finish, onStopFailed, stop, stopEffect } from './stopping.js';

export function replicaStep(s: ReplicaState, ev: ReplicaEvent, now: number): ReplicaEffect[] {
  if (s.outcome !== null) return ev.type === 'ledger' ? afterTheEnd(s, ev.reply, now) : [];
  switch (ev.type) {
    case 'started':
      return started(s, now);
    case 'resumed':
      return resume(s, now);
    case 'ledger':
      return onLedger(s, ev.reply, now);
    case 'launched': {
      if (ev.fence !== s.fence || s.phase !== 'placing') return [];
      s.members = make.membersRunning(s, ev.result);
      s.endpoint = make.url(ev.result);
      s.key_id = ev.result.key_id ?? null;
      s.stop_ms = ev.result.stop_ms ?? null;
      const how = ev.result.adopted && (s.claiming || s.adopt !== null) ? 'taken over' : 'started';
      // The ledger knows it as nobody's, or as another run's.
      const claimed = s.claiming ? assertHold(s) : [];
      s.claiming = false;
      s.adopt = null;
      s.adopt_own = false;
      enter(
        s,
        now,
        'loading',
        `engine ${how} on ${node(s)} (pid ${ev.result.pid}), loading the model`,
        s.spec.no_progress_timeout,
      );
      return [...claimed, { do: 'await_ready', node: node(s), order: make.order(s) }];
    }
    case 'launch_failed':
      return onLaunchFailed(s, ev, now);
    case 'adopt_failed':
      return onAdoptFailed(s, ev, now);
    case 'looked':
      return onLooked(s, ev.result, now);
    case 'look_failed':
      return s.phase === 'pending' ? end(s, now, ev.code, ev.sentence) : [];
    case 'ready_result': {
      if (ev.fence !== s.fence || s.phase !== 'loading') return [];
      if (!ev.result.ready) return fail(s, ev.result.failure, 0, now);
      return ready(s, ev.result.pid, now);
    }
    case 'progress': {
      if (ev.msg.fence !== s.fence || s.phase !== 'loading' || !isMember(s, ev.msg.node, null)) return [];
      s.progress = { stage: ev.msg.stage, percent: ev.msg.percent, at: new Date(now).toISOString() };
      s.reason = `loading: ${ev.msg.stage}`;
      s.deadline = now + s.spec.no_progress_timeout;
      return [];
    }
    case 'ignored':
      log(s, now, `ignored a signal ${ev.what} that has not its shape (${ev.fault})`);
      return [];
    case 'engine':
      return onEngine(s, ev.event, now);
    case 'stopped':
      return ev.fence === s.fence && s.phase === 'stopping' ? afterStop(s, ev.proofs, now) : [];
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
  if (r.kind === 'node') return r.news === 'missing' ? onMissing(s, r, now) : onNodeNews(s, r, now);
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
  if (r.kind === 'granted') {
    s.reserving = null;
    s.generation++;
    s.fence = r.fence;
    s.last_fence = r.fence;
    s.grant = { members: r.members, why: r.why };
    if (s.adopt_own) return onNothingToAdopt(s, now);
    enter(
      s,
      now,
      'placing',
      `granted ${r.why}; preparing generation ${s.generation}`,
      TIMING.launchScheduleToStart,
    );
    return [
      { do: 'clear_timer', id: 'pending' },
      { do: 'clear_timer', id: 'exclusion' },
      s.adopt === null
        ? { do: 'launch', node: node(s), order: make.order(s) }
        : { do: 'adopt', node: node(s), order: make.adoptOrder(s) },
    ];
  }
  if (r.hopeless && !s.ever_ready) return end(s, now, 'DOES_NOT_FIT', r.reason);
  const reason = `waiting for GPUs: ${r.reason}`;
  if (s.reason !== reason) log(s, now, reason);
  s.reason = reason;
  return [];
}

/** Its node is there, knows of no such engine, and has no exit to tell: its records were lost. */
function onMissing(s: ReplicaState, r: Extract<LedgerReply, { kind: 'node' }>, now: number): ReplicaEffect[] {
  if (r.fence !== s.fence || s.phase !== 'ready') return [];
  const member = s.grant?.members.find(m => m.node === r.node)?.rank ?? 0;
  return fail(s, make.launchDigest('ENGINE_UNKNOWN', 'retry', r.reason), member, now);
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

function onLaunchFailed(
  s: ReplicaState,
  ev: Extract<ReplicaEvent, { type: 'launch_failed' }>,
  now: number,
): ReplicaEffect[] {
  if (ev.fence !== s.fence || s.phase !== 'placing') return [];
  const at = node(s);
  const elsewhere = make.LAUNCH_ELSEWHERE.has(ev.code);
  if (elsewhere || !ev.delivered)
    s.exclude = excluding(s.exclude, at, ev.code, ev.sentence, s.ever_ready, now);
  if (!ev.delivered) {
    // No attempt reached the node: nothing runs there, so nothing has to be proven (INV-2) and the next node is free.
    log(s, now, `${at} did not take the order: ${ev.sentence}`);
    return ask(s, now, `${at} did not take the order`, make.atRest(s, now));
  }
  const cls: FailureClass = ev.code === 'NODE_UNREACHABLE' || elsewhere ? 'host_stop' : 'retry';
  const digest = make.launchDigest(ev.code, cls, ev.sentence);
  // host_stop here means only "not counted": the class that people see is the honest one.
  return fail(s, digest, 0, now, elsewhere ? 'node_fault' : 'retry');
}

function ready(s: ReplicaState, pid: number, now: number): ReplicaEffect[] {
  s.was_ready = true;
  s.ever_ready = true;
  s.exclude = [];
  s.port_conflict_spared = false;
  s.members = s.members.map(m => ({ ...m, pid, state: 'ready' }));
  enter(s, now, 'ready', `serving ${s.spec.served_model_name} at ${s.endpoint}`, null);
  return [{ do: 'ledger', msg: make.endpointMsg(s, 'ready') }];
}

function onEngine(
  s: ReplicaState,
  e: Extract<ReplicaEvent, { type: 'engine' }>['event'],
  now: number,
): ReplicaEffect[] {
  // Any node's certificate can send an event; only the member's own counts (INV-8).
  if (e.fence === s.fence && !isMember(s, e.node, e.rank)) {
    log(s, now, `ignored: ${e.node} told of an exit of member ${e.rank}, which is not on it`);
    return [];
  }
  const key = `${e.fence}/${e.rank}`;
  if ((s.seen[key] ?? 0) >= e.seq) return [];
  // Only the present generation's counters are kept: older fences never come back (INV-6).
  s.seen = {
    ...Object.fromEntries(Object.entries(s.seen).filter(([k]) => k.startsWith(`${s.fence}/`))),
    [key]: e.seq,
  };
  if (e.fence !== s.fence) return [];
  log(
    s,
    now,
    `engine ${e.rank} exited (${make.exitText(e.failure.exit)})${e.requested ? ', as ordered' : ''}`,
  );
  // What ended it is counted already, and its stop is ordered or proven.
  if (s.phase === 'stopping' || s.phase === 'backing_off') return [];
  return fail(s, e.failure, e.rank, now);
}

/** INV-7: any unrequested exit, whatever its code, ends the generation; all members are stopped and proven. */
function fail(
  s: ReplicaState,
  failure: FailureDigest,
  member: number,
  now: number,
  shownClass?: FailureClass,
): ReplicaEffect[] {
  s.last_failure = { ...failure, class: shownClass ?? failure.class, member };
  // It was leaving anyway: the exit only makes the drain shorter.
  if (s.phase === 'draining' && s.after_stop !== null) return stop(s, now, s.after_stop, failure.sentence);
  const decision = decideFailure({
    failure,
    wasReady: s.was_ready,
    earlier: s.failures,
    portConflictSpared: s.port_conflict_spared,
    restart: s.spec.restart,
    now,
  });
  s.failures = decision.failures;
  s.port_conflict_spared = decision.portConflictSpared;
  if (failure.class === 'node_fault') {
    s.exclude = excluding(s.exclude, node(s), failure.code, failure.sentence, s.ever_ready, now);
  }
  return stop(s, now, decision.after, failure.sentence);
}

/** `rank` null: any. A sender that isn't named is an older control plane's word. */
function isMember(s: ReplicaState, from: string | undefined, rank: number | null): boolean {
  if (from === undefined) return true;
  return (s.grant?.members ?? []).some(m => m.node === from && (rank === null || m.rank === rank));
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
  const until = s.lost?.until ?? null;
  if (until !== null) effects.push({ do: 'timer', id: 'node_loss', ms: Math.max(1, until - now) });
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
      s.after_stop = { next: 'end' };
      return [];
    default:
      return stop(s, now, { next: 'end' }, 'cancelled');
  }
}
