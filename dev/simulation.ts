// The simulated node of a machine without GPUs: the file that LLMGW_SIMULATE names to the agent, in place of the
// driver's answers.
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { DataPaths } from './paths.js';

export const SIMULATE_ENV = 'LLMGW_SIMULATE';
const GPUS = 8;
const GPU_NAME = 'NVIDIA H100 80GB HBM3';
/** For the first lines that dev prints. */
export const SIM_HARDWARE = `${GPUS} × ${GPU_NAME}`;

/** Writes the file: eight H100 in one NVLink island, on one InfiniBand fabric. */
export function writeSimulation(paths: DataPaths): void {
  const gpuDir = path.join(paths.dir, 'simulated-gpus');
  mkdirSync(gpuDir, { recursive: true });
  const simulation = {
    gpus: { count: GPUS, name: GPU_NAME },
    islands: [Array.from({ length: GPUS }, (_, index) => index)],
    fabrics: [{ name: 'sim-ib', hcas: ['mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_3'] }],
    gpu_dir: gpuDir,
  };
  writeFileSync(paths.simulation, `${JSON.stringify(simulation, null, 2)}\n`);
}
