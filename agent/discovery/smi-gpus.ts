// Rows of nvidia-smi as GPUs: figures, what is wrong with each, and what is odd about the list as a whole.
import type { Condition } from '../../contracts/inventory.js';
import {
  cleanName,
  indexCell,
  isAbsent,
  isForbidden,
  isPci,
  numberCell,
  type Row,
  type Sickness,
  sickness,
  textCell,
} from './cells.js';
import { type HostMemory, isIntegrated } from './host-memory.js';
import { MEMORY_UNREAD } from './nvml-faults.js';
import type { GpuFacts } from './types.js';

/** What each look asks. Fields that a driver doesn't know are left out, see SmiSource. */
export const BASE_FIELDS = ['index', 'uuid', 'name', 'memory.total', 'memory.used', 'pci.bus_id'];

/** What an inventory asks besides. */
export const DETAIL_FIELDS = [
  'memory.free',
  'driver_version',
  'compute_cap',
  'compute_mode',
  'mig.mode.current',
  'mig.mode.pending',
  'fabric.state',
  'fabric.status',
  'temperature.gpu',
  'utilization.gpu',
  'ecc.errors.uncorrected.volatile.total',
  'remapped_rows.pending',
  'remapped_rows.failure',
  'retired_pages.pending',
  'gpu_recovery_action',
];

export type ReadGpu = GpuFacts & { used: number | null };

/** Profiles of virtual GPUs: `GRID A100D-40C`, `H100L-2-24C`, `NVIDIA A40-48Q`. A card's own name ends with `40GB`. */
const VIRTUAL = /-\d{1,3}[QCABV](ME|\d)?$/;

export function gpuOf(row: Row, host: HostMemory | null): ReadGpu {
  const index = indexCell(row.index)!;
  const name = cleanName(textCell(row.name) ?? '') || 'unknown';
  const memory = memoryOf(row, name, host);
  const unread = memory.memory_total_mib === null && !isIntegrated(name);
  const sick = sickness(Object.values(row)) ?? (unread ? MEMORY_UNREAD : null);
  const bus = textCell(row['pci.bus_id']);
  return {
    index,
    uuid: textCell(row.uuid) ?? nameless(index),
    name,
    pci_bus_id: bus !== null && isPci(bus) ? bus : null,
    ...memory,
    compute_capability: null,
    mig: null,
    ...verdict(sick),
    ...(VIRTUAL.test(name) ? { virtual: true } : {}),
  };
}

/** Stands for the UUID of a GPU that has none, as on some Jetsons. */
const nameless = (index: number): string => `unknown-${index}`;

type Memory = Pick<ReadGpu, 'memory_total_mib' | 'memory_free_mib' | 'memory_kind' | 'used'>;

function memoryOf(row: Row, name: string, host: HostMemory | null): Memory {
  const total = numberCell(row['memory.total']) || null; // no GPU has none: 0 is another way to say nothing
  const used = numberCell(row['memory.used']);
  const integrated = isIntegrated(name) && !isForbidden(row['memory.total']);
  const untold = total === null && isAbsent(row['memory.total']);
  // Some drivers tell the carve-out of an integrated part, a few hundred MiB of the whole memory that CUDA can have.
  const small = total !== null && host !== null && total < host.totalMib / 4;
  if (integrated && (untold || small) && host !== null) {
    // What the host uses isn't what engines hold: a proof of stop goes by processes there (INV-2).
    return {
      memory_total_mib: host.totalMib,
      memory_free_mib: host.availableMib,
      memory_kind: 'unified',
      used: null,
    };
  }
  const free = total !== null && used !== null && used <= total ? total - used : null;
  return { memory_total_mib: total, memory_free_mib: free, used };
}

const verdict = (sick: Sickness | null): Pick<GpuFacts, 'usable' | 'reason' | 'fatal'> => ({
  usable: sick === null,
  reason: sick?.reason ?? null,
  ...(sick?.fatal ? { fatal: true } : {}),
});

/** With what only inventories ask; `row` is undefined where the driver told nothing of this GPU. */
export function withDetails(gpu: ReadGpu, row: Row | undefined): ReadGpu {
  if (row === undefined) return gpu;
  const virtual = gpu.virtual === true;
  const mode = row['mig.mode.current'];
  // A virtual GPU that is made of a MIG slice says Enabled; its guest sees one whole GPU.
  const mig = virtual ? null : mode === 'Enabled' ? true : mode === 'Disabled' ? false : null;
  const sick: Sickness | null = gpu.usable
    ? faultOf(row, mig)
    : { reason: gpu.reason!, fatal: gpu.fatal === true };
  const free = gpu.memory_kind === 'unified' ? null : numberCell(row['memory.free']);
  return {
    ...gpu,
    memory_free_mib: free ?? gpu.memory_free_mib,
    compute_capability: textCell(row.compute_cap),
    mig,
    ...verdict(sick),
  };
}

function faultOf(row: Row, mig: boolean | null): Sickness | null {
  const sick = sickness(Object.values(row));
  if (sick?.fatal) return sick;
  // One figure that can't be read may be a broken sensor; neither of these two is the GPU.
  if (sickness([row['temperature.gpu']]) && sickness([row['utilization.gpu']])) return sick;
  const action = textCell(row.gpu_recovery_action);
  if (action !== null && action !== 'None')
    return {
      reason: `the driver asks for a recovery action (${action})`,
      fatal: /reset|reboot/i.test(action),
    };
  if (row['remapped_rows.failure'] === 'Yes')
    return { reason: 'a row of its memory could not be remapped: have it replaced', fatal: true };
  if (row['remapped_rows.pending'] === 'Yes' || row['retired_pages.pending'] === 'Yes')
    return {
      reason: 'bad memory is taken out of use at its next reset: reset it when its engines have ended',
      fatal: false,
    };
  if (mig === true) return { reason: 'MIG mode', fatal: false };
  if (row.compute_mode === 'Prohibited')
    return { reason: 'its compute mode is Prohibited (nvidia-smi -c DEFAULT)', fatal: false };
  return fabricFault(textCell(row['fabric.state']), textCell(row['fabric.status']));
}

/** CUDA answers 802 until the fabric manager has joined the GPU. No state at all: it has no fabric, which is well. */
function fabricFault(state: string | null, status: string | null): Sickness | null {
  const hint = "start nvidia-fabricmanager of the driver's version";
  if (state === null || /^Not Supported$/i.test(state)) return null;
  if (/^Completed$/i.test(state)) {
    if (status === null || /^Success$/i.test(status)) return null;
    return { reason: `its NVLink fabric has failed (${status}): ${hint}, then reset it`, fatal: true };
  }
  return { reason: `its NVLink fabric is not up (${state}): ${hint}`, fatal: false };
}

/** What is worth a word of a GPU that may well be usable. */
export function notesOf(gpu: ReadGpu, base: Row, row: Row = {}): Condition[] {
  const notes: Condition[] = [];
  const note = (code: string, text: string) =>
    notes.push({ code, message: `GPU ${gpu.index} (${gpu.uuid}): ${text}` });
  const [current, pending] = [row['mig.mode.current'], row['mig.mode.pending']];
  if (gpu.virtual !== true && /^(En|Dis)abled$/.test(pending ?? '') && pending !== current)
    note('gpu_mig_pending', `MIG mode change pending at next reset (${current} now, then ${pending})`);
  if (Object.values(base).some(isForbidden))
    note(
      'gpu_no_permission',
      'some of its figures are kept from the agent (insufficient permissions): run it as root',
    );
  const errors = numberCell(row['ecc.errors.uncorrected.volatile.total']);
  if (errors !== null && errors > 0)
    note(
      'gpu_ecc',
      `${errors} uncorrectable memory errors since the driver was loaded: reset it when it is free`,
    );
  return notes;
}

/**
 * What is odd about the list. Indices and UUIDs pick the GPU that an engine gets, so that one which isn't clear makes
 * its GPUs unusable rather than wrong. Sorted by index.
 */
export function untangled(read: ReadGpu[]): { gpus: ReadGpu[]; conditions: Condition[] } {
  const conditions: Condition[] = [];
  const unclear = (gpu: ReadGpu, reason: string): ReadGpu =>
    gpu.usable ? { ...gpu, usable: false, reason } : gpu;
  const byUuid = new Map<string, ReadGpu>();
  for (const gpu of read) {
    const first = byUuid.get(gpu.uuid);
    if (first === undefined) byUuid.set(gpu.uuid, gpu);
    else {
      conditions.push({
        code: 'gpu_list_odd',
        message: `nvidia-smi lists ${gpu.uuid} twice, with index ${first.index} and ${gpu.index}`,
      });
      if (first.index !== gpu.index)
        byUuid.set(
          gpu.uuid,
          unclear(first, `nvidia-smi gives its UUID to indices ${first.index} and ${gpu.index}`),
        );
    }
  }
  const all = [...byUuid.values()];
  const shared = new Set(all.map(gpu => gpu.index).filter((index, at, every) => every.indexOf(index) !== at));
  for (const index of shared)
    conditions.push({ code: 'gpu_list_odd', message: `nvidia-smi gives index ${index} to several GPUs` });
  const judged = all.map(gpu => {
    if (shared.has(gpu.index))
      return unclear(gpu, `nvidia-smi gives its index ${gpu.index} to another GPU as well`);
    return gpu.uuid === nameless(gpu.index) && all.length > 1
      ? unclear(gpu, 'the driver gives no UUID by which it can be told from the others')
      : gpu;
  });
  return { gpus: judged.sort((a, b) => a.index - b.index), conditions };
}

/** Indices below the highest that no row has: the driver numbers without gaps, so a GPU is missing. */
export function missingIndices(gpus: readonly { index: number }[]): number[] {
  const there = new Set(gpus.map(gpu => gpu.index));
  const highest = Math.max(-1, ...there);
  if (highest >= MOST_GPUS) return [];
  return Array.from({ length: highest + 1 }, (_, index) => index).filter(index => !there.has(index));
}

/** More than any machine has; bounds what is done for each index. */
export const MOST_GPUS = 64;
