// What the replica's transitions say to others: orders for the node, messages for the ledger. Keys come from a counter
// in the state, so that a message sent again is known by its key.
import type { AdoptOrder, MemberOrder, Prepared, Spawned, StopOrder } from '../../contracts/activities.js';
import type { ExitStatus, FailureClass, FailureDigest, StopProof } from '../../contracts/engine.js';
import { ledgerKey } from '../../contracts/ids.js';
import type {
  AssertMsg,
  EndpointMsg,
  GrantMember,
  ReleaseMsg,
  RenewMsg,
  ReserveMsg,
  Shape,
} from '../../contracts/messages.js';
import type { Endpoint } from '../../contracts/routes.js';
import { type ReplicaSpec, specHash } from '../../contracts/spec.js';
import type { MemberStatus } from '../../contracts/status.js';
import type { ReplicaState } from './state.js';

export type Proofs = { node: string; proof: StopProof }[];
export type Released = { fence: number; members: { node: string; proof: StopProof | null }[] };

/** Refusals of `launch` that another node may not share: this node is left out, nothing is counted. */
export const LAUNCH_ELSEWHERE: ReadonlySet<string> = new Set([
  'ENGINE_MISSING',
  'ENGINE_BROKEN',
  'MODEL_MISSING',
  'SECRET_MISSING',
  'FLAG_UNKNOWN',
  'GPU_GONE',
  'GPU_HELD',
  'GPU_LEAKED',
  'STALE_FENCE',
]);

export function shapeOf(spec: ReplicaSpec): Shape {
  return {
    tensor_parallel: spec.tensor_parallel,
    pipeline_parallel: spec.pipeline_parallel,
    nodes: spec.nodes,
    engine: spec.engine,
    placement: spec.placement,
    priority: spec.priority,
  };
}

const nextKey = (s: ReplicaState, what: string): string => ledgerKey(s.first_run_id, what, ++s.keys);

/** A reserve; with what is released (with proof) in the same message where there is something (renew). */
export function reserve(s: ReplicaState, release?: Released): ReserveMsg | RenewMsg {
  const base = want(s, nextKey(s, 'reserve'));
  return release === undefined ? { kind: 'reserve', ...base } : { kind: 'renew', ...base, release };
}

/** The reserve that is waited for, once more: the ledger that had it may be gone. */
export const reserveAgain = (s: ReplicaState, key: string): ReserveMsg => ({
  kind: 'reserve',
  ...want(s, key),
});

const runs = (s: ReplicaState) => ({
  run_id: s.run_id,
  continued_run_id: s.continued_run_id,
  first_run_id: s.first_run_id,
});

const want = (s: ReplicaState, key: string): Omit<ReserveMsg, 'kind'> => ({
  key,
  replica: s.name,
  ...runs(s),
  shape: shapeOf(s.spec),
  exclude: s.exclude,
  prefer: s.grant?.members[0]?.node ?? null,
  adopt: s.adopt?.slots == null ? null : { node: s.adopt.node, slots: s.adopt.slots },
});

export function assertion(s: ReplicaState): AssertMsg {
  return {
    kind: 'assert',
    key: nextKey(s, 'assert'),
    replica: s.name,
    ...runs(s),
    fence: s.fence,
    members: s.grant?.members ?? [],
    why: s.grant?.why ?? '',
    endpoint: s.fence !== null && s.phase === 'ready' ? endpointOf(s, 'ready') : null,
    ...(s.lost == null ? {} : { lost: [s.lost.node] }),
  };
}

export function release(s: ReplicaState, released: Released | null, withdraw: string | null): ReleaseMsg {
  return {
    kind: 'release',
    key: nextKey(s, 'release'),
    replica: s.name,
    ...runs(s),
    fence: released?.fence ?? null,
    withdraw,
    members: released?.members ?? [],
  };
}

export const released = (s: ReplicaState, proofs: Proofs): Released => ({ fence: s.fence!, members: proofs });

export const unproven = (s: ReplicaState): Released => ({
  fence: s.fence!,
  members: (s.grant?.members ?? []).map(m => ({ node: m.node, proof: null })),
});

/** What is held while nothing runs: its stop is proven already (back-off), or nothing of this fence ever ran. */
export const atRest = (s: ReplicaState, now: number): Released =>
  s.proofs === null
    ? neverStarted(s.fence!, s.grant?.members ?? [], now)
    : { fence: s.fence!, members: s.proofs };

function neverStarted(fence: number, members: GrantMember[], now: number): Released {
  const proof: StopProof = { proof: 'never_started', at: new Date(now).toISOString(), leaked: [] };
  return { fence, members: members.map(m => ({ node: m.node, proof })) };
}

/** A grant for which no order was ever given. */
export const unused = (
  s: ReplicaState,
  grant: { fence: number; members: GrantMember[] },
  now: number,
): ReleaseMsg => release(s, neverStarted(grant.fence, grant.members, now), null);

export function order(s: ReplicaState): MemberOrder {
  const m = s.grant!.members[0]!;
  return {
    replica: s.name,
    fence: s.fence!,
    rank: m.rank,
    generation: s.generation,
    nodes: s.grant!.members.length,
    spec: s.spec,
    slots: m.slots,
  };
}

export const adoptOrder = (s: ReplicaState): AdoptOrder => ({
  ...order(s),
  process: s.adopt === null ? null : { pid: s.adopt.pid, port: s.adopt.port },
});

export function stopOrders(s: ReplicaState, reason: string): { node: string; order: StopOrder }[] {
  return (s.grant?.members ?? []).map(m => ({
    node: m.node,
    order: { replica: s.name, fence: s.fence!, rank: m.rank, reason: reason.slice(0, 300) },
  }));
}

export function membersRunning(s: ReplicaState, r: Prepared & Spawned): MemberStatus[] {
  const m = s.grant!.members[0]!;
  return [{ node: m.node, rank: m.rank, gpus: r.gpus, pid: r.pid, ports: r.ports, state: 'loading' }];
}

/** Where routers reach it. An IPv6 literal needs its brackets. */
export function url(r: Prepared): string {
  const host = r.mgmt_addr ?? '127.0.0.1';
  return `http://${host.includes(':') ? `[${host}]` : host}:${r.ports.http ?? 0}`;
}

export function endpointMsg(
  s: ReplicaState,
  state: 'ready' | 'draining' | null,
  answer = false,
): EndpointMsg {
  return {
    kind: 'endpoint',
    key: nextKey(s, 'endpoint'),
    replica: s.name,
    run_id: s.run_id,
    fence: s.fence!,
    answer,
    endpoint: state === null ? null : endpointOf(s, state),
  };
}

const endpointOf = (s: ReplicaState, state: Endpoint['state']): Endpoint => ({
  model: s.spec.served_model_name,
  aliases: s.spec.aliases,
  replica: s.name,
  fence: s.fence!,
  node: s.grant!.members[0]!.node,
  url: s.endpoint!,
  key_id: s.key_id,
  auth: s.key_id === null ? 'none' : 'derived',
  state,
  revision: specHash(s.spec),
});

export function launchDigest(code: string, cls: FailureClass, sentence: string): FailureDigest {
  return { code, class: cls, sentence, exit: null, tail: [], evidence: null };
}

export function exitText(exit: ExitStatus | null): string {
  if (exit === null || (exit.code === null && exit.signal === null)) return 'exit status unknown';
  return exit.signal === null ? `exit code ${exit.code}` : `signal ${exit.signal}`;
}
