// What a replica does about what it holds when others know less, or more, than it does: a ledger that was rebuilt, an
// engine that another run left, a node that is lost. INV-1, INV-5: an engine that serves is claimed, not stopped.
import type { LookedAt } from '../../contracts/activities.js';
import type { LedgerReply } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { abortAll, ask, enter, hold, log, named, unstopped } from './core.js';
import * as make from './make.js';
import type { Loss, Member, ReplicaEffect, ReplicaState } from './state.js';
import { conclude, drain, end, finish, leave, stop } from './stopping.js';

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
  hold(s, r, 'left by another run');
  s.generation++;
  s.claiming = true;
  s.adopt = null;
  // The node that is lost was that of what it believed in.
  s.lost = [];
  s.endpoint = null;
  s.was_ready = false;
  s.failing = null;
  s.after_stop = null;
  const on = r.members.map(m => m.node).join(', ');
  const reason = `another run left an engine on ${on} (fence ${r.fence}): claiming it`;
  enter(s, now, 'placing', reason, TIMING.launchScheduleToStart);
  const orders: ReplicaEffect[] =
    s.members.length === s.spec.nodes && s.members.length === (r.nodes ?? s.members.length)
      ? s.members.map(m => ({ do: 'adopt', node: m.node, order: make.adoptOrder(s, m.rank) }))
      : notWhole(s, now);
  return [
    { do: 'clear_timer', id: 'pending' },
    { do: 'clear_timer', id: 'exclusion' },
    { do: 'clear_timer', id: 'back_off' },
    { do: 'clear_timer', id: 'stop_again' },
    { do: 'clear_timer', id: 'node_loss' },
    ...abortAll(),
    ...orders,
  ];
}

/** Of another size, or what is left of a gang: no member of it could be part of this spec's (INV-7). */
function notWhole(s: ReplicaState, now: number): ReplicaEffect[] {
  const sentence = `${s.members.length} of its members are left and the spec asks for ${s.spec.nodes}`;
  const refused = { code: 'FENCE_CONFLICT', sentence, delivered: true };
  for (const m of s.members) m.refused = refused;
  return onNotTaken(s, s.members, now);
}

/** What weighs most decides for all members: it runs another spec, it isn't there, nothing is known of it. */
const weight = (m: Member): number =>
  m.refused!.code === 'FENCE_CONFLICT' ? 0 : NOTHING_KNOWN.has(m.refused!.code) ? 2 : 1;

/**
 * Nothing to take over: what another run left is stopped with proof, a process of somebody else's is let be. A gang is
 * taken over whole or not at all (INV-7).
 */
export function onNotTaken(s: ReplicaState, refused: Member[], now: number): ReplicaEffect[] {
  const [first] = [...refused].sort((a, b) => weight(a) - weight(b));
  const { code, sentence } = first!.refused!;
  if (s.adopt !== null) {
    const outcome = { kind: 'failed' as const, code, sentence, digest: null };
    return finish(s, now, outcome, sentence, make.atRest(s, now));
  }
  if (s.adopt_own) {
    const letBe = `${sentence}; it is let be: adopt it with the spec that it runs`;
    const outcome = { kind: 'failed' as const, code: 'ADOPT_REFUSED', sentence: letBe, digest: null };
    return finish(s, now, outcome, letBe);
  }
  s.claiming = false;
  s.generation--;
  log(s, now, `not claimed: ${s.members.length > 1 ? `${named(s, first!)}: ` : ''}${sentence}`);
  // It runs something else: its clients are let finish first.
  if (code === 'FENCE_CONFLICT')
    return drain(
      s,
      now,
      { next: 'renew' },
      `another run left an engine (fence ${s.fence}) of another spec`,
      true,
    );
  // Nothing is known of it, and it may well serve: the hold stays as it is. The ledger offers it again once its node
  // is there, and other GPUs while it isn't (INV-5).
  if (NOTHING_KNOWN.has(code))
    return ask(s, now, `${first!.node} does not take the claim: asking the ledger again`);
  return stop(s, now, { next: 'renew' }, `stopping what another run left (fence ${s.fence})`);
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
  if (s.spec.nodes > 1)
    return end(
      s,
      now,
      'ADOPT_REFUSED',
      `pid ${pid} was not started by llmgw, and the spec asks for ${s.spec.nodes} members: only a process that serves alone can be adopted`,
    );
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
  const m = s.members.find(m => m.node === r.node);
  if (r.fence !== s.fence || m === undefined || m.gone?.how === 'forgotten') return [];
  switch (r.news) {
    case 'lost':
      return onLost(s, r, now);
    case 'back': {
      const loss = s.lost.find(l => l.node === r.node);
      if (loss === undefined) return [];
      log(s, now, `${r.node} is not lost: ${r.reason}`);
      s.lost = s.lost.filter(l => l !== loss);
      s.reason = s.lost.at(-1)?.said ?? loss.before;
      if (s.phase === 'ready') s.deadline = nextLoss(s);
      if (s.phase === 'loading') s.deadline = now + s.spec.no_progress_timeout;
      return lossTimer(s, now);
    }
    case 'forgotten':
      m.gone = { how: 'forgotten', why: r.reason };
      s.lost = s.lost.filter(l => l.node !== r.node);
      return without(s, r.reason, now);
    default:
      return [];
  }
}

function onLost(s: ReplicaState, r: Of<'node'>, now: number): ReplicaEffect[] {
  const after = s.spec.on_node_loss.replace_after;
  const until = after === 'never' ? null : r.at + after;
  const then =
    until === null
      ? 'it is kept until the node is back (replace_after: never)'
      : 'replaced elsewhere unless it comes back in time';
  const said = `${r.node} is lost (${r.reason}); ${then}`;
  // Told again, by a ledger that began anew: the reason of before is still that of before.
  const loss: Loss = { node: r.node, at: r.at, until, said, before: s.lost[0]?.before ?? s.reason };
  s.lost = [...s.lost.filter(l => l.node !== r.node), loss];
  s.reason = said;
  log(s, now, said);
  const next = nextLoss(s);
  if (next === null) return [];
  s.deadline = next;
  return lossTimer(s, now);
}

/** When the next of the lost nodes is replaced; null: none is. */
function nextLoss(s: ReplicaState): number | null {
  const ends = s.lost.flatMap(l => l.until ?? []);
  return ends.length === 0 ? null : Math.min(...ends);
}

export function lossTimer(s: ReplicaState, now: number): ReplicaEffect[] {
  const next = nextLoss(s);
  return next === null
    ? [{ do: 'clear_timer', id: 'node_loss' }]
    : [{ do: 'timer', id: 'node_loss', ms: Math.max(1, next - now) }];
}

/** replace_after has passed: the hold stays with the ledger, which stops the engine should its node come back (INV-1). */
export function onNodeLoss(s: ReplicaState, now: number): ReplicaEffect[] {
  const next = nextLoss(s);
  if (next === null || s.fence === null) return [];
  const due = s.lost.filter(l => l.until !== null && l.until <= Math.max(now, next));
  for (const loss of due) {
    loss.until = null;
    const m = s.members.find(m => m.node === loss.node)!;
    // Nothing of it runs: its stop is proven already.
    if (m.proof === null && m.gone === null)
      Object.assign(m, { gone: { how: 'left', why: `${m.node} stayed lost` }, state: 'lost' });
  }
  return without(s, `${due.map(l => l.node).join(', ')} stayed lost`, now);
}

/** A gang that lacks a member is none: the others are stopped first, with proof (INV-7). */
function without(s: ReplicaState, why: string, now: number): ReplicaEffect[] {
  if (s.phase === 'backing_off' || unstopped(s).length === 0) return leave(s, now, why);
  const after = s.phase === 'draining' && s.after_stop !== null ? s.after_stop : { next: 'renew' as const };
  const effects = s.phase === 'stopping' ? conclude(s, now) : stop(s, now, after, why);
  // Another one of its nodes may be lost, too, and never answer its order.
  return s.fence === null ? effects : [...effects, ...lossTimer(s, now)];
}
