// Signals between workflows, and from the control plane into them. Ledger traffic is signals both ways: keyed,
// acknowledged, idempotent (one workflow takes about 10 updates in flight, but thousands of signals). Readers ignore
// unknown fields; none is ever removed.
import type { EngineEvent, EngineReport, StopProof } from './engine.js';
import type { Inventory } from './inventory.js';
import type { Endpoint } from './routes.js';
import type { ReplicaSpec } from './spec.js';

/** What a replica asks of the ledger: what placement needs to know of its spec. */
export interface Shape {
  tensor_parallel: number;
  pipeline_parallel: number;
  nodes: number;
  engine: string;
  placement: ReplicaSpec['placement'];
  priority: number;
}

export interface Excluded {
  node: string;
  reason: string;
  /** Workflow time, ms, until which the node is left out; null: until the spec changes. */
  until: number | null;
  /** How often in a row. */
  times: number;
}

export interface GrantMember {
  node: string;
  rank: number;
  /** Slots of the node's GPUs, ascending; numbered by the `node` workflow, append-only. */
  slots: number[];
}

export interface ReserveMsg {
  kind: 'reserve';
  key: string;
  replica: string;
  run_id: string;
  first_run_id: string;
  shape: Shape;
  exclude: Excluded[];
  /** Placed there again if it still fits: its page cache holds the weights. */
  prefer: string | null;
}

export interface ReleaseMsg {
  kind: 'release';
  key: string;
  replica: string;
  fence: number | null;
  /** A reserve that is withdrawn with it, granted or not. */
  withdraw: string | null;
  /** proof null: the hold stays with fleet and node (INV-1). */
  members: { node: string; proof: StopProof | null }[];
}

/** Release with proof and the next reserve in one, for restarts: nobody can take the GPUs in between. */
export interface RenewMsg extends Omit<ReserveMsg, 'kind'> {
  kind: 'renew';
  release: { fence: number; members: { node: string; proof: StopProof | null }[] };
}

export interface EndpointMsg {
  kind: 'endpoint';
  key: string;
  replica: string;
  run_id: string;
  fence: number;
  /** null takes the replica's endpoint of that fence out of the table. */
  endpoint: Endpoint | null;
  /** An answer is needed: a drain waits for the version. Else delivery is enough, and a workflow task is saved. */
  answer: boolean;
}

export type LedgerMsg = ReserveMsg | ReleaseMsg | RenewMsg | EndpointMsg;

/** Ledger → replica. Every LedgerMsg is answered by one of these with its key. */
export type LedgerReply =
  | { kind: 'granted'; key: string; fence: number; members: GrantMember[]; why: string }
  /** `hopeless`: no node that isn't excluded could host it even if it were empty. */
  | { kind: 'waiting'; key: string; reason: string; hopeless: boolean }
  /** An earlier run of this replica (terminated, or cancelled without proof) left an engine: stop it, release, ask again. */
  | { kind: 'stale'; key: string; fence: number; members: GrantMember[] }
  /** `queues`: of the control plane instances that are alive. */
  | { kind: 'ack'; key: string; version: number; queues: string[] };

/** What placement knows of a node. Equal nodes share a profile by content. */
export interface NodeFacts {
  node_id: string;
  /** Grows with each report of the node's workflow: an older one is ignored. */
  seq: number;
  state: 'connected' | 'silent' | 'unsupervised' | 'lost' | 'incompatible';
  reason: string;
  since: number;
  agent_version: string;
  labels: Record<string, string>;
  /** Names of the fabrics it is on, usable ones only (INV-3). */
  fabrics: string[];
  engines: {
    name: string;
    type: string;
    version: string | null;
    launch_mode: string | null;
    problem: string | null;
  }[];
  profile: { gpu_model: string | null; memory_mib: number | null; slots: number; islands: number[] };
  /** Bitmasks over slots. */
  usable: number;
  foreign: number;
  unproven: boolean;
  conditions: { code: string; message: string }[];
}

export interface InstanceMsg {
  instance: string;
  queue: string;
  peer_addr: string | null;
  version: string;
}

export interface UnclaimedMsg {
  event: EngineEvent;
  why: string;
}

/** Control plane → node/<id>. */
export interface NodeHello {
  session: number;
  instance: string;
  peer_addr: string | null;
  boot_id: string;
  protocol_version: number;
  agent_version: string;
  capabilities: string[];
  /** False: plain connection, the id is the agent's own word. */
  proven: boolean;
  clock_offset_ms: number;
  heartbeat_interval_ms: number;
  /** False: its protocol is older than what this control plane serves. Engines are kept, nothing new is placed. */
  compatible?: boolean;
  inventory: Inventory;
  engines: EngineReport[];
}

export interface NodeGone {
  session: number;
  instance: string;
  reason: string;
}

export interface NodeDigest {
  session: number;
  instance: string;
  heartbeats: number;
}

export interface NodeInventory {
  session: number;
  inventory: Inventory;
}

/** Answer of node/<id>'s query `welcome`. */
export interface WelcomeInfo {
  highest_session: number;
  /** Slot → UUID, append-only. */
  slots: Record<string, string>;
}

/** Control plane → replica/<name>, on a change of stage, at most one in TIMING.progressSignal. */
export interface ProgressMsg {
  /** The node that told of it, by its certificate (INV-8). */
  node?: string;
  fence: number;
  stage: string;
  percent: number | null;
}
