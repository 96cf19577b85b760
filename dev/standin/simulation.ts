// What `llmgw dev` puts on disk for a machine without GPUs: the simulated node that its agent reads (LLMGW_SIMULATE)
// and launchers for the stand-in engines.
import { chmodSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface SimulationFiles {
  /** For LLMGW_SIMULATE. */
  file: string;
  /** For LLMGW_STANDIN_GPU_DIR, in the agent's environment: it hands it to its engines. */
  gpuDir: string;
  /** For `engines.vllm.bin`, `engines.sglang.python` and `engines.vllm.ray_bin`. */
  bin: string;
  python: string;
  ray: string;
}

/** Writes them below `dir`: 8 × H100 in one NVLink island, on the fabric `sim-ib`. */
export function writeSimulation(dir: string): SimulationFiles {
  const root = resolve(dir);
  const gpuDir = join(root, 'gpus');
  mkdirSync(gpuDir, { recursive: true });
  const file = join(root, 'simulation.json');
  writeFileSync(file, `${JSON.stringify(simulationFile(gpuDir), null, 2)}\n`);
  return {
    file,
    gpuDir,
    bin: writeLauncher(root, 'vllm', 'llmgw-standin-vllm.mjs'),
    python: writeLauncher(root, 'python3', 'llmgw-standin-python.mjs'),
    ray: writeLauncher(root, 'ray', 'llmgw-standin-ray.mjs'),
  };
}

/** The content of that file. */
export function simulationFile(gpuDir: string) {
  return {
    gpus: { count: 8, name: 'NVIDIA H100 80GB HBM3', memory_total_mib: 81_559, compute_capability: '9.0' },
    islands: [[0, 1, 2, 3, 4, 5, 6, 7]],
    fabrics: [{ name: 'sim-ib', hcas: ['mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_3'] }],
    gpu_dir: gpuDir,
  };
}

/** Engines get a PATH of their own, on which this machine's node need not be. */
function writeLauncher(dir: string, name: string, program: string): string {
  const launcher = join(dir, name);
  const quoted = [process.execPath, join(packageRoot(), 'bin', program)].map(
    path => `'${path.replaceAll("'", "'\\''")}'`,
  );
  writeFileSync(launcher, `#!/bin/sh\nexec ${quoted.join(' ')} "$@"\n`);
  chmodSync(launcher, 0o755);
  return launcher;
}

/** The same from a checkout and from dist/. */
function packageRoot(): string {
  let dir = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(dir, 'package.json')) && dir !== dirname(dir)) dir = dirname(dir);
  return dir;
}
