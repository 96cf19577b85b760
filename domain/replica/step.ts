// The replica's one transition function: (state, event, now) → effects, with the state changed in place on a copy that
// the driver owns. A late answer is known by its fence or key and ignored (INV-6). INV-1: GPUs go back only through a
// stop with proof, whichever way a generation ends.
import type { FailureClass, FailureDigest } from '../../contracts/engine.js';
import type { LedgerReply } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { JOURNAL_LENGTH } from '../ledger/state.js';
import { decideFailure } from './failure.js';
import * as make from './make.js';
import type { AfterStop, ReplicaEffect, ReplicaEvent, ReplicaState } from './state.js';

export function replicaStep(s: ReplicaState, ev: ReplicaEvent, now: number): ReplicaEffect[] {
  if (s.outcome !== null) return ev.type === 'ledger' ? giveBack(s, ev.reply, now) : [];
  switch (ev.type) {
    case 'started':
      return ask(s, now, 'asking the ledger for GPUs');
    case 'ledger':
      return onLedger(s, ev.reply, now);
    case 'launched': {
      if (ev.fence !== s.fence || s.phase !== 'placing') return [];
      s.members = make.membersRunning(s, ev.result);
      s.endpoint = make.url(ev.result);
      s.key_id = ev.result.key_id ?? null;
      enter(
        s,
        now,
        'loading',
        `engine started on ${node(s)} (pid ${ev.result.pid}), loading the model`,
        s.spec.no_progress_timeout,
      );
      return [{ do: 'await_ready', node: node(s), order: make.order(s) }];
    }
    case 'launch_failed':
      return onLaunchFailed(s, ev, now);
    case 'ready_result': {
      if (ev.fence !== s.fence || s.phase !== 'loading') return [];
      if (!ev.result.ready) return fail(s, ev.result.failure, 0, now);
      return ready(s, ev.result.pid, now);
    }
    case 'progress': {
      if (ev.msg.fence !== s.fence || s.phase !== 'loading') return [];
      s.progress = { stage: ev.msg.stage, percent: ev.msg.percent, at: new Date(now).toISOString() };
      s.reason = `loading: ${ev.msg.stage}`;
      s.deadline = now + s.spec.no_progress_timeout;
      return [];
    }
    case 'engine':
      return onEngine(s, ev.event, now);
    case 'stopped':
      return ev.fence === s.fence && s.phase === 'stopping' ? afterStop(s, ev.proofs, now) : [];
    case 'stop_failed':
      return ev.fence === s.fence && s.phase === 'stopping' ? onStopFailed(s, ev, now) : [];
    case 'drained':
      if (ev.fence !== s.fence || s.phase !== 'draining') return [];
      if (!ev.drained) log(s, now, `drain_timeout reached with ${ev.outstanding} requests outstanding`);
      return stop(s, now, s.after_stop ?? { next: 'renew' }, s.reason);
    case 'timer':
      return onTimer(s, ev.id, now);
    case 'apply':
      return onApply(s, ev.spec, now);
    case 'restart':
      return again(s, now, `restart asked for${ev.by === '' ? '' : ` by ${ev.by}`}`);
    case 'cancel':
      return onCancel(s, now);
  }
}

const node = (s: ReplicaState): string => s.grant?.members[0]?.node ?? '?';

export function log(s: ReplicaState, now: number, text: string): void {
  s.journal.push({ at: now, text });
  if (s.journal.length > JOURNAL_LENGTH) s.journal.splice(0, s.journal.length - JOURNAL_LENGTH);
}

/** Every waiting state has a reason and, but for pending and ready, a deadline (INV-9). */
function enter(
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

function ask(s: ReplicaState, now: number, reason: string, release?: make.Released): ReplicaEffect[] {
  const msg = make.reserve(s, release);
  s.reserving = msg.key;
  s.fence = null;
  s.grant = null;
  s.members = [];
  s.endpoint = null;
  s.key_id = null;
  s.was_ready = false;
  s.after_stop = null;
  s.proofs = null;
  enter(s, now, 'pending', reason, s.spec.placement.timeout);
  const effects: ReplicaEffect[] = [{ do: 'ledger', msg }];
  if (s.spec.placement.timeout !== null)
    effects.push({ do: 'timer', id: 'pending', ms: s.spec.placement.timeout });
  return effects;
}

function onLedger(s: ReplicaState, r: LedgerReply, now: number): ReplicaEffect[] {
  if (r.kind === 'ack') {
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
    enter(
      s,
      now,
      'placing',
      `granted ${r.why}; preparing generation ${s.generation}`,
      TIMING.launchScheduleToStart,
    );
    return [
      { do: 'clear_timer', id: 'pending' },
      { do: 'launch', node: node(s), order: make.order(s) },
    ];
  }
  if (r.kind === 'stale') {
    s.reserving = null;
    s.fence = r.fence;
    s.grant = { members: r.members, why: 'left by an earlier run' };
    return stop(s, now, { next: 'renew' }, `stopping what an earlier run left (fence ${r.fence})`);
  }
  if (r.hopeless && !s.ever_ready) return end(s, now, 'DOES_NOT_FIT', r.reason);
  s.reason = `waiting for GPUs: ${r.reason}`;
  log(s, now, s.reason);
  return [];
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
  if (elsewhere || !ev.delivered) {
    s.exclude = [...s.exclude.filter(e => e.node !== at), { node: at, reason: ev.sentence }];
  }
  if (!ev.delivered) {
    // No attempt reached the node: nothing runs there, so nothing has to be proven (INV-2) and the next node is free.
    log(s, now, `${at} did not take the order: ${ev.sentence}`);
    return ask(s, now, `${at} did not take the order`, make.atRest(s, now));
  }
  const cls: FailureClass = make.LAUNCH_NOT_COUNTED.has(ev.code) || elsewhere ? 'host_stop' : 'retry';
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
    s.exclude = [...s.exclude.filter(e => e.node !== node(s)), { node: node(s), reason: failure.sentence }];
  }
  return stop(s, now, decision.after, failure.sentence);
}

function stop(s: ReplicaState, now: number, after: AfterStop, why: string): ReplicaEffect[] {
  const wasServing = s.phase === 'ready' || s.phase === 'draining';
  s.after_stop = after;
  s.draining_key = null;
  s.members = s.members.map(m => ({ ...m, state: 'stopping' }));
  enter(s, now, 'stopping', why, TIMING.stopAssumed + TIMING.stopMargin);
  const effects: ReplicaEffect[] = [
    { do: 'abort', op: 'launch' },
    { do: 'abort', op: 'await_ready' },
    { do: 'abort', op: 'drain' },
    { do: 'stop', orders: make.stopOrders(s, why) },
  ];
  // The endpoint leaves the table before the engine does, so that no router sends it anything more.
  if (wasServing) effects.unshift({ do: 'ledger', msg: make.endpointMsg(s, null) });
  return effects;
}

function afterStop(s: ReplicaState, proofs: make.Proofs, now: number): ReplicaEffect[] {
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

function onStopFailed(
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
  enter(
    s,
    now,
    'stopping',
    `${at} does not answer the stop: ${ev.sentence}`,
    TIMING.stopAssumed + TIMING.stopMargin,
  );
  return [{ do: 'stop', orders: make.stopOrders(s, s.reason) }];
}

function onTimer(s: ReplicaState, id: 'back_off' | 'pending', now: number): ReplicaEffect[] {
  if (id === 'pending' && s.phase === 'pending') {
    return end(s, now, 'DOES_NOT_FIT', `placement.timeout reached; ${s.reason}`);
  }
  if (id === 'back_off' && s.phase === 'backing_off') {
    return ask(s, now, 'asking the ledger for the next generation', make.atRest(s, now));
  }
  return [];
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

function drain(s: ReplicaState, now: number, after: AfterStop, why: string): ReplicaEffect[] {
  s.after_stop = after;
  s.members = s.members.map(m => ({ ...m, state: 'draining' }));
  enter(s, now, 'draining', why, s.spec.drain_timeout);
  const msg = make.endpointMsg(s, 'draining');
  s.draining_key = msg.key;
  return [{ do: 'ledger', msg }];
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

function end(s: ReplicaState, now: number, code: string, sentence: string): ReplicaEffect[] {
  const last = s.last_failure === null ? '' : `; last failure: ${s.last_failure.sentence}`;
  return finish(
    s,
    now,
    { kind: 'failed', code, sentence: `${sentence}${last}`, digest: s.last_failure },
    sentence,
  );
}

function finish(
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
