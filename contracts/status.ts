// What `status` shows of a replica (query, HTTP, ctl). Times are RFC 3339 UTC.
import type { EnginePorts } from './engine.js';

/**
 * - pending: waiting for GPUs; deadline null unless placement.timeout
 * - placing: granted, the node prepares; of a gang: all nodes do
 * - starting: the members of a gang are being started; one member goes from placing to loading
 * - loading: the processes run and it is not serving yet; fails on no progress of all members (INV-9)
 * - ready: serving
 * - draining: takes no new request; what is in flight ends
 * - stopping: SIGTERM, SIGKILL, proof (INV-2)
 * - stopped: ended on request; absorbing
 * - backing_off: waits before the next generation
 * - failed: ended without a request; absorbing
 */
export type ReplicaPhase =
  | 'pending'
  | 'placing'
  | 'starting'
  | 'loading'
  | 'ready'
  | 'draining'
  | 'stopping'
  | 'stopped'
  | 'backing_off'
  | 'failed';

export interface MemberStatus {
  node: string;
  rank: number;
  gpus: string[];
  pid: number | null;
  ports: EnginePorts;
  state: string;
}

export interface ReplicaStatus {
  name: string;
  phase: ReplicaPhase;
  reason: string;
  since: string;
  /** null only in pending (without placement.timeout), ready and the two ends. */
  deadline: string | null;
  generation: number;
  fence: number | null;
  spec_hash: string;
  /** Of a gang: of the member that is the least far. eta_s: of the stage, by the engine's own reckoning. */
  progress: { stage: string; percent: number | null; eta_s: number | null; at: string } | null;
  members: MemberStatus[];
  endpoint: string | null;
  placement: { why: string | null };
  restarts: { in_window: number; left: number };
  last_failure: {
    code: string;
    class: string;
    sentence: string;
    evidence: string | null;
    member: number;
    /** Where that member was, and its evidence is; absent: not known. */
    node?: string;
  } | null;
  /** The last 50 decisions, across runs (INV-11). */
  journal: { at: string; text: string }[];
  /** As it was given, with its name: `ctl deploy -f` takes it as it is. */
  spec: { name?: string; model: string; served_model_name: string; engine: string; [key: string]: unknown };
}

/** One row of `ctl nodes --json`. */
export interface NodeRow {
  node_id: string;
  state: 'connected' | 'silent' | 'unsupervised' | 'lost' | 'incompatible';
  cordoned: boolean;
  draining: boolean;
  since: string;
  reason: string;
  labels: Record<string, string>;
  fabrics: string[];
  gpus: { total: number; free: number; held: number; leaked: number; foreign: number; unusable: number };
  engines: number;
  agent_version: string;
  conditions: { code: string; message: string }[];
}

/** An engine that runs without a workflow: kept, routed, adoptable (INV-5). */
export interface UnclaimedEngine {
  replica: string;
  fence: number;
  node: string;
  slots: number[];
  since: string;
  why: string;
  /** Of the engine itself and where it serves, as its node says now; null: not known. */
  pid?: number | null;
  port?: number | null;
}

/** A hold on a node that stays because its end could not be proven (INV-2). */
export interface LeftHold {
  replica: string;
  fence: number;
  rank: number;
  slots: number[];
  /** null: nothing was found in use, or no stop order got there. */
  since: string | null;
  why: string;
  /** What the last stop order found in use. */
  gpus: { gpu: string; pids: number[]; used_mib: number | null }[];
}

/** What became of one when an operator asked: the node looked again. */
export interface ProvenAgain extends LeftHold {
  /** cleared: by the operator's word. left: `why` says what the node found. */
  outcome: 'proven' | 'cleared' | 'left';
}

/** The brake: while it is on, no replica is replaced elsewhere. */
export interface BrakeStatus {
  on: boolean;
  by: 'fleet' | 'operator' | null;
  since: string | null;
  reason: string;
}

/** `ctl fleet` and the HTTP API's /v1/fleet. */
export interface FleetStatus {
  brake: BrakeStatus;
  rebuilding: string | null;
  nodes: Record<NodeRow['state'], number>;
  unclaimed: UnclaimedEngine[];
  /** `over`: what it was about is gone. */
  alarms: { at: string; text: string; over?: boolean }[];
}
