// GPUs before and after an engine: what is on them at prepare (the baseline), and when they are free again (INV-2).
import type { StopProof } from '../../contracts/engine.js';
import { LlmgwError } from '../../contracts/errors.js';
import type { GpuBaseline } from '../state/handle.js';
import { describePid } from './proc.js';
import type { GpuProcess, GpuState } from './types.js';

/** More than this used by others is `foreign` (INV-13); the same slack holds for what an engine leaves (INV-2). */
export const SLACK_MIB = 512;

/** Baseline of the granted GPUs. Throws GPU_GONE for one that is missing or sick, GPU_LEAKED for one in use. */
export function takeBaseline(
  uuids: string[],
  snapshot: GpuState[],
  isOurs: (pid: number) => boolean,
): { baseline: GpuBaseline[]; gpus: { uuid: string; index: number }[] } {
  const states = uuids.map(uuid => {
    const gpu = snapshot.find(g => g.uuid === uuid);
    if (gpu === undefined) throw new LlmgwError('GPU_GONE', `GPU ${uuid} is no longer on this node`);
    if (!gpu.usable)
      throw new LlmgwError('GPU_GONE', `GPU ${uuid} is not usable: ${gpu.reason ?? 'no reason given'}`);
    refuseForeign(gpu, isOurs);
    return gpu;
  });
  return {
    gpus: states.map(g => ({ uuid: g.uuid, index: g.index })),
    baseline: states.map(g => ({
      uuid: g.uuid,
      used_mib: g.memory_used_mib,
      foreign: g.processes?.filter(p => !isOurs(p.pid)) ?? null,
    })),
  };
}

function refuseForeign(gpu: GpuState, isOurs: (pid: number) => boolean): void {
  const foreign = gpu.processes?.filter(p => !isOurs(p.pid)) ?? null;
  const figures = foreign?.every(p => p.used_mib !== null) ?? false;
  // Without a figure for each process the GPU's own is all there is: it counts against whoever is on the list.
  const used = figures
    ? sum(foreign!.map(p => p.used_mib!))
    : foreign !== null && foreign.length === 0
      ? 0
      : (gpu.memory_used_mib ?? 0);
  if (used <= SLACK_MIB) return;
  throw new LlmgwError(
    'GPU_LEAKED',
    `GPU ${gpu.uuid} has ${used} MiB in use by ${who(foreign ?? [])}: more than ${SLACK_MIB} MiB of others keeps an engine off it`,
    { details: { gpu: gpu.uuid, pids: (foreign ?? []).map(p => p.pid), used_mib: used } },
  );
}

const who = (procs: GpuProcess[]): string =>
  procs.length === 0
    ? 'processes that the driver does not name'
    : procs
        .slice(0, 4)
        .map(p => `pid ${p.pid} (${describePid(p.pid)})`)
        .join(', ');

const sum = (values: number[]): number => values.reduce((a, b) => a + b, 0);

export type ProofKind = Extract<StopProof['proof'], 'strong' | 'memory' | 'processes' | 'weak'>;

export type GpuVerdict =
  | { free: true; kind: ProofKind }
  | { free: false; pids: number[]; used_mib: number | null };

/**
 * Whether a GPU is back at its baseline, given that no process of the tree lives. `inTree`: pids that were the
 * engine's. `kind` says what it rests on: both figures, one of them, or neither (`weak`: the caller waits 10 s). A
 * source that had figures and has none now leaves it in doubt, so not free.
 */
export function judgeGpu(
  base: GpuBaseline,
  now: GpuState | undefined,
  inTree: (pid: number) => boolean,
): GpuVerdict {
  const procs = now?.processes ?? null;
  const used = now?.memory_used_mib ?? null;
  const known = base.used_mib !== null || base.foreign !== null;
  // It could tell before, so that it will again: a driver that is silent for a moment proves nothing (INV-2).
  if (known && procs === null && used === null) return { free: false, pids: [], used_mib: null };
  const own = procs?.filter(p => inTree(p.pid)).map(p => p.pid) ?? [];
  if (own.length > 0) return { free: false, pids: own, used_mib: used };
  const memory = used !== null && base.used_mib !== null;
  if (memory) {
    const limit = base.used_mib! + SLACK_MIB + foreignGrowth(base, procs);
    if (used > limit) return { free: false, pids: (procs ?? []).map(p => p.pid), used_mib: used };
  }
  const kind =
    memory && procs !== null ? 'strong' : memory ? 'memory' : procs !== null ? 'processes' : 'weak';
  return { free: true, kind };
}

/** What others have taken since the baseline: theirs, not the engine's. */
function foreignGrowth(base: GpuBaseline, procs: GpuProcess[] | null): number {
  if (procs === null) return 0;
  return sum(
    procs.map(p => {
      const before = base.foreign?.find(f => f.pid === p.pid)?.used_mib ?? 0;
      return Math.max(0, (p.used_mib ?? 0) - before);
    }),
  );
}

/**
 * As `judgeGpu`, for an engine of which nothing is known but its processes, so that any GPU of the node may have been
 * its own: free unless a process of the tree is on the list. No list: `weak`.
 */
export function judgeUnknown(now: GpuState, inTree: (pid: number) => boolean): GpuVerdict {
  const own = now.processes?.filter(p => inTree(p.pid)).map(p => p.pid) ?? [];
  if (own.length > 0) return { free: false, pids: own, used_mib: now.memory_used_mib };
  return { free: true, kind: now.processes === null ? 'weak' : 'processes' };
}

const STRENGTH: ProofKind[] = ['weak', 'processes', 'memory', 'strong'];

/** A proof over several GPUs is as good as its weakest. */
export const weakest = (kinds: ProofKind[]): ProofKind => STRENGTH.find(k => kinds.includes(k)) ?? 'strong';
