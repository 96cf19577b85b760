// What this machine has: real GPUs with a real vLLM, or the simulation, and why.
import { execFile } from 'node:child_process';
import path from 'node:path';
import { isExecutable } from './temporal-binary.js';

export type Hardware =
  | { simulated: false; vllm: string; gpus: number }
  /** `why` is half a sentence: what is missing. */
  | { simulated: true; why: string };

/** A driver that hangs must not hang the start. */
const NVIDIA_SMI_MS = 5_000;

/** What `nvidia-smi -L` prints, or half a sentence why it doesn't. */
function nvidiaSmi(env: NodeJS.ProcessEnv): Promise<{ stdout: string } | { why: string }> {
  return new Promise(resolve => {
    const options = { timeout: NVIDIA_SMI_MS, killSignal: 'SIGKILL', env } as const;
    execFile('nvidia-smi', ['-L'], options, (error, stdout, stderr) => {
      if (error === null) return resolve({ stdout });
      if (error.code === 'ENOENT')
        return resolve({ why: 'this machine has no GPU (nvidia-smi is not on PATH)' });
      const said = (stderr || stdout).trim().split('\n')[0] || `exit ${error.code ?? error.signal}`;
      const how = error.killed === true ? `did not answer in ${NVIDIA_SMI_MS / 1000} s` : `failed: ${said}`;
      resolve({ why: `this machine's GPUs can't be used (nvidia-smi ${how})` });
    });
  });
}

export async function findHardware(env: NodeJS.ProcessEnv): Promise<Hardware> {
  const smi = await nvidiaSmi(env);
  if ('why' in smi) return { simulated: true, why: smi.why };
  const gpus = (smi.stdout.match(/^GPU \d+:/gm) ?? []).length;
  if (gpus === 0) return { simulated: true, why: 'this machine has no GPU (nvidia-smi lists none)' };
  const vllm = (env.PATH ?? '')
    .split(path.delimiter)
    .map(dir => path.resolve(dir, 'vllm'))
    .find(isExecutable);
  if (vllm === undefined) return { simulated: true, why: 'vllm is not on PATH' };
  return { simulated: false, vllm, gpus };
}
