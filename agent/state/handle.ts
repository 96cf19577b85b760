// The write-ahead handle of an engine: what a restarted agent needs to find, judge and stop it. One folder an engine,
// `<work_dir>/engines/<replica>/<fence>-<rank>/`, used for one start ever (INV-6): a fence that has run never runs
// again. The events that nobody has acknowledged yet lie in the handle too, so that "exited" and "told" are one write.
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import type { MemberOrder, Peer, SpawnOrder } from '../../contracts/activities.js';
import { EngineEvent, EnginePorts, ExitStatus, FailureDigest, StopProof } from '../../contracts/engine.js';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import { canonicalJson } from '../../contracts/spec.js';
import { errnoOf, makeDir, readText, writeAtomic } from './files.js';

/** A process, told apart from a later one with the same pid by its start time (field 22 of /proc/PID/stat). */
export const ProcId = z.object({ pid: z.number().int(), start: z.string() });
export type ProcId = z.infer<typeof ProcId>;

const ForeignProc = z.object({ pid: z.number().int(), used_mib: z.number().nullable() });

/** INV-2: what a GPU looked like before the engine; null: the source can't tell. */
export const GpuBaseline = z.object({
  uuid: z.string(),
  used_mib: z.number().nullable(),
  foreign: z.array(ForeignProc).nullable(),
});
export type GpuBaseline = z.infer<typeof GpuBaseline>;

export const Handle = z.object({
  version: z.literal(1),
  replica: z.string(),
  fence: z.number().int(),
  rank: z.number().int(),
  generation: z.number().int(),
  /**
   * prepared: GPUs and ports are held, nothing was started. spawning: the shim may be on its way. running: the
   * engine's pid is known. exited: it has ended, the GPUs are still held. stopped: proven, nothing is held.
   */
  state: z.enum(['prepared', 'spawning', 'running', 'exited', 'stopped']),
  boot_id: z.string(),
  order_hash: z.string(),
  /** null: a stop came for an engine that this node never had; the fence is burnt by this handle. */
  order: z.custom<MemberOrder>(v => typeof v === 'object' && v !== null).nullable(),
  /** The gang that it was started in, as its spawn named it: evidence only, nothing is decided by it later. */
  peers: z.custom<Peer[]>(v => Array.isArray(v)).optional(),
  gpus: z.array(z.object({ uuid: z.string(), index: z.number().int() })),
  ports: EnginePorts,
  mgmt_addr: z.string().nullable(),
  /** Public id of the secret its key is derived from; null: it runs without one. */
  key_id: z.string().nullable(),
  baseline: z.array(GpuBaseline),
  /**
   * `auth`: the bearer key is derived again when needed, it isn't kept here (INV-12). The times are the engine's own,
   * see Probe in agent/engines/types.ts. null: not started, or a member that serves nothing.
   */
  probe: z
    .object({
      health_url: z.string(),
      models_url: z.string(),
      auth: z.boolean(),
      timeout_ms: z.number().optional(),
      period_ms: z.number().optional(),
    })
    .nullable(),
  engine_type: z.enum(['vllm', 'sglang', 'command']).nullable(),
  /** As it was looked at before the start; absent in handles of older agents. */
  engine_version: z.string().nullable().optional(),
  launch_mode: z.string().nullable().optional(),
  /** systemd's scope that it runs in; absent or null: only a session of its own. `cgroup`: below the root of cgroup v2. */
  scope: z.object({ unit: z.string(), cgroup: z.string() }).nullable().optional(),
  shim: ProcId.nullable(),
  engine: ProcId.nullable(),
  /**
   * Of an engine that llmgw took over and didn't start: what its tree is known by, since nothing of it carries a mark.
   * It has no shim, so no exit status, and its output went elsewhere.
   */
  process: z
    .object({ leads_session: z.boolean(), members: z.array(ProcId) })
    .nullable()
    .default(null),
  /** Of its tree, still on a GPU's list when the stop was given up as leaked: what a later look goes by. */
  left: z.array(ProcId).optional(),
  exit: ExitStatus.nullable(),
  proof: StopProof.nullable(),
  marks: z.object({
    was_ready: z.boolean(),
    /** The host stopped it on purpose: not counted. */
    host_stop: z.boolean(),
    /** Fence of the order that stopped it. */
    requested_stop: z.number().int().nullable(),
    /** Its failure was told while its process still lived (/health 503). */
    failure_told: z.boolean(),
  }),
  /** Last event number given out, and the events that aren't acknowledged. */
  seq: z.number().int(),
  events: z.array(EngineEvent),
  /** What its last event said, kept when that is acknowledged: the answer to whoever still waits for this engine. */
  last_failure: FailureDigest.nullable().default(null),
  created_at: z.string(),
});
export type Handle = z.infer<typeof Handle>;

/**
 * Two orders with one fence must be the same order (INV-6). `peers` come with the spawn only, and no fabric is the same
 * whether it is left out or null: neither makes it another one.
 */
export function orderHash(order: SpawnOrder): string {
  const { peers: _, fabric, ...same } = order;
  const whole = fabric == null ? same : { ...same, fabric };
  return createHash('sha256').update(canonicalJson(whole)).digest('hex').slice(0, 32);
}

export const refOf = (h: EngineRef): EngineRef => ({ replica: h.replica, fence: h.fence, rank: h.rank });

/** The engine that a run folder is named after; null: it is none. */
export function refOfDir(dir: string): EngineRef | null {
  const m = /^(\d{1,16})-(\d{1,9})$/.exec(path.basename(dir));
  return m === null
    ? null
    : { replica: path.basename(path.dirname(dir)), fence: Number(m[1]), rank: Number(m[2]) };
}

/** Handles of one work_dir, in memory and on disk. */
export class HandleStore {
  private readonly handles = new Map<string, Handle>();
  /** Folders whose handle can't be read: kept, named, never started again; an order to stop one makes it anew. */
  unreadable: { dir: string; problem: string }[] = [];

  constructor(readonly workDir: string) {
    makeDir(path.join(workDir, 'engines'));
    for (const replica of list(path.join(workDir, 'engines'))) {
      for (const run of list(path.join(workDir, 'engines', replica))) {
        this.load(path.join(workDir, 'engines', replica, run));
      }
    }
  }

  private load(dir: string): void {
    // No handle: the crash was before the first write, so nothing was started from here.
    const text = readText(path.join(dir, 'handle.json'));
    if (text === null) {
      // A pid is written only after the handle was: somebody has taken the handle away, and an engine may run.
      if (existsSync(path.join(dir, 'pid'))) this.unreadable.push({ dir, problem: 'handle.json is gone' });
      return;
    }
    try {
      const handle = Handle.parse(JSON.parse(text));
      this.handles.set(engineKeyOf(handle), handle);
    } catch (e) {
      this.unreadable.push({ dir, problem: e instanceof Error ? e.message : String(e) });
    }
  }

  runDir(ref: EngineRef): string {
    return path.join(this.workDir, 'engines', ref.replica, `${ref.fence}-${ref.rank}`);
  }

  get(ref: EngineRef): Handle | undefined {
    return this.handles.get(engineKeyOf(ref));
  }

  all(): Handle[] {
    return [...this.handles.values()];
  }

  /** Oldest fence first. */
  ofReplica(replica: string): Handle[] {
    return this.all()
      .filter(h => h.replica === replica)
      .sort((a, b) => a.fence - b.fence || a.rank - b.rank);
  }

  /** On disk first, then in memory: what callers see is never ahead of what a restart would find. */
  save(handle: Handle, durable = false): Handle {
    const dir = this.runDir(handle);
    makeDir(dir);
    writeAtomic(path.join(dir, 'handle.json'), `${JSON.stringify(handle, null, 1)}\n`, durable);
    this.handles.set(engineKeyOf(handle), handle);
    this.unreadable = this.unreadable.filter(u => u.dir !== dir);
    return handle;
  }

  /** Marks set by another process (`--stop-engines`) since this one read the handle. */
  marksOnDisk(ref: EngineRef): Handle['marks'] | null {
    try {
      return Handle.parse(JSON.parse(readText(path.join(this.runDir(ref), 'handle.json')) ?? 'null')).marks;
    } catch {
      // A handle that can't be read now was readable when it was loaded: what is in memory holds.
      return null;
    }
  }

  remove(ref: EngineRef): void {
    rmSync(this.runDir(ref), { recursive: true, force: true });
    this.handles.delete(engineKeyOf(ref));
  }
}

function list(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
      .filter(e => e.isDirectory())
      .map(e => e.name);
  } catch (e) {
    if (errnoOf(e) === 'ENOENT') return [];
    throw e;
  }
}
