// What a node is: the JSON of `agent --check --json`, of Hello and of `ctl node show --json`. What a source can't
// tell is null, never 0. Readers tolerate unknown fields (messages are additive only).
import { z } from 'zod';

export const GpuHealth = z.object({
  ecc: z.boolean().nullable(),
  /** Since the driver was loaded. */
  ecc_uncorrected: z.number().nullable(),
  remapped_rows: z
    .object({ corrected: z.number(), uncorrected: z.number(), pending: z.boolean(), failure: z.boolean() })
    .nullable(),
  /** What the driver asks for: `none`, `reset`, `reboot`, `drain`, …. */
  recovery_action: z.string().nullable(),
  /** Of the NVLink fabric behind its switches; `clique`: GPUs of several hosts with the same one are linked. */
  fabric: z.object({ state: z.string(), clique: z.string().nullable() }).nullable(),
  /** Of its memory, where that is a NUMA node of the host. */
  numa_node: z.number().nullable(),
});
export type GpuHealth = z.infer<typeof GpuHealth>;

export const Gpu = z.object({
  index: z.number().int(),
  uuid: z.string(),
  name: z.string(),
  pci_bus_id: z.string().nullable(),
  memory_total_mib: z.number().nullable(),
  memory_free_mib: z.number().nullable(),
  /** Memory held by processes that are not of our engines, MiB. */
  foreign_mib: z.number().nullable(),
  compute_capability: z.string().nullable(),
  mig: z.boolean().nullable(),
  usable: z.boolean(),
  /** Why it isn't usable; null when it is. */
  reason: z.string().nullable(),
  /**
   * No engine on it can go on (lost, fell off the bus, uncorrectable ECC, needs a reset, fabric error): what runs there is
   * moved at once. Never for what may pass or is only suspected (a driver that doesn't answer, a look that failed).
   */
  fatal: z.boolean().optional(),
  /** unified: it has no memory of its own, the figures are the host's. */
  memory_kind: z.enum(['device', 'unified']).optional(),
  /** A slice of a card, as a virtual machine sees it: its memory is the slice's. */
  virtual: z.boolean().optional(),
  /** What it is split into in MIG mode; for people, nothing is placed on them. */
  mig_instances: z
    .array(z.object({ uuid: z.string(), name: z.string(), memory_mib: z.number().nullable().optional() }))
    .optional(),
  /** What the driver keeps of its health; absent where the source has no such figures. */
  health: GpuHealth.optional(),
});
export type Gpu = z.infer<typeof Gpu>;

/** A GPU with more memory than this in use by others is foreign: not offered (INV-13). */
export const FOREIGN_MIB = 512;

export const Hca = z.object({
  name: z.string(),
  port: z.number().int(),
  state: z.string().nullable(),
  phys_state: z.string().nullable(),
  rate_gbps: z.number().nullable(),
  link_layer: z.string().nullable(),
});
export type Hca = z.infer<typeof Hca>;

export const NodeFabric = z.object({
  name: z.string(),
  usable: z.boolean(),
  hcas: z.array(z.string()),
  problems: z.array(z.string()),
});

export const NodeEngine = z.object({
  name: z.string(),
  type: z.string(),
  version: z.string().nullable(),
  launch_mode: z.string().nullable(),
  problems: z.array(z.string()),
});
export type NodeEngine = z.infer<typeof NodeEngine>;

export const Condition = z.object({ code: z.string(), message: z.string() });
export type Condition = z.infer<typeof Condition>;

export const Inventory = z.object({
  node_id: z.string(),
  boot_id: z.string(),
  agent_version: z.string(),
  /** null: the control plane uses the address that it sees. */
  mgmt_addr: z.string().nullable(),
  labels: z.record(z.string(), z.string()),
  source: z.enum(['nvml', 'nvidia-smi', 'simulated', 'none']),
  driver_version: z.string().nullable(),
  gpus: z.array(Gpu),
  /** Maximal sets of two or more GPUs in which every pair is linked by NVLink (INV-4). */
  nvlink_islands: z.array(z.array(z.string())),
  hcas: z.array(Hca),
  fabrics: z.array(NodeFabric),
  engines: z.array(NodeEngine),
  certificate: z.object({ cn: z.string(), not_after: z.string() }).nullable(),
  conditions: z.array(Condition),
});
export type Inventory = z.infer<typeof Inventory>;
