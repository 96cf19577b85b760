// What discovery tells the rest of the agent, whatever it was read from. A figure that the source can't tell is
// null, never 0 (INV-2 falls back on what there is).
import type { Condition, Gpu, Inventory } from '../../contracts/inventory.js';

export interface GpuProcess {
  pid: number;
  used_mib: number | null;
}

/** A moment's look at the GPUs, for baselines and the proof of stop. */
export interface GpuSnapshot {
  gpus: {
    uuid: string;
    index: number;
    usable: boolean;
    /** Why it isn't; null when it is. */
    reason: string | null;
    memory_used_mib: number | null;
    /** null: this source can't tell which processes hold the GPU. */
    processes: GpuProcess[] | null;
  }[];
  /** The driver stopped to answer during this look. */
  silent?: Condition;
}

/** A GPU without the figure that depends on whose processes are whose. */
export type GpuFacts = Omit<Gpu, 'foreign_mib'>;

export interface GpuInventory {
  source: Inventory['source'];
  driver_version: string | null;
  gpus: GpuFacts[];
  /** Cliques of NVLink, as UUIDs (INV-4). */
  islands: string[][];
  conditions: Condition[];
  /** The same look as a snapshot, where the source has it anyway. */
  snapshot?: GpuSnapshot;
  /** Why GPUs that aren't in the list may be there all the same; absent: they are gone. */
  partial?: string;
}

/** Where GPUs are read from. Both calls have a deadline of their own and never throw for a sick driver. */
export interface GpuSource {
  inventory(): Promise<GpuInventory>;
  snapshot(): Promise<GpuSnapshot>;
}
