// What NVML's helper has read, as GPUs of the inventory.
import type { Condition, GpuHealth } from '../../contracts/inventory.js';
import { NVML, VIRTUALIZATION_VGPU } from '../../native/codes.js';
import type { GpuReading, Holder, HoldersReading, Reading } from '../../native/protocol.js';
import { cleanName } from './cells.js';
import { type HostMemory, isIntegrated } from './host-memory.js';
import { FABRIC_STATES, faultOf, handleFault, MEMORY_UNREAD, recoveryWord } from './nvml-faults.js';
import { leadsToGpusOnly } from './nvml-links.js';
import type { GpuFacts, GpuProcess, GpuSnapshot } from './types.js';

/** A GPU, and what only the proof of stop looks at. */
export type ReadGpu = GpuFacts & { used_mib: number | null; processes: GpuProcess[] | null };

const MIB = 1024 * 1024;
const mib = (bytes: number): number => Math.floor(bytes / MIB);

/** Stands for the UUID of a GPU that doesn't tell it, as of one that is lost. */
export const nameless = (index: number): string => `unknown-${index}`;

export function gpusOf(
  reading: Reading,
  host: HostMemory | null,
): { gpus: ReadGpu[]; conditions: Condition[] } {
  const twice = new Set<string>();
  const seen = new Set<string>();
  for (const { uuid } of reading.gpus) {
    if (uuid !== null && seen.has(uuid)) twice.add(uuid);
    else if (uuid !== null) seen.add(uuid);
  }
  const gpus = reading.gpus.map(gpu => {
    const read = gpuOf(gpu, host);
    if (gpu.uuid === null || !twice.has(gpu.uuid)) return read;
    // Engines are given GPUs by UUID: one that two have means neither.
    return {
      ...read,
      uuid: nameless(gpu.index),
      usable: false,
      reason: `the driver gives its UUID to another GPU as well`,
    };
  });
  return { gpus, conditions: reading.gpus.flatMap((gpu, at) => notesOf(gpu, gpus[at]!)) };
}

function gpuOf(gpu: GpuReading, host: HostMemory | null): ReadGpu {
  const name = cleanName(gpu.name ?? '') || 'unknown';
  const memory = memoryOf(gpu, name, host);
  const unread = memory.memory_total_mib === null && !isIntegrated(name);
  const fault =
    gpu.handle === NVML.OK
      ? (faultOf(gpu, leadsToGpusOnly(gpu)) ??
        (gpu.uuid === null
          ? { reason: 'the driver gives no UUID by which it can be told from the others', fatal: false }
          : null) ??
        (unread ? MEMORY_UNREAD : null))
      : handleFault(gpu.handle);
  const isVirtual = gpu.virtualization === VIRTUALIZATION_VGPU;
  const split = gpu.mig?.current === 1 && !isVirtual;
  return {
    index: gpu.index,
    uuid: gpu.uuid ?? nameless(gpu.index),
    name,
    pci_bus_id: gpu.pci_bus_id,
    ...memory,
    compute_capability: gpu.compute_capability,
    mig: gpu.mig === null || isVirtual ? null : gpu.mig.current === 1,
    usable: fault === null,
    reason: fault?.reason ?? null,
    ...(fault?.fatal ? { fatal: true } : {}),
    ...(isVirtual ? { virtual: true } : {}),
    ...(split ? { mig_instances: instancesOf(gpu) } : {}),
    ...(gpu.handle === NVML.OK ? { health: healthOf(gpu) } : {}),
    processes: processesOf(gpu.processes),
  };
}

const instancesOf = (gpu: GpuReading) =>
  gpu.mig_instances.map(({ uuid, name, memory_mib }) => ({
    uuid: uuid ?? 'unknown',
    name: cleanName(name ?? '') || 'unknown',
    memory_mib,
  }));

type Memory = Pick<ReadGpu, 'memory_total_mib' | 'memory_free_mib' | 'memory_kind' | 'used_mib'>;

function memoryOf(gpu: GpuReading, name: string, host: HostMemory | null): Memory {
  const { memory } = gpu;
  const integrated = isIntegrated(name) && host !== null;
  // Some drivers tell the carve-out of an integrated part, a few hundred MiB of all that CUDA can have.
  const small = memory !== null && host !== null && mib(memory.total) < host.totalMib / 4;
  if (integrated && (gpu.codes.memory === NVML.NOT_SUPPORTED || small)) {
    const { totalMib, availableMib } = host;
    // What the host uses isn't what engines hold: a proof of stop goes by processes there (INV-2).
    return {
      memory_total_mib: totalMib,
      memory_free_mib: availableMib,
      memory_kind: 'unified',
      used_mib: null,
    };
  }
  if (memory === null || memory.total === 0)
    return { memory_total_mib: null, memory_free_mib: null, used_mib: null };
  return {
    memory_total_mib: mib(memory.total),
    memory_free_mib: memory.free <= memory.total ? mib(memory.free) : null,
    used_mib: usedOf(gpu, gpu.numa_node),
  };
}

/** A GPU whose memory is a NUMA node keeps freed pages: its processes tell there whether it is free (INV-2). */
function usedOf({ memory, processes }: HoldersReading, numaNode: number | null): number | null {
  if (memory === null || memory.total === 0 || memory.used > memory.total) return null;
  return numaNode !== null && processesOf(processes) !== null ? null : mib(memory.used);
}

/** Pid 0: the driver speaks of another namespace, so that it can't be told who they are. */
function processesOf(holders: Holder[] | null): GpuProcess[] | null {
  if (holders === null || holders.some(({ pid }) => pid === 0)) return null;
  return holders.map(({ pid, used }) => ({ pid, used_mib: used === null ? null : mib(used) }));
}

function healthOf(gpu: GpuReading): GpuHealth {
  const { remap, fabric } = gpu;
  const linked =
    fabric !== null && FABRIC_STATES[fabric.state] === 'Completed' && /[^0]/.test(fabric.cluster);
  return {
    ecc: gpu.ecc_mode === null ? null : gpu.ecc_mode.current === 1,
    ecc_uncorrected: gpu.ecc_uncorrected,
    remapped_rows:
      remap === null ? null : { ...remap, pending: remap.pending !== 0, failure: remap.failure !== 0 },
    recovery_action: recoveryWord(gpu.recovery_action),
    fabric:
      fabric === null
        ? null
        : {
            state: FABRIC_STATES[fabric.state] ?? `state ${fabric.state}`,
            clique: linked ? `${fabric.cluster}.${fabric.clique}` : null,
          },
    numa_node: gpu.numa_node,
  };
}

/** What is worth a word of a GPU that may well be usable. */
function notesOf(gpu: GpuReading, read: ReadGpu): Condition[] {
  const notes: Condition[] = [];
  const note = (code: string, text: string) =>
    notes.push({ code, message: `GPU ${read.index} (${read.uuid}): ${text}` });
  const { mig } = gpu;
  if (mig !== null && mig.current !== mig.pending && read.virtual !== true)
    note(
      'gpu_mig_pending',
      `MIG mode change pending at next reset (${word(mig.current)} now, then ${word(mig.pending)})`,
    );
  if (Object.values(gpu.codes).includes(NVML.NO_PERMISSION))
    note(
      'gpu_no_permission',
      'some of its figures are kept from the agent (insufficient permissions): run it as root',
    );
  if (gpu.ecc_uncorrected !== null && gpu.ecc_uncorrected > 0)
    note(
      'gpu_ecc',
      `${gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded: reset it when it is free`,
    );
  if (gpu.fabric?.state === 3 && gpu.fabric.health === 3)
    note(
      'gpu_fabric_limited',
      'its NVLink fabric runs with limited capacity: see the log of nvidia-fabricmanager',
    );
  if (Object.values(gpu.codes).includes(NVML.CORRUPTED_INFOROM))
    note('gpu_inforom', 'its infoROM is corrupted: engines run, have it looked at');
  if (read.memory_kind === 'unified')
    note('gpu_unified_memory', "it has no memory of its own: the figures are the host's");
  return notes;
}

const word = (mode: number): string => (mode === 1 ? 'Enabled' : 'Disabled');

/** The last judgement, with the figures of a new look. `last`: of the inventory before it. */
export function snapshotOf(holders: HoldersReading[], last: readonly ReadGpu[]): GpuSnapshot {
  return {
    gpus: holders.map(look => {
      const before = last.find(gpu => gpu.uuid === look.uuid);
      const sick = look.handle === NVML.OK ? faultOf({ ...UNTOLD, ...look }, true) : handleFault(look.handle);
      const reason = sick?.reason ?? before?.reason ?? null;
      const unified = before?.memory_kind === 'unified';
      return {
        uuid: look.uuid ?? nameless(look.index),
        index: look.index,
        usable: reason === null && look.uuid !== null,
        reason:
          reason ??
          (look.uuid === null ? 'the driver gives no UUID by which it can be told from the others' : null),
        memory_used_mib: unified ? null : usedOf(look, before?.health?.numa_node ?? null),
        processes: processesOf(look.processes),
      };
    }),
  };
}

const UNTOLD = {
  name: null,
  pci_bus_id: null,
  compute_capability: null,
  mig: null,
  mig_instances: [],
  ecc_mode: null,
  ecc_uncorrected: null,
  remap: null,
  recovery_action: null,
  fabric: null,
  virtualization: null,
  numa_node: null,
  compute_mode: null,
  links: null,
  p2p: null,
} satisfies Omit<GpuReading, keyof HoldersReading>;
