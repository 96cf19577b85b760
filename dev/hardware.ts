// What this machine has: real GPUs with a real vLLM, or the simulation, and why.
import path from 'node:path';
import { execa } from 'execa';
import { isExecutable } from './temporal-binary.js';

export type Hardware =
  | { simulated: false; vllm: string; gpus: number }
  /** `why` is half a sentence: what is missing. */
  | { simulated: true; why: string };

/** A driver that hangs must not hang the start. */
const NVIDIA_SMI_MS = 5_000;

export async function findHardware(env: NodeJS.ProcessEnv): Promise<Hardware> {
  const smi = await execa('nvidia-smi', ['-L'], {
    reject: false,
    timeout: NVIDIA_SMI_MS,
    env,
    extendEnv: false,
  });
  if (smi.code === 'ENOENT')
    return { simulated: true, why: 'this machine has no GPU (nvidia-smi is not on PATH)' };
  if (smi.failed) {
    const how = smi.timedOut ? `did not answer in ${NVIDIA_SMI_MS / 1000} s` : `failed: ${smi.shortMessage}`;
    return { simulated: true, why: `this machine's GPUs can't be used (nvidia-smi ${how})` };
  }
  const gpus = (smi.stdout.match(/^GPU \d+:/gm) ?? []).length;
  if (gpus === 0) return { simulated: true, why: 'this machine has no GPU (nvidia-smi lists none)' };
  const vllm = (env.PATH ?? '')
    .split(path.delimiter)
    .map(dir => path.resolve(dir, 'vllm'))
    .find(isExecutable);
  if (vllm === undefined) return { simulated: true, why: 'vllm is not on PATH' };
  return { simulated: false, vllm, gpus };
}
