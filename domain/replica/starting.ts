// From the grant to running processes. One member: `launch`, prepare and start in one. Several (INV-7): each is prepared,
// the answers are compared, and each is started with the addresses of all. An order that came to nothing ends the
// generation only when every member has answered: all that refuse are left out at once, and a node that no order ever
// reached has nothing to stop.
import type { Prepared, Spawned } from '../../contracts/activities.js';
import type { LedgerReply } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import { ask, enter, hold, isGang, log, member, named, node } from './core.js';
import { excluding } from './exclusions.js';
import { fail } from './failing.js';
import { assertHold, onNothingToAdopt, onNotTaken } from './holding.js';
import { watchAll } from './loading.js';
import * as make from './make.js';
import type { Member, OrderFailed, ReplicaEffect, ReplicaState } from './state.js';
import { stop } from './stopping.js';

type Refusal = NonNullable<Member['refused']>;

export function onGranted(
  s: ReplicaState,
  r: Extract<LedgerReply, { kind: 'granted' }>,
  now: number,
): ReplicaEffect[] {
  s.reserving = null;
  s.generation++;
  hold(s, r, r.why);
  if (s.adopt_own) return onNothingToAdopt(s, now);
  const reason = `granted ${r.why}; preparing generation ${s.generation}`;
  enter(s, now, 'placing', reason, TIMING.launchScheduleToStart);
  return [{ do: 'clear_timer', id: 'pending' }, { do: 'clear_timer', id: 'exclusion' }, ...firstOrders(s)];
}

function firstOrders(s: ReplicaState): ReplicaEffect[] {
  if (s.adopt !== null) return [{ do: 'adopt', node: node(s), order: make.adoptOrder(s) }];
  if (!isGang(s)) return [{ do: 'launch', node: node(s), order: make.order(s) }];
  return s.members.map(m => ({ do: 'prepare', node: m.node, order: make.order(s, m.rank) }));
}

/** A first order was answered: launch, prepare or adopt, whichever this generation began with. */
export function onAnswer(
  s: ReplicaState,
  ev: { fence: number; rank: number; result: Prepared & Partial<Spawned> },
  now: number,
): ReplicaEffect[] {
  const m = waitedFor(s, ev);
  if (m === undefined) return [];
  const { gpus, ports, mgmt_addr, engine_version = null, launch_mode = null, pid = null } = ev.result;
  const state = pid === null ? 'prepared' : 'loading';
  Object.assign(m, { gpus, ports, pid, state, prepared: { mgmt_addr, engine_version, launch_mode } });
  s.stop_ms = Math.max(s.stop_ms ?? 0, ev.result.stop_ms ?? 0) || null;
  // Only the first member serves.
  if (m.rank === 0) {
    s.endpoint = make.url(ev.result);
    s.key_id = ev.result.key_id ?? null;
  }
  return answered(s, now);
}

export function onNoAnswer(s: ReplicaState, ev: OrderFailed, now: number): ReplicaEffect[] {
  const m = waitedFor(s, ev);
  if (m === undefined) return [];
  const { code, sentence, delivered } = ev;
  m.refused = { code, sentence, delivered };
  m.state = 'refused';
  return answered(s, now);
}

function waitedFor(s: ReplicaState, ev: { fence: number; rank: number }): Member | undefined {
  if (ev.fence !== s.fence || s.phase !== 'placing') return undefined;
  const m = member(s, ev.rank);
  return m?.prepared === null && m.refused === null ? m : undefined;
}

function answered(s: ReplicaState, now: number): ReplicaEffect[] {
  const refused = s.members.filter(m => m.refused !== null);
  const open = s.members.filter(m => m.prepared === null && m.refused === null);
  if (open.length > 0) {
    if (refused.length === 0) return [];
    const said = refused.map(m => `${named(s, m)}: ${m.refused!.sentence}`).join('; ');
    s.reason = `${said}; waiting for the answer of ${open.map(m => m.node).join(', ')}`;
    return [];
  }
  const taking = s.claiming || s.adopt !== null;
  if (taking) return refused.length > 0 ? onNotTaken(s, refused, now) : runs(s, now, 'taken over');
  if (refused.length === 0 && isGang(s)) refused.push(...differing(s));
  if (refused.length > 0) return onRefused(s, refused, now);
  return isGang(s) ? starting(s, now) : runs(s, now, 'started');
}

/** What no node can see by itself: whether the members can meet, and are the same engine. */
function differing(s: ReplicaState): Member[] {
  const refuse = (m: Member, code: string, sentence: string): Member => {
    m.refused = { code, sentence, delivered: true };
    return m;
  };
  const unset = s.members.filter(m => m.prepared!.mgmt_addr === null);
  if (unset.length > 0)
    return unset.map(m =>
      refuse(
        m,
        'MGMT_ADDR_UNUSABLE',
        `${m.node} has no address at which the other members could reach it: set mgmt_addr in agent.yaml there`,
      ),
    );
  // A binary that couldn't be asked is compared by what it does.
  const known = s.members.filter(m => m.prepared!.engine_version !== null);
  const alike = (a: Member, b: Member): boolean => built(s, a) === built(s, b);
  const most = (m: Member): number => known.filter(o => alike(o, m)).length;
  const usual = known.reduce<Member | null>(
    (best, m) => (best === null || most(m) > most(best) ? m : best),
    null,
  );
  if (usual === null) return [];
  return known
    .filter(m => !alike(m, usual))
    .map(m =>
      refuse(
        m,
        'MEMBERS_DIFFER',
        `${m.node} has ${built(s, m)} and ${usual.node} has ${built(s, usual)}: all members run the same version in the same launch mode`,
      ),
    );
}

function built(s: ReplicaState, m: Member): string {
  const { engine_version, launch_mode } = m.prepared!;
  return `${s.spec.engine} ${engine_version}${launch_mode == null ? '' : ` (${launch_mode})`}`;
}

function onRefused(s: ReplicaState, refused: Member[], now: number): ReplicaEffect[] {
  for (const m of refused) leaveOut(s, m, m.refused!, now);
  const undelivered = refused.filter(m => !m.refused!.delivered);
  // No attempt reached these: nothing runs there, so nothing has to be proven (INV-2).
  for (const m of undelivered) {
    log(s, now, `${m.node} did not take the order: ${m.refused!.sentence}`);
    Object.assign(m, { proof: make.neverStarted(now), state: 'stopped' });
  }
  const delivered = refused.filter(m => m.refused!.delivered);
  const [first] = delivered.filter(m => isCounted(m.refused!)).concat(delivered);
  if (first !== undefined) return failOrder(s, first, first.refused!, now);
  const why = `${undelivered.map(m => m.node).join(', ')} did not take the order`;
  // Where nobody holds anything the next node is free at once.
  if (undelivered.length === s.members.length) return ask(s, now, why, make.atRest(s, now));
  return stop(s, now, { next: 'renew' }, why);
}

function leaveOut(s: ReplicaState, m: Member, { code, sentence, delivered }: Refusal, now: number): void {
  if (make.LAUNCH_ELSEWHERE.has(code) || !delivered)
    s.exclude = excluding(s.exclude, m.node, code, sentence, s.ever_ready, now);
}

const isCounted = ({ code }: Refusal): boolean =>
  code !== 'NODE_UNREACHABLE' && !make.LAUNCH_ELSEWHERE.has(code);

function failOrder(s: ReplicaState, m: Member, refusal: Refusal, now: number): ReplicaEffect[] {
  const { code, sentence } = refusal;
  // host_stop here means only "not counted": the class that people see is the honest one.
  const failure = make.launchDigest(code, isCounted(refusal) ? 'retry' : 'host_stop', sentence);
  const shown = make.LAUNCH_ELSEWHERE.has(code) ? 'node_fault' : 'retry';
  return fail(s, { failure, rank: m.rank, at: now, shown }, now);
}

function starting(s: ReplicaState, now: number): ReplicaEffect[] {
  for (const m of s.members) m.state = 'starting';
  const on = s.members.map(m => m.node).join(', ');
  enter(s, now, 'starting', `all are prepared; starting the members on ${on}`, TIMING.launchScheduleToStart);
  return s.members.map(m => ({ do: 'spawn', node: m.node, order: make.spawnOrder(s, m.rank) }));
}

export function onSpawned(
  s: ReplicaState,
  ev: { fence: number; rank: number; result: Spawned },
  now: number,
): ReplicaEffect[] {
  const m = member(s, ev.rank);
  if (ev.fence !== s.fence || s.phase !== 'starting' || m === undefined) return [];
  Object.assign(m, { pid: ev.result.pid, state: 'loading' });
  return s.members.every(o => o.pid !== null) ? runs(s, now, 'started') : [];
}

/** It was prepared, so that there is something to stop whether or not this order was taken. */
export function onSpawnFailed(s: ReplicaState, ev: OrderFailed, now: number): ReplicaEffect[] {
  const m = member(s, ev.rank);
  if (ev.fence !== s.fence || s.phase !== 'starting' || m === undefined) return [];
  leaveOut(s, m, ev, now);
  return failOrder(s, m, ev, now);
}

function runs(s: ReplicaState, now: number, how: 'started' | 'taken over'): ReplicaEffect[] {
  // The ledger knows it as nobody's, or as another run's.
  const claimed = s.claiming ? assertHold(s) : [];
  s.claiming = false;
  s.adopt = null;
  s.adopt_own = false;
  const on = s.members.map(m => `${m.node} (pid ${m.pid})`).join(', ');
  enter(s, now, 'loading', `engine ${how} on ${on}, loading the model`, s.spec.no_progress_timeout);
  return [...claimed, ...watchAll(s)];
}
