// What the replica's transitions say to others: orders for the node, messages for the ledger. Keys come from a counter
// in the state, so that a message sent again is known by its key.
import type {
  AdoptOrder,
  MemberOrder,
  Peer,
  Prepared,
  SpawnOrder,
  StopOrder,
} from '../../contracts/activities.js';
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
import type { Member, ReplicaState } from './state.js';

export type Released = { fence: number; members: { node: string; proof: StopProof | null }[] };

/** Refusals of `launch` and `prepare` that another node may not share: this node is left out, nothing is counted. */
export const LAUNCH_ELSEWHERE: ReadonlySet<string> = new Set([
  'ENGINE_MISSING',
  'ENGINE_BROKEN',
  'MODEL_MISSING',
  'SECRET_MISSING',
  'FLAG_UNKNOWN',
  'ENGINE_UNFIT',
  'GPU_GONE',
  'GPU_HELD',
  'GPU_LEAKED',
  'FABRIC_DOWN',
  'MGMT_ADDR_UNUSABLE',
  'PORTS_EXHAUSTED',
  'MEMBERS_DIFFER',
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
export function reserve(s: ReplicaState, release: Released | null = null): ReserveMsg | RenewMsg {
  const base = want(s, nextKey(s, 'reserve'));
  return release === null ? { kind: 'reserve', ...base } : { kind: 'renew', ...base, release };
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
  prefer: s.members[0]?.node ?? null,
  ...(s.members.length > 1 ? { prefer_nodes: s.members.map(m => m.node) } : {}),
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
    ...(s.grant?.fabric == null ? {} : { fabric: s.grant.fabric }),
    why: s.grant?.why ?? '',
    endpoint: s.fence !== null && s.phase === 'ready' ? endpointOf(s, 'ready') : null,
    ...(s.lost.length === 0 ? {} : { lost: s.lost.map(l => l.node) }),
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

/** Each member with its proof, or without: the hold of such a one stays with the ledger (INV-1). */
export const proven = (s: ReplicaState): Released => ({
  fence: s.fence!,
  members: s.members
    // An operator's word has ended that hold already.
    .filter(m => m.gone?.how !== 'forgotten')
    .map(m => ({ node: m.node, proof: m.proof })),
});

/** The same where nothing of this fence runs: whose stop wasn't proven was never started. */
export const atRest = (s: ReplicaState, now: number): Released => ({
  fence: s.fence!,
  members: proven(s).members.map(m => ({ ...m, proof: m.proof ?? neverStarted(now) })),
});

export const neverStarted = (now: number): StopProof => ({
  proof: 'never_started',
  at: new Date(now).toISOString(),
  leaked: [],
});

/** A grant for which no order was ever given. */
export const unused = (
  s: ReplicaState,
  grant: { fence: number; members: GrantMember[] },
  now: number,
): ReleaseMsg => {
  const members = grant.members.map(m => ({ node: m.node, proof: neverStarted(now) }));
  return release(s, { fence: grant.fence, members }, null);
};

export function order(s: ReplicaState, rank = 0): MemberOrder {
  const { members, fabric } = s.grant!;
  return {
    replica: s.name,
    fence: s.fence!,
    rank,
    generation: s.generation,
    nodes: members.length,
    spec: s.spec,
    slots: members.find(m => m.rank === rank)!.slots,
    ...(fabric == null ? {} : { fabric }),
  };
}

/**
 * Whether a member's node could start another spec, too. On the fabric that it has, or without a word of one: where
 * another one is needed the plan has answered for it.
 */
export function checkOrder(s: ReplicaState, rank: number, spec: ReplicaSpec): MemberOrder {
  const { fabric: granted, ...rest } = order(s, rank);
  const stays = spec.nodes > 1 && (spec.placement.fabric ?? granted) === granted;
  const fabric = stays ? granted : null;
  return { ...rest, spec, nodes: spec.nodes, ...(fabric == null ? {} : { fabric }) };
}

/** Every member, as its prepare said where the others find it. */
export const spawnOrder = (s: ReplicaState, rank: number): SpawnOrder => ({
  ...order(s, rank),
  peers: s.members.map(
    ({ rank, node, ports, prepared }): Peer => ({ rank, node, mgmt_addr: prepared!.mgmt_addr!, ports }),
  ),
});

export const adoptOrder = (s: ReplicaState, rank = 0): AdoptOrder => ({
  ...order(s, rank),
  process: s.adopt === null ? null : { pid: s.adopt.pid, port: s.adopt.port },
});

export const stopOrders = (
  s: ReplicaState,
  members: Member[],
  reason: string,
): { node: string; order: StopOrder }[] =>
  members.map(({ node, rank }) => ({
    node,
    order: { replica: s.name, fence: s.fence!, rank, reason: reason.slice(0, 300) },
  }));

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
  node: s.members.find(m => m.rank === 0)!.node,
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
