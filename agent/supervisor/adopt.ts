// `adopt`: an engine that lives goes on under another order, without a restart (INV-5). Either one of this very fence,
// whose workflow was lost and has come back, or a process that llmgw didn't start. What makes it so is one write of
// the handle: before it nothing has happened, after it the order may come again and finds it done.
import { isIPv4 } from 'node:net';
import type { MemberOrder } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import { canonicalJson, specHash } from '../../contracts/spec.js';
import type { ResolvedEngine } from '../engines/types.js';
import { staleFence } from '../state/fences.js';
import { type GpuBaseline, type Handle, orderHash } from '../state/handle.js';
import { type Context, update } from './context.js';
import { check, grantedGpus, refuseHeld, refuseLost } from './prepare.js';
import { httpGet, modelIds } from './probe.js';
import { describePid, isAlive, plainAddress } from './proc.js';
import { recoverStart, running } from './start.js';
import {
  addressesOf,
  engineOf,
  gpusOf,
  type Named,
  refused,
  refuseUntouchable,
  type Stranger,
  treeOf,
} from './stranger.js';
import type { GpuState } from './types.js';

const nameOf = (o: MemberOrder): string => `replica ${o.replica}, fence ${o.fence}, rank ${o.rank}`;

/**
 * The engine of this very fence goes on under `order`, that of a later run of its replica. Whoever calls holds the
 * replica's queue. Throws STALE_FENCE, ENGINE_UNKNOWN, FENCE_CONFLICT.
 */
export async function claim(ctx: Context, order: MemberOrder): Promise<Handle> {
  const highest = ctx.fences.highest(order.replica);
  if (highest !== null && order.fence < highest) throw staleFence(order, highest);
  const known = ctx.handles.get(order);
  // Its start broke off in an earlier attempt: what became of it is found out first.
  const found = known?.state === 'spawning' ? await recoverStart(ctx, known) : known;
  const gone = whyGone(found);
  if (gone !== null) throw new LlmgwError('ENGINE_UNKNOWN', `${nameOf(order)} ${gone}`);
  const engine = found!;
  const differs = difference(engine, order, grantedGpus(ctx, order));
  if (differs !== null) throw new LlmgwError('FENCE_CONFLICT', `${nameOf(order)}: ${differs}`);
  const hash = orderHash(order);
  const bound =
    engine.order_hash === hash
      ? engine
      : update(ctx, engine, { order, order_hash: hash, generation: order.generation });
  ctx.opts.fault?.('after_claim_handle');
  ctx.fences.rebind(order, hash);
  return bound;
}

/** null: it runs, and nobody has ended it or told that it is dead. */
function whyGone(h: Handle | null | undefined): string | null {
  if (h === undefined) return 'was never on this node';
  if (h === null || h.state === 'prepared') return 'was not started on this node';
  if (h.marks.requested_stop !== null || h.marks.host_stop) return 'is being stopped, or was';
  if (h.state !== 'running' || !isAlive(h.engine)) return 'has ended';
  if (h.marks.failure_told) return 'has failed and waits for its stop';
  return null;
}

/** By the GPUs themselves: a numbering that began anew may call them by other slots. */
function difference(engine: Handle, order: MemberOrder, gpus: string[]): string | null {
  const own = engine.order;
  if (own === null) return 'the order that this engine was started with has been lost';
  if (canonicalJson(own.spec) !== canonicalJson(order.spec)) {
    return `its engine was started with the spec ${specHash(own.spec)}, this order has ${specHash(order.spec)}`;
  }
  const has = engine.gpus.map(g => g.uuid).toSorted();
  if (canonicalJson(has) !== canonicalJson(gpus.toSorted()) || own.nodes !== order.nodes) {
    return `its engine has the GPUs ${has.join(', ')}, this order names ${gpus.join(', ')}`;
  }
  return null;
}

/** What a start would be told of GPUs that it can't have is a refusal here: these GPUs, or none. */
export function asRefusal(e: unknown): never {
  const gpus = e instanceof LlmgwError && (e.code === 'GPU_HELD' || e.code === 'GPU_GONE');
  throw gpus ? refused(e.message) : e;
}

/** The answer for a process that this very order has adopted before. Throws ADOPT_REFUSED when it isn't that engine. */
export function adoptedBefore(h: Handle, order: MemberOrder, { pid }: Named): Handle {
  if (h.engine?.pid !== pid) {
    throw refused(`${nameOf(order)} has another engine here already: pid ${h.engine?.pid ?? 'unknown'}`);
  }
  const gone = whyGone(h);
  if (gone !== null) throw refused(`pid ${pid}, adopted as ${nameOf(order)}, ${gone}`);
  return h;
}

export interface Examined extends Stranger {
  named: Named;
  probe: { health_url: string; models_url: string };
  announced: string | null;
  engine: ResolvedEngine;
}

/** Looks that touch nothing: whether the process is such an engine as the spec says, and routers can reach it. */
export async function examine(ctx: Context, order: MemberOrder, named: Named): Promise<Examined> {
  if (order.nodes > 1)
    throw refused('a multi-node replica is started as a whole: one process can not be adopted as it');
  const stranger = treeOf(named.pid);
  refuseEngine(ctx, stranger);
  refuseUntouchable(named);
  const addresses = addressesOf(stranger, named);
  const network = await ctx.opts.network(order);
  const host = hostOf(addresses, network, named);
  const base = `http://${host.includes(':') ? `[${host}]` : host}:${named.port}`;
  const probe = { health_url: `${base}/health`, models_url: `${base}/v1/models` };
  await refuseModels(ctx, order, probe);
  const { engine } = await check(ctx, order).catch((e: unknown) => {
    // Its next generation is started with this spec: what could never be started isn't taken.
    throw e instanceof LlmgwError ? refused(`this node could not start the spec anew: ${e.message}`) : e;
  });
  return { ...stranger, named, probe, announced: network.announced, engine };
}

function refuseEngine(ctx: Context, stranger: Stranger): void {
  const engine = engineOf(ctx, stranger);
  if (engine === null) return;
  throw refused(
    `pid ${stranger.root.pid} (${describePid(stranger.root.pid)}) is of an engine that llmgw started: replica ${engine.replica}, fence ${engine.fence}; start that replica again to claim it, or stop it`,
  );
}

/** Where this agent probes it. Throws when routers, who are told `announced`, would not reach it. */
function hostOf(
  addresses: string[],
  network: { mgmtAddr: string; announced: string | null },
  { port }: Named,
): string {
  const { announced, mgmtAddr } = network;
  const covers = (a: string, host: string) =>
    a === '::' || (a === '0.0.0.0' && isIPv4(host)) || a === plainAddress(host);
  if (announced !== null && !addresses.some(a => covers(a, announced))) {
    throw refused(
      `port ${port} is listened on at ${addresses.join(' and ')} only, and routers reach this node at ${announced}: start the engine with --host ${announced}`,
    );
  }
  return addresses.some(a => covers(a, mgmtAddr)) ? mgmtAddr : addresses[0]!;
}

async function refuseModels(ctx: Context, { spec }: MemberOrder, probe: Examined['probe']): Promise<void> {
  const health = await httpGet(probe.health_url, null, ctx.closed);
  if (health.status !== 200) throw refused(`${probe.health_url} ${answerText(health.status)}, not 200`);
  const models = await httpGet(probe.models_url, null, ctx.closed);
  if (models.status === 401 || models.status === 403) {
    throw refused(
      `${probe.models_url} asks for a key (${models.status}): start the engine again without --api-key and VLLM_API_KEY, since routers have no key of an engine that llmgw did not start`,
    );
  }
  const ids = models.status === 200 ? modelIds(models.body) : null;
  if (ids === null) throw refused(`${probe.models_url} ${answerText(models.status)}, and no list of models`);
  const missing = [spec.served_model_name, ...spec.aliases].filter(name => !ids.includes(name));
  if (missing.length > 0) {
    throw refused(
      `the engine serves ${ids.join(', ') || 'no model'}, and the spec says ${missing.join(', ')}`,
    );
  }
}

const answerText = (status: number | null): string =>
  status === null ? 'does not answer' : `answers ${status}`;

/** Under the node's lock: the GPUs are held, and the process is an engine of ours from the write on. */
export async function take(ctx: Context, order: MemberOrder, found: Examined): Promise<Handle> {
  // Another replica may have taken it since it was looked at, and children come and go.
  const stranger = treeOf(found.root.pid);
  refuseEngine(ctx, stranger);
  if (stranger.root.start !== found.root.start) throw refused(`pid ${found.root.pid} has ended meanwhile`);
  const uuids = grantedGpus(ctx, order);
  refuseHeld(ctx, order, uuids);
  const own = await gpusOf(ctx, stranger);
  if (own === null) refuseLost(ctx);
  else refuseOtherGpus(order, uuids, own);
  const { gpus } = await ctx.opts.gpus.snapshot();
  const granted = uuids.map(uuid => {
    const gpu = gpus.find(g => g.uuid === uuid);
    if (gpu === undefined) throw new LlmgwError('GPU_GONE', `GPU ${uuid} is no longer on this node`);
    return gpu;
  });
  const pids = new Set(stranger.members.map(m => m.pid));
  const handle = ctx.handles.save(
    {
      version: 1,
      replica: order.replica,
      fence: order.fence,
      rank: order.rank,
      generation: order.generation,
      state: 'running',
      boot_id: ctx.bootId,
      order_hash: orderHash(order),
      order,
      gpus: granted.map(g => ({ uuid: g.uuid, index: g.index })),
      baseline: granted.map(g => baselineWithout(g, pids)),
      ports: { http: found.named.port },
      mgmt_addr: found.announced,
      key_id: null,
      probe: { ...found.probe, auth: false },
      engine_type: found.engine.type,
      engine_version: found.engine.version,
      launch_mode: found.engine.launch_mode,
      shim: null,
      engine: { pid: stranger.root.pid, start: stranger.root.start },
      process: {
        leads_session: stranger.leadsSession,
        members: stranger.members.map(({ pid, start }) => ({ pid, start })),
      },
      exit: null,
      proof: null,
      marks: { was_ready: false, host_stop: false, requested_stop: null, failure_told: false },
      seq: 0,
      events: [],
      last_failure: null,
      created_at: new Date().toISOString(),
    },
    true,
  );
  ctx.opts.fault?.('after_adopt_handle');
  return running(ctx, handle);
}

function refuseOtherGpus({ slots }: MemberOrder, granted: string[], own: string[]): void {
  const extra = own.filter(uuid => !granted.includes(uuid));
  const missing = granted.filter(uuid => !own.includes(uuid));
  if (extra.length === 0 && missing.length === 0) return;
  throw refused(
    `the process has the GPUs ${own.join(', ') || '(none)'}, and the slots ${slots.join(', ')} that were granted are ${granted.join(', ')}`,
  );
}

/**
 * INV-2 for an engine that was there first: what its GPUs would look like without it. Without a process list all that
 * is used counts as its own, so that at worst a GPU that is shared stays held.
 */
function baselineWithout(gpu: GpuState, pids: Set<number>): GpuBaseline {
  const foreign = gpu.processes?.filter(p => !pids.has(p.pid)) ?? null;
  const figures = (foreign ?? []).map(p => p.used_mib);
  const known = gpu.memory_used_mib !== null && !figures.includes(null);
  return {
    uuid: gpu.uuid,
    used_mib: known ? figures.reduce<number>((sum, n) => sum + n!, 0) : null,
    foreign,
  };
}
