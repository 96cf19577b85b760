// What a replica does about what it holds when others know less, or more, than it does: a ledger that was rebuilt, an
// engine that another run left, a node that is lost. INV-1, INV-5: an engine that serves is claimed, not stopped.
import type { LookedAt } from '../../contracts/activities.js';
import type { LedgerReply } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { ask, enter, log, node } from './core.js';
import * as make from './make.js';
import type { ReplicaEffect, ReplicaState } from './state.js';
import { drain, end, finish, stop } from './stopping.js';

/** Of an adoption that was tried for launchScheduleToStart: no answer, or a fault of the agent's own. */
const NOTHING_KNOWN: ReadonlySet<string> = new Set(['NODE_UNREACHABLE', 'INTERNAL']);

type Of<K extends LedgerReply['kind']> = Extract<LedgerReply, { kind: K }>;

/** Says what it holds, and asks again for what it waits for. */
export function assertHold(s: ReplicaState): ReplicaEffect[] {
  const msg = make.assertion(s);
  s.asserting = msg.key;
  const effects: ReplicaEffect[] = [{ do: 'ledger', msg }];
  if (s.phase === 'pending' && s.reserving !== null)
    effects.push({ do: 'ledger', msg: make.reserveAgain(s, s.reserving) });
  return effects;
}

/** An engine of this replica that this run does not know of, or whose GPUs are another's by now. */
export function onStale(s: ReplicaState, r: Of<'stale'>, now: number): ReplicaEffect[] {
  const asserted = r.key === s.asserting;
  if (asserted) s.asserting = null;
  if (!asserted && (r.key !== s.reserving || s.phase !== 'pending')) return [];
  if (s.cancelled) return [];
  if (r.fence === s.fence) {
    if (!asserted || s.phase === 'stopping' || s.phase === 'backing_off') return [];
    return stop(
      s,
      now,
      { next: 'renew' },
      'the ledger has given its GPUs to another replica, or has ordered its stop',
    );
  }
  if (s.fence !== null && r.fence < s.fence) return [];
  s.reserving = null;
  s.fence = r.fence;
  s.last_fence = Math.max(s.last_fence, r.fence);
  s.grant = { members: r.members, why: 'left by another run' };
  s.generation++;
  s.claiming = true;
  s.adopt = null;
  // The node that is lost was that of what it believed in.
  s.lost = null;
  s.members = [];
  s.endpoint = null;
  s.was_ready = false;
  s.after_stop = null;
  s.proofs = null;
  enter(
    s,
    now,
    'placing',
    `another run left an engine on ${node(s)} (fence ${r.fence}): claiming it`,
    TIMING.launchScheduleToStart,
  );
  return [
    { do: 'clear_timer', id: 'pending' },
    { do: 'clear_timer', id: 'exclusion' },
    { do: 'clear_timer', id: 'back_off' },
    { do: 'clear_timer', id: 'stop_again' },
    { do: 'clear_timer', id: 'node_loss' },
    { do: 'abort', op: 'launch' },
    { do: 'abort', op: 'await_ready' },
    { do: 'abort', op: 'drain' },
    { do: 'adopt', node: node(s), order: make.adoptOrder(s) },
  ];
}

/** Nothing to take over: what another run left is stopped with proof, a process of somebody else's is let be. */
export function onAdoptFailed(
  s: ReplicaState,
  ev: { fence: number; code: string; sentence: string },
  now: number,
): ReplicaEffect[] {
  if (ev.fence !== s.fence || s.phase !== 'placing') return [];
  if (s.adopt !== null) {
    const outcome = { kind: 'failed' as const, code: ev.code, sentence: ev.sentence, digest: null };
    return finish(s, now, outcome, ev.sentence, make.atRest(s, now));
  }
  if (s.adopt_own) {
    const sentence = `${ev.sentence}; it is let be: adopt it with the spec that it runs`;
    const outcome = { kind: 'failed' as const, code: 'ADOPT_REFUSED', sentence, digest: null };
    return finish(s, now, outcome, sentence);
  }
  s.claiming = false;
  s.generation--;
  log(s, now, `not claimed: ${ev.sentence}`);
  // It runs something else: its clients are let finish first.
  if (ev.code === 'FENCE_CONFLICT')
    return drain(
      s,
      now,
      { next: 'renew' },
      `another run left an engine (fence ${ev.fence}) of another spec`,
      true,
    );
  // Nothing is known of it, and it may well serve: the hold stays as it is. The ledger offers it again once its node
  // is there, and other GPUs while it isn't (INV-5).
  if (NOTHING_KNOWN.has(ev.code))
    return ask(s, now, `${node(s)} does not take the claim: asking the ledger again`);
  return stop(s, now, { next: 'renew' }, `stopping what another run left (fence ${ev.fence})`);
}

export function onLooked(s: ReplicaState, seen: LookedAt, now: number): ReplicaEffect[] {
  if (s.adopt === null || s.adopt.slots !== null || s.phase !== 'pending') return [];
  const { pid } = s.adopt;
  if (seen.engine !== null) {
    const { replica, fence } = seen.engine;
    if (replica !== s.name)
      return end(
        s,
        now,
        'ADOPT_REFUSED',
        `pid ${pid} is an engine of replica/${replica} (fence ${fence}): adopt it under that name`,
      );
    // The ledger has it as unclaimed, and hands it over.
    s.adopt = null;
    s.adopt_own = true;
    return ask(s, now, 'asking the ledger for the engine that runs');
  }
  const size = (s.spec.tensor_parallel * s.spec.pipeline_parallel) / s.spec.nodes;
  if (seen.slots.length !== size) {
    const has = seen.slots.length === 0 ? 'no GPU that can be told' : `${seen.slots.length} GPUs`;
    return end(s, now, 'ADOPT_REFUSED', `pid ${pid} has ${has}, the spec asks for ${size}`);
  }
  s.adopt.slots = seen.slots;
  return ask(s, now, 'asking the ledger for the GPUs that the process has');
}

/** The ledger offers GPUs and no engine: nothing is started beside the one that was to be adopted. */
export function onNothingToAdopt(s: ReplicaState, now: number): ReplicaEffect[] {
  const sentence = `the ledger knows of no engine of replica/${s.name} that could be adopted`;
  const outcome = { kind: 'failed' as const, code: 'ADOPT_REFUSED', sentence, digest: null };
  return finish(s, now, outcome, sentence, make.atRest(s, now));
}

export function onNodeNews(s: ReplicaState, r: Of<'node'>, now: number): ReplicaEffect[] {
  if (r.fence !== s.fence) return [];
  switch (r.news) {
    case 'lost': {
      const after = s.spec.on_node_loss.replace_after;
      const until = after === 'never' ? null : r.at + after;
      // Told again, by a ledger that began anew: the reason of before is still that of before.
      s.lost = { node: r.node, at: r.at, until, reason: s.lost?.reason ?? s.reason };
      const then =
        until === null
          ? 'it is kept until the node is back (replace_after: never)'
          : 'replaced elsewhere unless it comes back in time';
      s.reason = `${r.node} is lost (${r.reason}); ${then}`;
      log(s, now, s.reason);
      if (until === null) return [];
      s.deadline = until;
      return [{ do: 'timer', id: 'node_loss', ms: Math.max(1, until - now) }];
    }
    case 'back': {
      if (s.lost === null) return [];
      log(s, now, `${r.node} is not lost: ${r.reason}`);
      s.reason = s.lost.reason;
      s.lost = null;
      if (s.phase === 'ready') s.deadline = null;
      return [{ do: 'clear_timer', id: 'node_loss' }];
    }
    case 'forgotten':
      return leave(s, now, r.reason, undefined);
    case 'missing':
      return [];
  }
}

/** replace_after has passed: the hold stays with the ledger, which stops the engine should its node come back (INV-1). */
export function onNodeLoss(s: ReplicaState, now: number): ReplicaEffect[] {
  if (s.lost === null || s.fence === null) return [];
  // Nothing runs in a back-off: its stop is proven already.
  const release = s.proofs === null ? make.unproven(s) : make.atRest(s, now);
  return leave(s, now, `${s.lost.node} stayed lost`, release);
}

/** Goes on without what it held. Not counted against restart.max_failures: the node was lost, not the engine. */
function leave(
  s: ReplicaState,
  now: number,
  why: string,
  release: make.Released | undefined,
): ReplicaEffect[] {
  const next = s.after_stop;
  const aborts: ReplicaEffect[] = [
    { do: 'abort', op: 'launch' },
    { do: 'abort', op: 'adopt' },
    { do: 'abort', op: 'await_ready' },
    { do: 'abort', op: 'drain' },
    { do: 'clear_timer', id: 'stop_again' },
    { do: 'clear_timer', id: 'back_off' },
    { do: 'clear_timer', id: 'node_loss' },
  ];
  s.draining_key = null;
  if (s.cancelled) {
    const holds = release === undefined ? [] : release.members.map(m => m.node);
    return [...aborts, ...finish(s, now, { kind: 'stopped', holds }, `stopped as asked; ${why}`, release)];
  }
  if (next?.next === 'fail') {
    const outcome = {
      kind: 'failed' as const,
      code: next.code,
      sentence: next.sentence,
      digest: s.last_failure,
    };
    return [...aborts, ...finish(s, now, outcome, next.sentence, release)];
  }
  s.exclude = [];
  return [...aborts, ...ask(s, now, `${why}: asking for other GPUs`, release)];
}
