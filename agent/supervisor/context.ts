// What the parts of the supervisor share: stores, options, and what is known of an engine only in memory.
import type { EngineRef } from '../../contracts/ids.js';
import { engineKeyOf } from '../../contracts/ids.js';
import type { EngineRenderer, Stage } from '../engines/types.js';
import type { FenceStore } from '../state/fences.js';
import type { Handle, HandleStore } from '../state/handle.js';
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
  runtime(ref: EngineRef): Runtime;
  /** Ends every wait of a closing supervisor; engines aren't touched. */
  closed: AbortSignal;
}

export function runtimes(handles: HandleStore): (ref: EngineRef) => Runtime {
  const map = new Map<string, Runtime>();
  return ref => {
    const key = engineKeyOf(ref);
    let r = map.get(key);
    if (r === undefined) {
      r = {
        tree: new EngineTree(ref, handles.runDir(ref)),
        stage: null,
        secrets: null,
        bearer: undefined,
        stopping: false,
      };
      map.set(key, r);
    }
    return r;
  };
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

/** Secrets for redaction and probes; an adopted engine's are read again from where its start read them. */
export async function loadSecrets(ctx: Context, handle: Handle): Promise<Runtime> {
  const runtime = ctx.runtime(handle);
  if (runtime.bearer === undefined) {
    runtime.bearer =
      handle.probe?.auth === true ? ((await ctx.opts.secrets.engineKey(handle))?.key ?? null) : null;
  }
  if (runtime.secrets === null && handle.order !== null) {
    const values = await ctx.opts.secrets.envFromFiles(handle.order).catch(() => ({}));
    runtime.secrets = [...Object.values(values), ...(runtime.bearer === null ? [] : [runtime.bearer])];
  }
  return runtime;
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
