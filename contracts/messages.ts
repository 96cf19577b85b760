// Signals between workflows, and from the control plane into them. Ledger traffic is signals both ways: keyed,
// acknowledged, idempotent (one workflow takes about 10 updates in flight, but thousands of signals). Readers ignore
// unknown fields; none is ever removed.
import { z } from 'zod';
import type { EngineEvent, EngineReport, Serves, StopProof } from './engine.js';
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
  /**
   * Slots of the node's GPUs, numbered by the `node` workflow, append-only. In the order of the engine's local ranks: what
   * belongs to one tensor-parallel group lies side by side (INV-4).
   */
  slots: number[];
}

export interface ReserveMsg {
  kind: 'reserve';
  key: string;
  replica: string;
  /** The run that sends it, and the one that it continues: a run that continues nothing known was reset. */
  run_id: string;
  continued_run_id: string | null;
  first_run_id: string;
  shape: Shape;
  exclude: Excluded[];
  /** Placed there again if it still fits: its page cache holds the weights. */
  prefer: string | null;
  /** Of a gang: the nodes of the generation before, in rank order; takes the place of `prefer`. */
  prefer_nodes?: string[];
  /** A process that is adopted has these GPUs already: these or none. */
  adopt: { node: string; slots: number[] } | null;
}

/** Second argument of a `replica` that adopts a process that llmgw didn't start (`ctl replica adopt`). */
export const AdoptRequest = z.object({
  node: z.string().min(1),
  pid: z.number().int().min(2),
  port: z.number().int().min(1).max(65_535),
});
export type AdoptRequest = z.infer<typeof AdoptRequest>;

export interface ReleaseMsg {
  kind: 'release';
  key: string;
  replica: string;
  fence: number | null;
  /** The run that releases: one that was reset says nothing of what an earlier course of it has started. */
  run_id?: string;
  continued_run_id?: string | null;
  first_run_id?: string;
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

/** What a replica believes that it holds: told at the start of each later run, and when the ledger asks (rebuilt, reset). */
export interface AssertMsg {
  kind: 'assert';
  key: string;
  replica: string;
  run_id: string;
  continued_run_id: string | null;
  first_run_id: string;
  /** null: it holds nothing. */
  fence: number | null;
  members: GrantMember[];
  /** Of the grant; absent: one member. */
  fabric?: string | null;
  why: string;
  /** As it was last published; null: not in the table. */
  endpoint: Endpoint | null;
  /** Nodes of members that it was told are lost: a ledger that began anew has told nobody, and owes it the `back`. */
  lost?: string[];
}

export type LedgerMsg = ReserveMsg | ReleaseMsg | RenewMsg | EndpointMsg | AssertMsg;

/** Ledger → replica. Every LedgerMsg is answered by one of these with its key. */
export type LedgerReply =
  | {
      kind: 'granted';
      key: string;
      fence: number;
      members: GrantMember[];
      why: string;
      /** The fabric that all members are on (INV-3); null or absent: one member. */
      fabric?: string | null;
    }
  /**
   * `hopeless`: no node that isn't excluded could host it even if it were empty. `refused`: every node that could host it
   * has refused its spec, and the fleet may yet change.
   */
  | { kind: 'waiting'; key: string; reason: string; hopeless: boolean; refused?: boolean }
  /** An engine of this replica that this run doesn't know of (of a run that was terminated or reset): claim it or stop it. */
  | {
      kind: 'stale';
      key: string;
      fence: number;
      members: GrantMember[];
      fabric?: string | null;
      /** Members that its gang had; absent: as many as are named. More: some have ended, and it can only be stopped (INV-7). */
      nodes?: number;
    }
  /** The ledger has lost or doubts what this replica holds: say it (AssertMsg), and ask again for what is waited for. */
  | { kind: 'assert'; key: string }
  /** Of the node of a member of `fence`; see NodeNews. */
  | { kind: 'node'; key: string; node: string; fence: number; news: NodeNews; at: number; reason: string }
  /** `queues`: of the control plane instances that are alive. */
  | { kind: 'ack'; key: string; version: number; queues: string[] };

/**
 * - lost: on_node_loss.replace_after counts from `at`
 * - back: it is heard again, or the brake holds: nothing is replaced
 * - forgotten: the operator's word is the proof of stop; the hold has ended
 * - missing: it is connected and has no such engine, and no end of it to tell
 * - sick: a GPU of the grant can't carry an engine any more (Gpu.fatal)
 */
export type NodeNews = 'lost' | 'back' | 'forgotten' | 'missing' | 'sick';

/** An engine that lives on a node, as its last hello told. */
export interface RunningEngine {
  replica: string;
  fence: number;
  rank: number;
  slots: number[];
  state: EngineReport['state'];
  pid: number | null;
  serves: Serves | null;
  /** Members of its gang, itself included; absent: one. */
  nodes?: number;
  /** That the gang was granted on (INV-3). */
  fabric?: string | null;
}

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
  /** `mgmt_addr` is set in its agent.yaml: members of a gang meet at it. Absent: not told, and taken for not set. */
  mgmt_addr?: boolean;
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
  /** Slots whose GPU can't carry an engine any more (Gpu.fatal), with what is wrong; absent: none. */
  fatal?: { slot: number; reason: string }[];
  unproven: boolean;
  conditions: { code: string; message: string }[];
  /** Workflow time of the last hello, ms; 0: none yet. A rebuilt ledger grants nothing on a node that said none since. */
  hello_at: number;
  boot_id: string | null;
  /** Engines of the last hello. The ledger reconciles them once and doesn't keep them (INV-11). */
  running: RunningEngine[];
}

/** What Temporal says of the latest run of a replica's id that holds something and isn't open (INV-5: positive knowledge). */
export interface ClosedMsg {
  /** One sweep: judged as one, so that a sweep which would stop too much stops nothing. */
  closed: {
    replica: string;
    run_id?: string;
    first_run_id: string;
    status: string;
    closed_at: number;
    started_at?: number;
  }[];
}

/** Open runs, by visibility: what a ledger that begins anew must hear of before it grants. */
export interface Survey {
  /** `node`: the memo's, where its members are; null: it holds nothing yet. */
  replicas: { name: string; run_id: string; node: string | null }[];
  nodes: string[];
}

/** Answer of `fleet`'s query `holders`: what the janitor compares with the open runs. */
export interface Holders {
  /** First run id of the ledger's chain: another one is another ledger, which must be told everything. */
  epoch: string;
  run_id: string;
  continued_run_id: string | null;
  rebuilding: string | null;
  instances: string[];
  nodes: string[];
  /** Of these, the ones whose stream isn't heard, as far as the ledger knows. */
  quiet?: string[];
  engines: number;
  grants: { replica: string; fence: number; run_id: string; first_run_id: string; nodes: string[] }[];
}

export interface InstanceMsg {
  instance: string;
  queue: string;
  peer_addr: string | null;
  version: string;
  /** Of its server.yaml's liveness: the latest word of any instance counts. */
  brake?: { share: number; min: number };
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
  /** liveness.missed_heartbeats of the instance. */
  missed_heartbeats?: number;
  /** False: its protocol is older than what this control plane serves. Engines are kept, nothing new is placed. */
  compatible?: boolean;
  inventory: Inventory;
  /** False: the mgmt_addr of the inventory is the address that this instance sees, agent.yaml has none. */
  mgmt_addr_set?: boolean;
  engines: EngineReport[];
}

/** Control plane → node/<id>: the operator says that the machine is gone. */
export interface NodeForget {
  by: string;
}

/** Control plane → node/<id>: what operators did about it, for its journal. */
export interface NodeNote {
  text: string;
}

/** Update `prove_left` of `fleet`: what is left on a node without proof is looked at again. */
export interface ProveAgain {
  node: string;
  /** null: all that is left there. */
  slots: number[] | null;
  /** UUIDs of the same GPUs: a word for them is none for others. */
  gpus: string[] | null;
  by: string;
  /** The operator says that they are free, whatever the node finds. */
  word: boolean;
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

/** Who held a node before its present session. */
export interface NodeHolder {
  session: number;
  instance: string;
  peer_addr: string | null;
  boot_id: string | null;
}

/** Answer of node/<id>'s query `welcome`. */
export interface WelcomeInfo {
  highest_session: number;
  /** Slot → UUID, append-only. */
  slots: Record<string, string>;
  /** The session that the present one took over from: its instance may not know yet that it is over. */
  previous?: NodeHolder | null;
}

/** Control plane → replica/<name>, on a change of stage, at most one in TIMING.progressSignal. */
export interface ProgressMsg {
  /** The node that told of it, by its certificate (INV-8). */
  node?: string;
  fence: number;
  stage: string;
  percent: number | null;
  eta_ms?: number;
}
