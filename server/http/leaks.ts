// /v1/nodes/<id>/clear-leak: the node looks again at GPUs whose hold was left without proof. Free now: proven, and the
// hold ends. Not free: refused with who has them, unless the operator's word is given (`confirm`), as `forget` takes it.
import { WorkflowNotFoundError } from '@temporalio/client';
import type { FastifyPluginAsync } from 'fastify';
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';
import { FOREIGN_MIB } from '../../contracts/inventory.js';
import type { ProvenAgain } from '../../contracts/status.js';
import type { NodeState } from '../../domain/node-state.js';
import type { HttpDeps } from './app.js';
import { By, readBody } from './body.js';

const Body = z.strictObject({ by: By, gpu: z.string().min(1).optional(), confirm: z.string().optional() });
const Processes = z.array(z.object({ pid: z.number(), what: z.string().nullable() }));

type Deps = Pick<HttpDeps, 'fleet' | 'nodes'>;

export function leakRoutes(deps: Deps): FastifyPluginAsync {
  const { fleet } = deps;
  return async app => {
    app.post<{ Params: { id: string } }>('/v1/nodes/:id/clear-leak', async request => {
      const { id } = request.params;
      const { by, gpu, confirm } = readBody(Body, request.body);
      if (confirm !== undefined && confirm !== id)
        throw new LlmgwError(
          'BAD_REQUEST',
          `confirm must be ${JSON.stringify(id)}: it is your word that the GPUs are free, and they are given to other engines`,
        );
      const node = gpu === undefined ? null : await nodeOf(fleet, id);
      const named = node === null ? null : slotOf(node, gpu!);
      const asked = {
        node: id,
        slots: named === null ? null : [named.slot],
        gpus: named === null ? null : [named.uuid],
        by,
        word: confirm !== undefined,
      };
      const { holds } = await fleet.proveLeft(asked).catch(err => {
        throw (named !== null && foreign(err, node!, named.uuid)) || err;
      });
      const ended = holds.filter(h => h.outcome !== 'left');
      for (const h of ended) await fleet.noteNode(id, { text: ofHold(h, by) });
      const left = holds.filter(h => h.outcome === 'left');
      if (left.length > 0)
        throw new LlmgwError('GPU_LEAKED', await refusal(deps, id, left, ended, confirm !== undefined));
      return { holds };
    });
  };
}

async function nodeOf(fleet: Deps['fleet'], id: string): Promise<NodeState> {
  try {
    return await fleet.node(id);
  } catch (err) {
    if (!(err instanceof WorkflowNotFoundError)) throw err;
    throw new LlmgwError('NODE_NOT_FOUND', `there is no node ${id}`);
  }
}

/** By UUID, or by its index on the node. */
function slotOf(node: NodeState, gpu: string): { slot: number; uuid: string } {
  const listed = node.inventory?.gpus ?? [];
  const uuid = /^\d+$/.test(gpu) ? listed.find(g => g.index === Number(gpu))?.uuid : gpu;
  const slot = Object.entries(node.slots).find(([, known]) => known === uuid)?.[0];
  if (uuid !== undefined && slot !== undefined) return { slot: Number(slot), uuid };
  const names = listed.map(g => `${g.index} (${g.uuid})`).join(', ') || 'none';
  throw new LlmgwError('BAD_REQUEST', `gpu: ${node.node_id} has no GPU ${gpu}; it has ${names}`);
}

/** Nothing of ours holds it, others do: there is no leak to clear. null: the refusal is to be told as it is. */
function foreign(err: unknown, node: NodeState, uuid: string): LlmgwError | null {
  const gpu = node.inventory?.gpus.find(g => g.uuid === uuid);
  const busy = gpu !== undefined && (gpu.foreign_mib ?? 0) > FOREIGN_MIB;
  if (!busy || !(err instanceof LlmgwError) || err.code !== 'BAD_REQUEST') return null;
  return new LlmgwError(
    'BAD_REQUEST',
    `GPU ${gpu.index} is foreign (${gpu.foreign_mib} MiB in use by others): end what uses it; it is offered again by itself`,
  );
}

function ofHold(h: ProvenAgain, by: string): string {
  const how = h.outcome === 'cleared' ? `by the word of ${by}` : `${h.why}, asked for by ${by}`;
  return `slots ${h.slots.join(',')} are free, ${how}: held by ${h.replica} (fence ${h.fence}) till now`;
}

async function refusal(
  { nodes }: Deps,
  id: string,
  left: ProvenAgain[],
  ended: ProvenAgain[],
  word: boolean,
): Promise<string> {
  const what = await describe(
    nodes,
    id,
    left.flatMap(h => h.gpus.flatMap(g => g.pids)),
  );
  const holds = left.map(h => {
    const gpus = h.gpus.map(g => {
      const used = g.used_mib === null ? '' : `${g.used_mib} MiB in use `;
      const by = g.pids.map(
        pid => `pid ${pid} (${what.get(pid) ?? 'no such process on the node: look in containers'})`,
      );
      return `${g.gpu}: ${used}by ${by.join(', ') || 'no process that the driver names'}`;
    });
    return `${h.replica} (fence ${h.fence}): ${[h.why, ...gpus].filter(s => s !== '').join('; ')}`;
  });
  const done =
    ended.length === 0 ? '' : `${ended.length} of ${ended.length + left.length} holds have ended; `;
  const next = word
    ? ''
    : `. End these processes and ask again; or give your word that the GPUs are free: llmgw ctl node clear-leak ${id} --confirm ${id}`;
  return `${done}not free on ${id}: ${holds.join('. ')}${next}`;
}

/** pid → what it is; empty where the agent can't be asked, or is of a release that doesn't tell. */
async function describe(
  nodes: Deps['nodes'],
  id: string,
  pids: number[],
): Promise<Map<number, string | null>> {
  if (pids.length === 0) return new Map();
  try {
    const parts: Buffer[] = [];
    for await (const part of nodes.request(id, 'processes', { pids: [...new Set(pids)].slice(0, 64) }))
      parts.push(part);
    const told = Processes.parse(JSON.parse(Buffer.concat(parts).toString()));
    return new Map(told.map(p => [p.pid, p.what]));
  } catch {
    return new Map(pids.map(pid => [pid, 'what it is could not be asked']));
  }
}
