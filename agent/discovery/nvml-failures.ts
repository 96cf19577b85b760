// Why NVML can't be asked, as a condition of the node with what to do about it.
import type { Condition } from '../../contracts/inventory.js';
import { codeName, NVML } from '../../native/codes.js';
import type { OpenFailure } from '../../native/protocol.js';
import { NvmlCrashed, NvmlSilent, NvmlUnavailable } from './nvml-terms.js';

/** Said of GPUs while the driver is silent: without figures, so that it doesn't change at each look (INV-11). */
export const SILENT = 'the NVIDIA driver does not answer';

/** @param library discovery.nvml_library. null: nothing that is anybody's fault, there is just no NVML here. */
export function conditionOf(error: unknown, library: string): Condition | null {
  if (error instanceof NvmlSilent) {
    const seconds = Math.round((Date.now() - error.since) / 1_000);
    return {
      code: 'gpu_driver_unresponsive',
      message: `${SILENT}, for ${seconds} s now: its GPUs are not offered until it does, engines on them go on; see the kernel's log, a driver that stays stuck needs a reboot`,
    };
  }
  if (error instanceof NvmlCrashed)
    return {
      code: 'gpu_nvml_failed',
      message: `${error.message}: nvidia-smi is asked instead, and NVML again later; install driver and library of one version`,
    };
  if (error instanceof NvmlUnavailable) return openCondition(error.failure, library);
  throw error;
}

function openCondition({ step, code, message }: OpenFailure, library: string): Condition | null {
  if (code === null)
    return library === ''
      ? null
      : {
          code: 'gpu_nvml_failed',
          message: `discovery.nvml_library ${library} can't be loaded (${message}): name the driver's own libnvidia-ml.so.1, or leave it out`,
        };
  switch (code) {
    case NVML.DRIVER_NOT_LOADED:
      return {
        code: 'gpu_driver_absent',
        message:
          'the NVIDIA driver is not loaded (modprobe nvidia; after a kernel update install the driver again)',
      };
    case NVML.LIB_RM_VERSION_MISMATCH:
      return {
        code: 'gpu_driver_mismatch',
        message:
          'the NVIDIA driver in the kernel and its library differ: reboot the node or reload the kernel module; running engines go on, none can start',
      };
    case NVML.NO_PERMISSION:
      return {
        code: 'gpu_no_permission',
        message: 'the agent may not ask the NVIDIA driver (insufficient permissions): run it as root',
      };
    default:
      return {
        code: 'gpu_driver_failed',
        message: `the NVIDIA driver can't be opened (${step}: ${codeName(code)}): in a container the GPU devices were taken away (a daemon-reload does it; start the container anew), else see the kernel's log`,
      };
  }
}
