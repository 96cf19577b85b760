// What the parts of the supervisor share: stores, options, and what is known of an engine only in memory.
import type { EngineRef } from '../../contracts/ids.js';
import { engineKeyOf } from '../../contracts/ids.js';
import type { EngineRenderer, Stage } from '../engines/types.js';
import type { FenceStore } from '../state/fences.js';
import { type Handle, type HandleStore, refOf } from '../state/handle.js';
import type { PortLeases } from '../state/port-leases.js';
import { EngineTree } from './tree.js';
import type { SupervisorOptions } from './types.js';

/** Known of an engine only while this agent runs. */
export interface Runtime {
  tree: EngineTree;
  /** null until somebody watches it load. */
  stage: Stage | null;
  /** Values to redact; null: not read yet by this agent (an adopted engine). */
  secrets: string[] | null;
  /** Bearer key of its probes; undefined: not derived yet. */
  bearer: string | null | undefined;
  stopping: boolean;
}

export interface Context {
  opts: SupervisorOptions;
  handles: HandleStore;
  fences: FenceStore;
  ports: PortLeases;
  bootId: string;
  shim: string;
  runtimes: Runtimes;
  /** Ends every wait of a closing supervisor; engines aren't touched. */
  closed: AbortSignal;
}

/** What is known in memory of the engines that hold something here; made at the first question, see `forget`. */
export class Runtimes {
  private readonly map = new Map<string, Runtime>();

  constructor(private readonly handles: HandleStore) {}

  of(ref: EngineRef): Runtime {
    const key = engineKeyOf(ref);
    let r = this.map.get(key);
    if (r === undefined) {
      r = {
        tree: new EngineTree(ref, this.handles.runDir(ref)),
        stage: null,
        secrets: null,
        bearer: undefined,
        stopping: false,
      };
      this.map.set(key, r);
    }
    return r;
  }

  /** Once its stop is proven, or its folder has gone: generations come for as long as an agent runs. */
  forget(ref: EngineRef): void {
    this.map.delete(engineKeyOf(ref));
  }

  get size(): number {
    return this.map.size;
  }
}

/** Changes of a handle go through here: the newest one is read, changed, and on disk when this returns. */
export function update(ctx: Context, ref: EngineRef, change: Partial<Handle>, durable = false): Handle {
  const handle = ctx.handles.get(ref);
  if (handle === undefined) throw new Error(`no handle of ${engineKeyOf(ref)}`);
  return ctx.handles.save({ ...handle, ...change }, durable);
}

export function rendererOf(ctx: Context, handle: Handle): EngineRenderer | null {
  return handle.engine_type === null ? null : ctx.opts.engines.renderer(handle.engine_type);
}

/**
 * Secrets for redaction and probes; an adopted engine's are read again from where its start read them. Await it before
 * anything of a log is read. Never throws: what can't be read stays null, and is tried again by the next call.
 */
export async function loadSecrets(ctx: Context, handle: Handle): Promise<Runtime> {
  const runtime = ctx.runtimes.of(handle);
  if (handle.order === null) return runtime;
  try {
    if (runtime.bearer === undefined) {
      const auth = hasKey(handle);
      const key = auth ? await ctx.opts.secrets.engineKey(handle) : null;
      if (auth && key === null) throw new Error("the secret that the engine's key is derived from has gone");
      runtime.bearer = key?.key ?? null;
    }
    if (runtime.secrets === null) {
      const values = Object.values(await ctx.opts.secrets.envFromFiles(handle.order));
      runtime.secrets = runtime.bearer === null ? values : [...values, runtime.bearer];
    }
  } catch (error) {
    ctx.opts.log.warn({ ...refOf(handle), err: error }, 'secrets of an engine can not be read');
  }
  return runtime;
}

/**
 * The values to redact from what an engine printed; null: it has some that this agent doesn't know, so that nothing
 * of its log may leave the node (INV-10, INV-12). "Not read" must never pass for "there are none".
 */
export function knownSecrets(ctx: Context, handle: Handle): string[] | null {
  const { secrets } = ctx.runtimes.of(handle);
  if (secrets !== null) return secrets;
  // Which secrets it was given, only its order says.
  if (handle.order === null) return null;
  const named = Object.keys(handle.order.spec.env_from_files).length > 0;
  return named || hasKey(handle) ? null : [];
}

/** Whether the engine was given a bearer key; a member that serves nothing may have it in its environment all the same. */
const hasKey = ({ probe, key_id }: Handle): boolean => (probe === null ? key_id !== null : probe.auth);

/**
 * ms to the next full `period` of this process's clock: watches of one period wake it once together, and not each by
 * itself with cold caches.
 */
export function aligned(period: number): number {
  const left = period - (performance.now() % period);
  // A timer that came a moment early isn't to come again at once.
  return left < period / 10 ? left + period : left;
}

/** Resolves after `ms`, or at once when `signal` aborts. Never keeps the process alive by itself. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    if (signal?.aborted === true) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener('abort', done);
  });
}
