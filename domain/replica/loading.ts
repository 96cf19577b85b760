// Waiting until the engine serves. INV-9: there is no limit but no progress. In a gang the first member says when it
// serves; one that stands still while others get on isn't stuck (followers wait for the first, it waits for the slowest),
// so the generation fails only when no member has made progress for the whole time.

import type { ReadyResult } from '../../contracts/activities.js';
import type { ProgressMsg } from '../../contracts/messages.js';
import { enter, isGang, member, named } from './core.js';
import { fail, isMember } from './failing.js';
import * as make from './make.js';
import { type MemberLoad, slowest } from './progress.js';
import type { Member, ReplicaEffect, ReplicaState } from './state.js';

export const watchAll = (s: ReplicaState): ReplicaEffect[] => s.members.map(m => watch(s, m));

function watch(s: ReplicaState, m: Member): ReplicaEffect {
  m.watched = true;
  return { do: 'await_ready', node: m.node, order: make.order(s, m.rank) };
}

export function onReadyResult(
  s: ReplicaState,
  ev: { fence: number; rank: number; result: ReadyResult },
  now: number,
): ReplicaEffect[] {
  const m = member(s, ev.rank);
  if (ev.fence !== s.fence || s.phase !== 'loading' || m === undefined) return [];
  m.watched = false;
  // A follower's end of loading says nothing: it serves nobody.
  if (ev.result.ready) return m.rank === 0 ? ready(s, ev.result.pid, now) : [];
  const { failure } = ev.result;
  if (failure.code === 'NO_PROGRESS' && isGang(s)) {
    m.stalled_at = now;
    if (!allStand(s, now)) return goOn(s, m, now);
    const last = leastFar(s, m);
    if (last !== m) {
      // It is last to say so, not who the others wait for.
      const sentence = `${named(s, last)} is the least far (${last.loads!.stage}), and no member makes progress; the last to say so: ${failure.sentence}`;
      return fail(
        s,
        { failure: { ...failure, sentence: sentence.slice(0, 600) }, rank: last.rank, at: now },
        now,
      );
    }
  }
  return fail(s, { failure, rank: m.rank, at: now }, now);
}

const leastFar = (s: ReplicaState, otherwise: Member): Member =>
  s.members
    .filter(m => m.loads?.percent != null)
    .reduce((a, b) => (b.loads!.percent! < (a.loads?.percent ?? 101) ? b : a), otherwise);

const allStand = (s: ReplicaState, now: number): boolean =>
  s.members.every(m => m.stalled_at !== null && now - m.stalled_at <= s.spec.no_progress_timeout);

/**
 * The first member is always watched: it is who gets ready. A follower that stands still is watched again only when
 * none is left that is known to get on: its end is told without that, and each look costs history (INV-11). All of those
 * begin anew together, so that their next words lie close enough to be one.
 */
function goOn(s: ReplicaState, stalled: Member, now: number): ReplicaEffect[] {
  s.deadline = now + s.spec.no_progress_timeout;
  s.reason = `loading: ${named(s, stalled)} makes no progress and waits for the others`;
  const again = s.members.every(m => m.stalled_at !== null)
    ? s.members.filter(m => !m.watched)
    : s.members.filter(m => !m.watched && m.rank === 0);
  return again.map(m => watch(s, m));
}

function ready(s: ReplicaState, pid: number, now: number): ReplicaEffect[] {
  s.was_ready = true;
  s.ever_ready = true;
  s.exclude = [];
  s.port_conflict_spared = false;
  for (const m of s.members) Object.assign(m, { state: 'ready', watched: false, loads: null });
  s.members[0]!.pid = pid;
  enter(s, now, 'ready', `serving ${s.spec.served_model_name} at ${s.endpoint}`, null);
  const published: ReplicaEffect = { do: 'ledger', msg: make.endpointMsg(s, 'ready') };
  return isGang(s) ? [{ do: 'abort', op: 'await_ready' }, published] : [published];
}

export function onProgress(s: ReplicaState, msg: ProgressMsg, now: number): ReplicaEffect[] {
  const runs = s.phase === 'loading' || s.phase === 'starting';
  if (msg.fence !== s.fence || !runs || !isMember(s, msg.node, null)) return [];
  const { stage, percent, eta_ms } = msg;
  const m = s.members.find(m => m.node === msg.node) ?? s.members[0]!;
  m.loads = { stage, percent, ...(eta_ms === undefined ? {} : { eta_ms }) };
  if (s.phase === 'starting') return [];
  const known = s.members.flatMap(m => (m.loads === null ? [] : loadOf(m, m.loads)));
  // Where nobody tells a figure, the latest word.
  s.progress = { ...slowest(s, known, loadOf(m, m.loads)), at: new Date(now).toISOString() };
  s.reason = isGang(s) ? `loading: ${named(s, m)}: ${stage}` : `loading: ${stage}`;
  s.deadline = now + s.spec.no_progress_timeout;
  return [];
}

const loadOf = ({ node, rank }: Member, loads: NonNullable<Member['loads']>): MemberLoad => ({
  node,
  rank,
  ...loads,
});
