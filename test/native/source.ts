// A node's GPUs as the agent reads them, over the stand-in.
import { HardwareSource } from '../../agent/discovery/hardware.js';
import { KnownGpus } from '../../agent/discovery/known-gpus.js';
import { NvmlHelper, type NvmlHelperOptions } from '../../agent/discovery/nvml-helper.js';
import type { GpuSource } from '../../agent/discovery/types.js';
import { silentLogger } from '../../lib/log.js';
import { library, script, TIMES } from './standin.js';

export const NO_SMI: GpuSource = {
  inventory: async () => ({ source: 'none', driver_version: null, gpus: [], islands: [], conditions: [] }),
  snapshot: async () => ({ gpus: [] }),
};

/** nvidia-smi must not be asked. */
export const FORBIDDEN_SMI: GpuSource = {
  inventory: async () => {
    throw new Error('nvidia-smi was asked');
  },
  snapshot: async () => {
    throw new Error('nvidia-smi was asked');
  },
};

export function helper(opts: Partial<NvmlHelperOptions> = {}): NvmlHelper {
  return new NvmlHelper({ library, script, ...opts, times: { ...TIMES, ...opts.times } });
}

export interface SourceOptions {
  nvml: NvmlHelper | null;
  smi?: GpuSource;
  workDir?: string | null;
  bootId?: string;
}

export function hardware({ nvml, smi = FORBIDDEN_SMI, workDir = null, bootId = 'boot-1' }: SourceOptions) {
  const log = silentLogger();
  return new HardwareSource({ nvml, smi, known: new KnownGpus({ bootId, workDir, log }), log });
}
