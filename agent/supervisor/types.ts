// What the supervisor needs from the rest of the agent, as ports: discovery, engine catalogue, secrets, network.
import type { MemberOrder } from '../../contracts/activities.js';
import type { EngineRef } from '../../contracts/ids.js';
import type { EngineRenderer, ResolvedEngine } from '../engines/types.js';
import type { PortRange } from '../state/port-leases.js';
import type { Systemd } from './scope.js';

export interface GpuProcess {
  pid: number;
  used_mib: number | null;
}

export interface GpuState {
  uuid: string;
  index: number;
  usable: boolean;
  /** Why it isn't usable. */
  reason: string | null;
  /** null: the source has no memory figure. */
  memory_used_mib: number | null;
  /** null: the source has no process list. */
  processes: GpuProcess[] | null;
}

export interface GpuProbe {
  /** Fresh at every call. Rejects within a deadline of its own: a sick driver must not hold a stop. */
  snapshot(): Promise<{ gpus: GpuState[] }>;
}

export interface Preflight {
  engine: ResolvedEngine;
  /** Values of the spec's env_from_files (INV-12). */
  secretEnv: Record<string, string>;
}

export interface Engines {
  /**
   * Everything that can be known to fail before a start: engine, flags, model path, secrets. Throws the catalogued
   * error with one sentence. Called by prepare and again by spawn.
   */
  preflight(order: MemberOrder): Promise<Preflight>;
  renderer(type: ResolvedEngine['type']): EngineRenderer;
}

export interface EngineKey {
  /** The bearer key itself. */
  key: string;
  /** Public id of the secret that it is derived from. */
  key_id: string;
}

export interface EngineSecrets {
  /** null: the node has no secret, engines run open. */
  engineKey(ref: EngineRef): Promise<EngineKey | null>;
  /** As in Preflight, for an engine that was started by an earlier agent. */
  envFromFiles(order: MemberOrder): Promise<Record<string, string>>;
}

export interface Network {
  /** Where engines listen and peers find them. */
  mgmtAddr: string;
  mgmtInterface: string | null;
  fabricHcas: string[];
}

/** pino's shape. */
export interface Log {
  info(fields: object, msg: string): void;
  warn(fields: object, msg: string): void;
  error(fields: object, msg: string): void;
}

/** Where a test may end or break the process: between the steps of a start, or of an adoption. */
export type FaultPoint =
  | 'before_handle'
  | 'after_spawning_handle'
  | 'after_fork'
  | 'after_pid'
  | 'after_exit_seen'
  | 'after_claim_handle'
  | 'after_adopt_handle';

export interface SupervisorOptions {
  workDir: string;
  ports: PortRange;
  stopTimeoutMs: number;
  healthIntervalMs: number;
  gpuReleaseTimeoutMs: number;
  /** How long a ready engine may produce nothing; default 3 minutes. */
  hangTimeoutMs?: number;
  logMaxBytes: number;
  /** Lines that `tail` gives when none are asked for, and that failures are explained from. */
  logLines: number;
  engines: Engines;
  gpus: GpuProbe;
  /** Slot → UUID, from Welcome; empty before the first one. */
  slots(): Record<number, string>;
  secrets: EngineSecrets;
  /**
   * `announced`: mgmt_addr of Prepared; null when the agent's configuration has none. Throws FABRIC_DOWN and
   * MGMT_ADDR_UNUSABLE for a member of a gang that can't meet the others from here now.
   */
  network(order: MemberOrder): Promise<Network & { announced: string | null }>;
  /** The part of the agent's environment that engines get. */
  passEnv: Record<string, string>;
  /** Engines run in scopes of their own; null or absent: in sessions. */
  systemd?: Systemd | null;
  /** The kernel's log; default /dev/kmsg, where pids are its own. */
  kmsg?: string;
  /** Unprivileged user that engines run as; null: the agent's own. */
  user: { uid: number; gid: number } | null;
  log: Log;
  /** What is wrong with the node, by code; null: no longer. */
  condition?(code: string, sentence: string | null): void;
  /** How long /health may say 503 after ready; default 10 s. */
  deadAfterMs?: number;
  /** INV-2: how long a tree must be gone where nothing else can be known; default 10 s. */
  weakProofMs?: number;
  fault?: (point: FaultPoint) => void;
}
