// What is wrong with a GPU by what NVML tells of it: one sentence with the next step, or null. A figure that isn't told
// is no fault; a code that says the device is sick is one, whatever was asked.
import { NVML } from '../../native/codes.js';
import type { GpuReading } from '../../native/protocol.js';

export interface GpuFault {
  reason: string;
  /** No engine on it can go on (Gpu.fatal). */
  fatal: boolean;
}

const fault = (reason: string, fatal = false): GpuFault => ({ reason, fatal });

export const LOST = fault('the driver has lost it (reboot the node)', true);

/** INV-2: whether an engine has let go of it could not be seen. A part that shares the host's memory goes by processes. */
export const MEMORY_UNREAD = fault(
  "its memory can't be read, so that nothing could prove that an engine has released it (run the agent as root, see nvidia-smi -q)",
);

/** Said of the device, whichever call it answers. */
const SICK = new Map<number, GpuFault>([
  [NVML.GPU_IS_LOST, LOST],
  [NVML.RESET_REQUIRED, fault('it requires a reset', true)],
  [NVML.INSUFFICIENT_POWER, fault('its external power cables are not attached', true)],
]);

/** Said where a handle or one of the figures that every GPU has was asked for. */
const SICK_ESSENTIAL = new Map<number, GpuFault>([
  ...SICK,
  [NVML.UNKNOWN, fault('the driver reports an unknown error')],
  [
    NVML.IRQ_ISSUE,
    fault("the kernel has trouble with its interrupts: see the kernel's log, reboot the node"),
  ],
  [NVML.TIMEOUT, fault('the driver got no answer from it')],
  [
    NVML.NO_PERMISSION,
    fault(
      'the agent may not open it (insufficient permissions): run it as root, and check the device files and cgroup of the GPU',
    ),
  ],
]);

/** Without these nothing can be placed on a GPU. */
const ESSENTIAL = ['uuid', 'memory', 'name', 'pci_bus_id'];

/** Why the driver gives no handle for a GPU that it counts. */
export const handleFault = (code: number): GpuFault =>
  SICK_ESSENTIAL.get(code) ?? fault(`the driver does not open it (nvmlReturn ${code}): see the kernel's log`);

const RECOVERY: Record<number, { word: string; todo: string; fatal: boolean }> = {
  1: { word: 'reset', todo: 'reset it: nvidia-smi --gpu-reset', fatal: true },
  2: { word: 'reboot', todo: 'reboot the node', fatal: true },
  3: { word: 'drain P2P', todo: 'end the engines that use it with others', fatal: false },
  4: { word: 'drain and reset', todo: 'reset it when its engines have ended', fatal: true },
  5: {
    word: 'recover the IMEX domain',
    todo: 'start nvidia-imex anew on all nodes of its domain',
    fatal: false,
  },
};

/** null: none, or not told. */
export const recoveryWord = (action: number | null): string | null =>
  action === null ? null : action === 0 ? 'none' : (RECOVERY[action]?.word ?? `action ${action}`);

export const FABRIC_STATES = ['Not Supported', 'Not Started', 'In Progress', 'Completed'];

/** @param ownLinks its NVLinks lead to other GPUs only: there is no switch whose fabric it could wait for. */
export function faultOf(gpu: GpuReading, ownLinks: boolean): GpuFault | null {
  return (
    sickness(gpu.codes) ??
    recoveryFault(gpu.recovery_action) ??
    memoryFault(gpu.remap) ??
    migFault(gpu) ??
    (gpu.compute_mode === 2 ? fault('its compute mode is Prohibited (nvidia-smi -c DEFAULT)') : null) ??
    (ownLinks ? null : fabricFault(gpu.fabric))
  );
}

function sickness(codes: Record<string, number>): GpuFault | null {
  for (const code of Object.values(codes)) {
    const sick = SICK.get(code);
    if (sick !== undefined) return sick;
  }
  for (const figure of ESSENTIAL) {
    const code = codes[figure];
    // Figures may be kept from an agent that isn't root while engines have the GPU: told as a condition.
    const sick = code === undefined || code === NVML.NO_PERMISSION ? undefined : SICK_ESSENTIAL.get(code);
    if (sick !== undefined) return sick;
  }
  return null;
}

function recoveryFault(action: number | null): GpuFault | null {
  if (action === null || action === 0) return null;
  const known = RECOVERY[action];
  if (known === undefined) return fault(`the driver asks for a recovery action (number ${action})`);
  return fault(`the driver asks for a recovery action (${known.word}): ${known.todo}`, known.fatal);
}

function memoryFault(remap: GpuReading['remap']): GpuFault | null {
  if (remap === null) return null;
  if (remap.failure !== 0) return fault('a row of its memory could not be remapped: have it replaced', true);
  if (remap.pending !== 0)
    return fault('bad memory is taken out of use at its next reset: reset it when its engines have ended');
  return null;
}

/** A virtual GPU that is made of a MIG slice says it is on; its guest sees one whole GPU. */
const migFault = (gpu: GpuReading): GpuFault | null =>
  gpu.mig?.current === 1 && gpu.virtualization !== 2 ? fault('MIG mode') : null;

/** CUDA answers 802 until the fabric manager has joined the GPU. */
function fabricFault(fabric: GpuReading['fabric']): GpuFault | null {
  if (fabric === null || fabric.state === 0) return null;
  const hint = "start nvidia-fabricmanager of the driver's version";
  const state = FABRIC_STATES[fabric.state];
  if (state !== 'Completed')
    return fault(`its NVLink fabric is not up (${state ?? `state ${fabric.state}`}): ${hint}`);
  if (fabric.status !== NVML.OK)
    return fault(`its NVLink fabric has failed (nvmlReturn ${fabric.status}): ${hint}, then reset it`, true);
  if (fabric.health === 2)
    return fault('its NVLink fabric is unhealthy: see the log of nvidia-fabricmanager, then reset it');
  return null;
}
