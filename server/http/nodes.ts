// /v1/nodes: what the ledger has; of one node also what the stream heard a moment ago.
import { WorkflowNotFoundError } from '@temporalio/client';
import type { FastifyPluginAsync } from 'fastify';
import { LlmgwError } from '../../contracts/errors.js';
import type { HttpDeps } from './app.js';

export function nodeRoutes({ fleet, nodes }: HttpDeps): FastifyPluginAsync {
  return async app => {
    app.get('/v1/nodes', () => fleet.nodes());

    app.get<{ Params: { id: string } }>('/v1/nodes/:id', async request => {
      const { id } = request.params;
      try {
        const node = await fleet.node(id);
        const row = (await fleet.nodes()).find(r => r.node_id === id);
        const live = await nodes.live(id, node, true);
        return {
          ...(row ?? {
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
          inventory: live?.inventory ?? node.inventory,
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
