// /v1/nodes: what the ledger has; of one node also what its agent says at this moment.
import { WorkflowNotFoundError } from '@temporalio/client';
import type { FastifyPluginAsync } from 'fastify';
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';
import { Inventory } from '../../contracts/inventory.js';
import type { NodeState } from '../../domain/node-state.js';
import type { HttpDeps } from './app.js';

/** A look at memory that isn't answered by then is shown as it was told last. */
const ASK_WITHIN = 2_000;
/** Absent: an agent of a release that doesn't tell. */
const Age = z.object({ looked_ms_ago: z.number().min(0).optional() });

export function nodeRoutes({ fleet, nodes }: HttpDeps): FastifyPluginAsync {
  return async app => {
    app.get('/v1/nodes', () => fleet.nodes());

    app.get<{ Params: { id: string } }>('/v1/nodes/:id', async request => {
      const { id } = request.params;
      try {
        const node = await fleet.node(id);
        const [rows, left, live, asked] = await Promise.all([
          fleet.nodes(),
          fleet.left(id),
          nodes.live(id, node),
          inventoryOf(nodes, id, node),
        ]);
        return {
          ...(rows.find(r => r.node_id === id) ?? {
            node_id: id,
            state: node.state,
            since: new Date(node.since).toISOString(),
            reason: node.reason,
          }),
          session: node.session,
          instance: node.instance,
          slots: node.slots,
          engines: live?.engines ?? node.engines,
          last_heartbeat: live === null ? null : new Date(live.lastHeartbeat).toISOString(),
          ...asked,
          left,
          journal: node.journal.map(j => ({ at: new Date(j.at).toISOString(), text: j.text })),
        };
      } catch (err) {
        if (err instanceof WorkflowNotFoundError)
          throw new LlmgwError('NODE_NOT_FOUND', `there is no node ${id}`);
        throw err;
      }
    });
  };
}

/** The agent's own latest look, else what it told last; with when that was, and which of the two it is. */
async function inventoryOf(
  nodes: HttpDeps['nodes'],
  id: string,
  node: NodeState,
): Promise<{ inventory: Inventory | null; inventory_at: string | null; inventory_live: boolean }> {
  if (node.state === 'connected') {
    try {
      const parts: Buffer[] = [];
      for await (const part of nodes.request(id, 'inventory', null, { timeout: ASK_WITHIN }))
        parts.push(part);
      const raw: unknown = JSON.parse(Buffer.concat(parts).toString());
      const { looked_ms_ago: age } = Age.parse(raw);
      const at = age === undefined ? null : new Date(Date.now() - age).toISOString();
      return { inventory: Inventory.parse(raw), inventory_at: at, inventory_live: true };
    } catch {
      // It is shown as it was told, and that it is so.
    }
  }
  const at = node.inventory_at === undefined ? null : new Date(node.inventory_at).toISOString();
  return { inventory: node.inventory, inventory_at: at, inventory_live: false };
}
