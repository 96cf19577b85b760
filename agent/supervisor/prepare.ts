// `prepare`: everything that must be true before an engine may start, and everything that is held for it from then
// on. GPUs and ports are taken in one step under one lock, so that two orders can't both find a GPU free (INV-1).
import net from 'node:net';
import type { MemberOrder, Prepared } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import { engineKeyOf } from '../../contracts/ids.js';
import { staleFence } from '../state/fences.js';
import { errnoOf } from '../state/files.js';
import { type Handle, orderHash, refOf, refOfDir } from '../state/handle.js';
import type { Context } from './context.js';
import { takeBaseline } from './gpu-guard.js';
import { portsWithSockets } from './proc.js';

/** The handle of this very order, already prepared or further; null: not yet. Throws for an order that mustn't run. */
export function admit(ctx: Context, order: MemberOrder): Handle | null {
  const hash = orderHash(order);
  ctx.fences.admit(order, hash);
  const handle = ctx.handles.get(order);
  if (handle === undefined) return null;
  if (handle.state === 'stopped') {
    throw new LlmgwError(
      'STALE_FENCE',
      `replica ${order.replica}, fence ${order.fence}: its stop was proven on this node (${handle.proof?.proof}), a fence starts once`,
    );
  }
  if (handle.order_hash !== hash) throw staleFence(order, handle.fence);
  return handle;
}

export const preparedOf = (ctx: Context, h: Handle): Prepared => ({
  gpus: h.gpus.map(g => g.uuid),
  ports: h.ports,
  mgmt_addr: h.mgmt_addr,
  key_id: h.key_id,
  stop_ms: ctx.opts.stopTimeoutMs + ctx.opts.gpuReleaseTimeoutMs,
  engine_version: h.engine_version ?? null,
  launch_mode: h.launch_mode ?? null,
});

/** Looks that touch nothing. Throws the first that fails. */
export async function check(ctx: Context, order: MemberOrder) {
  const { engine } = await ctx.opts.engines.preflight(order);
  const key = await ctx.opts.secrets.engineKey(order);
  const network = await ctx.opts.network(order);
  return { engine, renderer: ctx.opts.engines.renderer(engine.type), keyId: key?.key_id ?? null, network };
}

/** Under the node's lock: GPUs, ports, handle. */
export async function hold(
  ctx: Context,
  order: MemberOrder,
  checked: Awaited<ReturnType<typeof check>>,
): Promise<Handle> {
  const uuids = grantedGpus(ctx, order);
  refuseHeld(ctx, order, uuids);
  if (uuids.length > 0) refuseLost(ctx);
  const gpus = uuids.length === 0 ? [] : (await ctx.opts.gpus.snapshot()).gpus;
  const ours = new Set(
    ctx.handles
      .all()
      // An engine that has ended may have left children: theirs is ours too, until the stop is proven.
      .filter(h => h.state !== 'stopped')
      .map(h => ctx.runtimes.of(h).tree),
  );
  const taken = takeBaseline(uuids, gpus, pid => [...ours].some(tree => tree.owns(pid)));
  const ports = await ctx.ports.take(
    engineKeyOf(order),
    checked.renderer.ports(order, checked.engine),
    freePorts(),
  );
  ctx.opts.fault?.('before_handle');
  return ctx.handles.save({
    version: 1,
    replica: order.replica,
    fence: order.fence,
    rank: order.rank,
    generation: order.generation,
    state: 'prepared',
    boot_id: ctx.bootId,
    order_hash: orderHash(order),
    order,
    gpus: taken.gpus,
    baseline: taken.baseline,
    ports,
    mgmt_addr: checked.network.announced,
    key_id: checked.keyId,
    probe: null,
    engine_type: checked.engine.type,
    engine_version: checked.engine.version,
    launch_mode: checked.engine.launch_mode,
    shim: null,
    engine: null,
    process: null,
    exit: null,
    proof: null,
    marks: { was_ready: false, host_stop: false, requested_stop: null, failure_told: false },
    seq: 0,
    events: [],
    last_failure: null,
    created_at: new Date().toISOString(),
  });
}

/** UUIDs of the order's slots. Throws GPU_GONE for a slot without a GPU. */
export function grantedGpus(ctx: Context, order: MemberOrder): string[] {
  const slots = ctx.opts.slots();
  return order.slots.map(slot => {
    const uuid = slots[slot];
    if (uuid === undefined) {
      throw new LlmgwError(
        'GPU_GONE',
        `slot ${slot} of this node has no GPU: it knows ${Object.keys(slots).length}`,
      );
    }
    return uuid;
  });
}

/** INV-1: one holder a GPU. Throws GPU_HELD. */
export function refuseHeld(ctx: Context, order: MemberOrder, uuids: string[]): void {
  for (const other of ctx.handles.all()) {
    if (other.state === 'stopped' || engineKeyOf(other) === engineKeyOf(order)) continue;
    const gpu = other.gpus.find(g => uuids.includes(g.uuid));
    if (gpu !== undefined) throw held(gpu.uuid, other);
  }
}

/**
 * INV-1: which GPUs the engine of a lost handle has, nobody knows, and one that has just begun to load is in no figure
 * of theirs: while a process of it lives, none is given out.
 */
export function refuseLost(ctx: Context): void {
  const lost = ctx.handles.all().filter(h => h.order === null && h.state !== 'stopped');
  const unread = ctx.handles.unreadable.flatMap(u => refOfDir(u.dir) ?? []);
  for (const ref of [...lost, ...unread]) {
    const dir = ctx.handles.runDir(ref);
    const [alive] = ctx.runtimes.of(ref).tree.scan();
    if (alive === undefined) continue;
    throw new LlmgwError(
      'GPU_HELD',
      `${dir}: the handle of this engine is lost and it runs (pid ${alive.pid}), so that any GPU of this node may be its own: stop replica ${ref.replica}, fence ${ref.fence}, or end the process`,
      { details: { holder: refOf(ref) } },
    );
  }
}

const held = (gpu: string, h: Handle): LlmgwError =>
  new LlmgwError(
    'GPU_HELD',
    `GPU ${gpu} is held by replica ${h.replica}, fence ${h.fence}, rank ${h.rank} (${h.state}${h.engine === null ? '' : `, pid ${h.engine.pid}`}), whose stop is not proven`,
    { details: { gpu, holder: { replica: h.replica, fence: h.fence, rank: h.rank } } },
  );

/** A newer generation may not start beside a live older one, whatever GPUs it was given. */
export const olderAlive = (order: MemberOrder, h: Handle): LlmgwError =>
  new LlmgwError(
    'GPU_HELD',
    `replica ${order.replica}: fence ${h.fence} still runs here (pid ${h.engine?.pid ?? 'unknown'}); fence ${order.fence} starts when its stop is proven`,
    { details: { holder: { replica: h.replica, fence: h.fence, rank: h.rank } } },
  );

/**
 * No socket has a port, TIME_WAIT included (an engine that binds without SO_REUSEADDR fails on one), and it can be
 * bound. Node always sets SO_REUSEADDR, so a stranger's socket that is bound but doesn't listen yet isn't seen: its
 * listener won't be of our tree, which is refused when it comes. The sockets are listed once, for hundreds of ports.
 */
export function freePorts(): (port: number) => Promise<boolean> {
  const used = portsWithSockets();
  return async port => {
    if (used.has(port)) return false;
    const all = await canBind(port, '::');
    return all === 'no-ipv6' ? (await canBind(port, '0.0.0.0')) === 'free' : all === 'free';
  };
}

function canBind(port: number, host: string): Promise<'free' | 'taken' | 'no-ipv6'> {
  return new Promise(resolve => {
    const server = net.createServer();
    server.on('error', e => {
      const code = errnoOf(e);
      resolve(code === 'EAFNOSUPPORT' || code === 'EADDRNOTAVAIL' ? 'no-ipv6' : 'taken');
    });
    server.listen({ port, host, exclusive: true }, () => server.close(() => resolve('free')));
  });
}
