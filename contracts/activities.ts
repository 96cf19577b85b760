// The activities of a node (queue `node-<id>`), as both sides see them. Every one may run twice and then has run
// once: it is keyed by (replica, fence, rank) and the agent keeps the highest fence on disk (INV-6).
// Inputs are tolerant (unknown fields ignored, none ever removed).
import type { EnginePorts, FailureDigest, StopProof } from './engine.js';
import type { Shape, Survey } from './messages.js';
import type { ReplicaSpec } from './spec.js';

export interface MemberOrder {
  replica: string;
  fence: number;
  rank: number;
  generation: number;
  /** Members of the gang, this one included. */
  nodes: number;
  spec: ReplicaSpec;
  /** Slots of this node's GPUs, as numbered by its `node` workflow; the agent maps them to UUIDs (Welcome). */
  slots: number[];
  /** Name of the fabric that all members of a gang are on (INV-3); null or absent: one member. */
  fabric?: string | null;
}

/** A member of a gang as the others find it: what its prepare said. */
export interface Peer {
  rank: number;
  node: string;
  mgmt_addr: string;
  ports: EnginePorts;
}

/** The same order as its prepare's (INV-6 compares it without `peers`), and all members in rank order. */
export interface SpawnOrder extends MemberOrder {
  /** Absent or empty: one member. */
  peers?: Peer[];
}

export interface Prepared {
  /** UUIDs in slot order. */
  gpus: string[];
  ports: EnginePorts;
  /** Rendezvous and client address; null: the control plane's view of the node's address. */
  mgmt_addr: string | null;
  /** Short public id of the secret its engine key is derived from; null: the engine runs without a key. */
  key_id: string | null;
  /** stop_timeout and gpu_release_timeout of the node together, ms: bounds how long a stop is waited for. */
  stop_ms?: number;
  /** Version and launch mode of the engine as it was looked at: all members of a gang have the same. */
  engine_version?: string | null;
  launch_mode?: string | null;
}

/** Takes over an engine that lives: one of this replica and fence (a lost run's), or a process that an operator names. */
export interface AdoptOrder extends MemberOrder {
  /** An operator's: the pid and the port that it serves at. null: only an engine of this very fence with this spec. */
  process: { pid: number; port: number } | null;
}

export interface Spawned {
  /** The engine's own pid. */
  pid: number;
  /** True when this order found the engine already running (a repeated attempt, or adopted). */
  adopted: boolean;
}

/** Heartbeat detail of `await_ready`. */
export interface LoadProgress {
  /** E.g. `loading weights`; from the engine's log. */
  stage: string;
  percent: number | null;
  /** What the stage has still to go, by the engine's own reckoning; absent: it doesn't say. */
  eta_ms?: number;
  at: string;
}

export type ReadyResult =
  | { ready: true; pid: number; model_ids: string[] }
  /** The engine ended or made no progress. It may still be alive (no progress): the workflow stops it. */
  | { ready: false; failure: FailureDigest };

export interface StopOrder {
  replica: string;
  fence: number;
  rank: number;
  /** Why, for the log: cancel, apply, restart, failed, superseded. */
  reason: string;
  /** Who says that its GPUs count as free although that can't be proven (proof `operator`); absent: nobody. */
  by_word?: string;
}

export interface NodeActivities {
  /** Checks, reserves ports, records the GPU baseline (INV-2). Throws GPU_HELD, GPU_GONE, ENGINE_MISSING, MODEL_MISSING, … */
  prepare(order: MemberOrder): Promise<Prepared>;
  /** Starts the prepared engine. */
  spawn(order: SpawnOrder): Promise<Spawned>;
  /** prepare and spawn in one, for a single member: the short way to (re)start. */
  launch(order: MemberOrder): Promise<Prepared & Spawned>;
  /** Whose a process is and which of the node's GPUs it has. Throws ADOPT_REFUSED with why it can't be taken. */
  look(process: { pid: number; port: number }): Promise<LookedAt>;
  /**
   * The engine goes on as it is under this order. Throws ENGINE_UNKNOWN when there is none (ended, being stopped, never
   * here), FENCE_CONFLICT when it runs another spec, ADOPT_REFUSED with why a named process can't be taken.
   */
  adopt(order: AdoptOrder): Promise<Prepared & Spawned>;
  /** Ends when the engine serves or has failed. */
  await_ready(order: MemberOrder): Promise<ReadyResult>;
  /** SIGTERM, stop_timeout, SIGKILL of the tree, then proof. Throws STOP_INCOMPLETE when the proof can't be had. */
  stop(order: StopOrder): Promise<StopProof>;
  /** Looks whether the node could start that spec (binary, flags, model, secrets), and touches nothing. */
  check(order: MemberOrder): Promise<void>;
  /** What the node knows of that engine now. */
  inspect(order: StopOrder): Promise<InspectResult>;
}

export interface LookedAt {
  /** Slots of the GPUs that the process and its children have; empty where the node has no process lists. */
  slots: number[];
  /** An engine of llmgw's own; null: started by somebody else. */
  engine: { replica: string; fence: number } | null;
}

export interface InspectResult {
  known: boolean;
  alive: boolean;
  pid: number | null;
  highest_fence: number | null;
}

/** Activities of one control plane instance (queue `llmgw-cp-<instance>`). */
export interface ControlActivities {
  /** The route table has a new version: pull it from `fleet` and hand it to the routers. */
  push_routes(input: { version: number }): Promise<void>;
  /**
   * Ends when every known router has acknowledged `version` with nothing outstanding on the endpoint and the engine's
   * own running count is 0, or after `timeout_ms`.
   */
  await_drained(input: {
    replica: string;
    fence: number;
    version: number;
    /** The engine's own address, for its running count. */
    url: string;
    timeout_ms: number;
  }): Promise<{ drained: boolean; outstanding: number }>;
}

/** What a control plane instance saw of a node whose stream is silent. */
export interface SilentVerdict {
  /** serving: an engine of it answers. dark: nothing did, over a whole period in which this instance heard others. */
  verdict: 'serving' | 'dark' | 'unchanged';
  evidence: string;
}

/** Activities of any control plane instance (queue `llmgw`). */
export interface PlanActivities {
  /** Open runs of replicas and nodes, by visibility, a page at a time: no payload passes 64 KiB (INV-11). */
  survey(input: { page: string | null }): Promise<Survey & { next: string | null }>;
  /**
   * Watches the data plane of a silent node, from routers' reports and by connecting to its endpoints, and ends when what
   * is `believed` is no longer true, or after `for_ms` with `unchanged`.
   */
  watch_silent(input: {
    node_id: string;
    believed: 'silent' | 'unsupervised' | 'lost';
    for_ms: number;
  }): Promise<SilentVerdict>;
  /** The same placement as the ledger's, on a snapshot of it; the replica's own GPUs count as free. */
  plan(input: { replica: string | null; shape: Shape }): Promise<{ fits: boolean; reason: string }>;
}
