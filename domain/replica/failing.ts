// What a failure of a member ends, and what follows. INV-7: any unrequested exit, whatever its code, ends the
// generation. INV-10: what is shown is the failure of the member that failed first, by its own node's clock, in
// whatever order the failures are heard: the others mostly fail of the first.
import type { EngineEvent, FailureClass, FailureDigest } from '../../contracts/engine.js';
import type { LedgerReply } from '../../contracts/messages.js';
import { log, member, node } from './core.js';
import { excluding } from './exclusions.js';
import { decideFailure } from './failure.js';
import * as make from './make.js';
import type { ReplicaEffect, ReplicaState } from './state.js';
import { stop, told } from './stopping.js';

interface Failed {
  failure: FailureDigest;
  rank: number;
  /** When it failed; what isn't told with a time failed when it was heard. */
  at: number;
  /** The class that people see where it isn't the one that counts. */
  shown?: FailureClass;
}

export function fail(s: ReplicaState, given: Failed, now: number): ReplicaEffect[] {
  const f = judged(s, given);
  show(s, f);
  // It was leaving anyway: the exit only makes the drain shorter.
  if (s.phase === 'draining' && s.after_stop !== null)
    return stop(s, now, s.after_stop, told(s, f.rank, f.failure.sentence));
  s.failing = { at: f.at, earlier: s.failures, spared: s.port_conflict_spared };
  const after = decide(s, f, now);
  return stop(s, now, after, told(s, f.rank, f.failure.sentence));
}

/** What a follower dies of after the gang has served is no fault of the spec: its log says what the others did to it. */
function judged(s: ReplicaState, f: Failed): Failed {
  if (f.rank === 0 || !s.was_ready || f.failure.class !== 'permanent') return f;
  return { ...f, failure: { ...f.failure, class: 'retry' } };
}

function show(s: ReplicaState, { failure, rank, shown }: Failed): void {
  // The next generation's member of this rank may be elsewhere; the evidence isn't.
  const at = member(s, rank)?.node;
  s.last_failure = {
    ...failure,
    class: shown ?? failure.class,
    member: rank,
    ...(at === undefined ? {} : { node: at }),
  };
}

/** Counted from what was there before the first failure of this stop: another one that takes its place counts once. */
function decide(s: ReplicaState, { failure, rank }: Failed, now: number) {
  const decision = decideFailure({
    failure: { ...failure, sentence: told(s, rank, failure.sentence) },
    wasReady: s.was_ready,
    earlier: s.failing!.earlier,
    portConflictSpared: s.failing!.spared,
    restart: s.spec.restart,
    now,
  });
  s.failures = decision.failures;
  s.port_conflict_spared = decision.portConflictSpared;
  if (failure.class === 'node_fault') {
    const { code, sentence } = failure;
    s.exclude = excluding(s.exclude, node(s, rank), code, sentence, s.ever_ready, now);
  }
  return decision.after;
}

export function onEngine(s: ReplicaState, e: EngineEvent, now: number): ReplicaEffect[] {
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
  const at = Date.parse(e.at);
  const failed: Failed = { failure: e.failure, rank: e.rank, at: Number.isNaN(at) ? now : at };
  if (s.phase === 'stopping') {
    if (!e.requested) heardLater(s, failed, now);
    return [];
  }
  // What ended it is counted already, and its stop is proven.
  if (s.phase === 'backing_off') return [];
  return fail(s, failed, now);
}

/**
 * While the generation stops. An earlier failure takes the place of the one that was heard first; so does a cause that
 * no repetition mends, whenever it was: the next generation would only die of it again.
 */
function heardLater(s: ReplicaState, given: Failed, now: number): void {
  if (s.failing === null || s.last_failure === null) return;
  const f = judged(s, given);
  const known = s.last_failure;
  const outranked = known.class === 'permanent' && f.failure.class !== 'permanent';
  const outranks = f.failure.class === 'permanent' && known.class !== 'permanent';
  if (outranked || (f.at >= s.failing.at && !outranks)) return;
  s.failing.at = f.at;
  // One that was told by both of its ways.
  if (known.member === f.rank && known.sentence === f.failure.sentence && known.class === f.failure.class)
    return;
  const before = told(s, known.member, known.sentence);
  const sentence = told(s, f.rank, f.failure.sentence);
  show(s, f);
  s.after_stop = decide(s, f, now);
  log(s, now, `it failed first, or for good: ${sentence}`);
  if (s.reason === before) s.reason = sentence;
}

/** `rank` null: any. A sender that isn't named is an older control plane's word. */
export function isMember(s: ReplicaState, from: string | undefined, rank: number | null): boolean {
  if (from === undefined) return true;
  return s.members.some(m => m.node === from && (rank === null || m.rank === rank));
}

type NodeNews = Extract<LedgerReply, { kind: 'node' }>;

/** Its node is there, knows of no such engine, and has no exit to tell: its records were lost. */
export function onMissing(s: ReplicaState, r: NodeNews, now: number): ReplicaEffect[] {
  const m = s.members.find(m => m.node === r.node);
  if (r.fence !== s.fence || s.phase !== 'ready' || m === undefined) return [];
  const failure = make.launchDigest('ENGINE_UNKNOWN', 'retry', r.reason);
  return fail(s, { failure, rank: m.rank, at: now }, now);
}

/** A GPU of it can't carry an engine any more: it is moved before its engine finds out, which may take a collective's timeout. */
export function onSick(s: ReplicaState, r: NodeNews, now: number): ReplicaEffect[] {
  const m = s.members.find(m => m.node === r.node);
  const over = s.phase === 'pending' || s.phase === 'stopping' || s.phase === 'backing_off';
  if (r.fence !== s.fence || over || m === undefined) return [];
  // Not counted, as the loss of a node isn't; nor is the node left out: its sick GPU isn't offered, the others may do.
  const failure = make.launchDigest('GPU_GONE', 'host_stop', r.reason);
  return fail(s, { failure, rank: m.rank, at: now, shown: 'node_fault' }, now);
}
