// How much of a GPU others hold (INV-13).
import type { Gpu } from '../../contracts/inventory.js';
import type { GpuFacts, GpuSnapshot } from './types.js';

/** Whether a pid belongs to one of our engines. */
export type IsOurs = (pid: number) => boolean;

/** What a driver keeps of an idle GPU for itself, MiB: up to some 700 on the largest. */
const RESERVE_MIB = 1_024;
/** Parts whose memory is a NUMA node of the host: freed pages stay used there. */
const NUMA = /\bG[HB]\d{3}\b/;

/** `unnamed`: memory in use by nobody whom the driver names; 0 where that isn't so, or can't be told. */
export type Judged = Gpu & { unnamed: number };

/**
 * An empty list of processes is no proof that nobody is there: in a container, or of another one, the driver may name
 * none. Then what is used speaks.
 */
export function withForeign(gpu: GpuFacts, snapshot: GpuSnapshot, isOurs: IsOurs, held: boolean): Judged {
  const seen = snapshot.gpus.find(({ uuid }) => uuid === gpu.uuid);
  const processes = seen?.processes ?? null;
  const used = seen?.memory_used_mib ?? null;
  // One holder of unknown size makes the sum unknown; a sum without it would look like room.
  const others = sumOf(processes?.filter(process => !isOurs(process.pid)) ?? null);
  if (others === null) return { ...gpu, foreign_mib: null, unnamed: 0 };
  const own = gpu.memory_kind !== 'unified' && gpu.mig !== true && gpu.virtual !== true;
  if (!own || NUMA.test(gpu.name) || (gpu.health?.numa_node ?? null) !== null)
    return { ...gpu, foreign_mib: others, unnamed: 0 };
  if (used === null) return { ...gpu, foreign_mib: processes!.length === 0 ? null : others, unnamed: 0 };
  const named = sumOf(processes);
  const ours = processes!.some(process => isOurs(process.pid));
  if (named === null || ours || used - named <= RESERVE_MIB)
    return { ...gpu, foreign_mib: others, unnamed: 0 };
  if (held) return { ...gpu, foreign_mib: null, unnamed: 0 };
  return { ...gpu, foreign_mib: others + used - named - RESERVE_MIB, unnamed: used - named };
}

function sumOf(processes: { used_mib: number | null }[] | null): number | null {
  if (processes === null || processes.some(({ used_mib }) => used_mib === null)) return null;
  return processes.reduce((sum, { used_mib }) => sum + used_mib!, 0);
}
