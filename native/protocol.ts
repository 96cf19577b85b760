// What the helper and the agent say to each other: a JSON object a line. Types only: the agent reads them without
// loading anything of the driver's.

/** `full` asks for what hardly changes as well (names, links, MIG instances); else only what may change at any time. */
export type Question = { ask: 'inventory'; full: boolean } | { ask: 'holders' };

export type Request = Question & { id: number };

/** Why there is no answer from the driver: it could not be opened. `code` null: the library can't be loaded. */
export interface OpenFailure {
  step: string;
  code: number | null;
  /** The loader's words; null where a code says it. */
  message: string | null;
}

export type Response =
  | { id: number; inventory: Reading }
  | { id: number; holders: HoldersReading[] }
  | { id: number; failed: OpenFailure };

/** Something that the driver told of by itself. `uuid` null: of a GPU that could not be named. */
export interface DriverEvent {
  uuid: string | null;
  type: number;
  data: number;
}

export type Line = Response | { event: DriverEvent };

/** Figures are null where the driver doesn't tell, with its code in `codes` under the same name. */
export interface Figures {
  codes: Record<string, number>;
}

export interface Reading {
  driver_version: string | null;
  gpus: GpuReading[];
}

export interface Memory {
  total: number;
  free: number;
  used: number;
  /** null: counted within `used` (first version of the call). */
  reserved: number | null;
}

export interface Holder {
  pid: number;
  used: number | null;
}

/** What is asked of a GPU each time. */
export interface HoldersReading extends Figures {
  index: number;
  /** nvmlReturn of nvmlDeviceGetHandleByIndex; not 0: nothing else is known of this GPU. */
  handle: number;
  uuid: string | null;
  memory: Memory | null;
  processes: Holder[] | null;
}

export interface GpuReading extends HoldersReading {
  name: string | null;
  pci_bus_id: string | null;
  compute_capability: string | null;
  mig: { current: number; pending: number } | null;
  mig_instances: { uuid: string | null; name: string | null; memory_mib: number | null }[];
  ecc_mode: { current: number; pending: number } | null;
  /** Since the driver was loaded. */
  ecc_uncorrected: number | null;
  remap: { corrected: number; uncorrected: number; pending: number; failure: number } | null;
  recovery_action: number | null;
  fabric: { state: number; status: number; cluster: string; clique: number; health: number | null } | null;
  virtualization: number | null;
  /** Of its memory, where that is a NUMA node of the host. */
  numa_node: number | null;
  compute_mode: number | null;
  /** Null: it has no NVLink, or the driver doesn't tell. */
  links: Link[] | null;
  /** NVLink status with each other GPU, by index; null where the driver gave a code. */
  p2p: Record<number, number | null> | null;
}

export interface Link {
  active: boolean;
  /** See REMOTE; null: not told, or not asked. */
  remote: number | null;
  /** Where it leads; null: not told, or not asked. */
  bus: string | null;
}
