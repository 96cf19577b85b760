// An engine as Hello and heartbeats tell it.
import type { EngineReport, Serves } from '../../contracts/engine.js';
import { specHash } from '../../contracts/spec.js';
import { formatHostPort } from '../../lib/address.js';
import type { LiveEngine } from '../../proto/codec.js';
import { type Handle, refOf } from '../state/handle.js';
import type { Context } from './context.js';

export function reportOf(ctx: Context, h: Handle): LiveEngine {
  const state = stateOf(ctx, h);
  const load = state === 'loading' ? ctx.runtimes.of(h).stage : null;
  return {
    ...refOf(h),
    state,
    pid: h.engine?.pid ?? null,
    gpus: h.gpus.map(g => g.uuid),
    ports: h.ports,
    stage: load?.stage ?? null,
    percent: load?.percent ?? null,
    ...(load?.eta_ms === undefined ? {} : { eta_ms: load.eta_ms }),
    serves: servesOf(h),
    ...gangOf(h),
  };
}

/** A ledger that knows nothing of a gang gathers it by these, member by member. */
function gangOf({ order }: Handle): Pick<EngineReport, 'nodes' | 'fabric'> {
  return order === null || order.nodes === 1 ? {} : { nodes: order.nodes, fabric: order.fabric ?? null };
}

function stateOf(ctx: Context, h: Handle): EngineReport['state'] {
  if (h.state === 'exited') return 'exited';
  if (ctx.runtimes.of(h).stopping) return 'stopping';
  if (h.state !== 'running') return 'spawning';
  return h.marks.was_ready ? 'ready' : 'loading';
}

/** null: it isn't the member that answers clients, or this node has no address that routers were told. */
function servesOf({ order, mgmt_addr, ports, key_id, rank }: Handle): Serves | null {
  if (order === null || mgmt_addr === null || ports.http === undefined || rank !== 0) return null;
  const { spec } = order;
  return {
    model: spec.served_model_name,
    aliases: spec.aliases,
    url: `http://${formatHostPort({ host: mgmt_addr, port: ports.http })}`,
    key_id,
    revision: specHash(spec),
  };
}
