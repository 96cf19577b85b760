// What an engine's tree does to GPUs while it lives: how much memory its own have, and whether it is on another's.
import type { Handle } from '../state/handle.js';
import type { Context } from './context.js';
import type { GpuState } from './types.js';

/** MiB used on the granted GPUs, by whomever; null: some figure is missing. */
export async function gpuMemory(ctx: Context, handle: Handle): Promise<number | null> {
  if (handle.gpus.length === 0) return null;
  const gpus = await snapshot(ctx);
  const used = gpus.filter(g => handle.gpus.some(h => h.uuid === g.uuid)).map(g => g.memory_used_mib);
  return used.length === 0 || used.includes(null) ? null : used.reduce<number>((a, n) => a + n!, 0);
}

/** INV-13, once at ready: a process of the tree on a GPU that wasn't granted. */
export async function wrongGpu(ctx: Context, handle: Handle): Promise<string | null> {
  if (handle.gpus.length === 0) return null;
  const { tree } = ctx.runtimes.of(handle);
  tree.scan();
  for (const gpu of await snapshot(ctx)) {
    const own = gpu.processes?.find(p => tree.has(p.pid));
    const granted = handle.gpus.some(g => g.uuid === gpu.uuid);
    if (own !== undefined && !granted) {
      return `pid ${own.pid} of the engine is on GPU ${gpu.index} (${gpu.uuid}), which was not granted to it`;
    }
    if (own === undefined && granted && gpu.processes !== null) {
      ctx.opts.log.warn(
        { replica: handle.replica, gpu: gpu.uuid },
        'a granted GPU has no process of the engine',
      );
    }
  }
  return null;
}

const snapshot = (ctx: Context): Promise<GpuState[]> =>
  ctx.opts.gpus.snapshot().then(
    s => s.gpus,
    // A driver that doesn't answer tells nothing; readiness is judged without it.
    () => [],
  );
