// /v1/fleet: the brake, what runs unclaimed, alarms; and what operators decide about nodes that are gone and about
// processes that llmgw didn't start.
import type { FastifyPluginAsync } from 'fastify';
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';
import type { UnclaimedEngine } from '../../contracts/status.js';
import { adopt } from '../adopt.js';
import type { HttpDeps } from './app.js';
import { By, readBody } from './body.js';

const BrakeBody = z.object({ by: By });
const ForgetBody = z.object({ by: By, confirm: z.string().optional() });

export function fleetRoutes({ fleet, nodes }: Pick<HttpDeps, 'fleet' | 'nodes'>): FastifyPluginAsync {
  return async app => {
    app.get('/v1/fleet', async () => {
      const status = await fleet.status();
      return { ...status, unclaimed: await withProcesses(nodes, status.unclaimed) };
    });
    app.post('/v1/fleet/brake', request => fleet.brake(true, readBody(BrakeBody, request.body).by));
    app.post('/v1/fleet/release-brake', request => fleet.brake(false, readBody(BrakeBody, request.body).by));

    app.post<{ Params: { id: string } }>('/v1/nodes/:id/forget', request => {
      const { id } = request.params;
      const { by, confirm } = readBody(ForgetBody, request.body);
      if (confirm !== id) {
        throw new LlmgwError(
          'BAD_REQUEST',
          `confirm must be ${JSON.stringify(id)}: to forget a node is your word that its engines are dead, and their replicas get GPUs elsewhere`,
        );
      }
      return fleet.forget(id, by);
    });

    app.post<{ Params: { name: string } }>('/v1/replicas/:name/adopt', async (request, reply) =>
      reply.status(201).send(await adopt(fleet, request.params.name, request.body)),
    );
  };
}

/** So many nodes are asked; the rest of a fleet that has lost its history is shown without. */
const ASKED_NODES = 64;

/** What an operator needs to adopt them: the ledger doesn't keep it (INV-11), the nodes know. */
async function withProcesses(
  nodes: HttpDeps['nodes'],
  unclaimed: UnclaimedEngine[],
): Promise<UnclaimedEngine[]> {
  const ids = [...new Set(unclaimed.map(u => u.node))].slice(0, ASKED_NODES);
  const live = new Map(await Promise.all(ids.map(async id => [id, await nodes.live(id)] as const)));
  return unclaimed.map(u => {
    const engine = live.get(u.node)?.engines.find(e => e.replica === u.replica && e.fence === u.fence);
    return { ...u, pid: engine?.pid ?? null, port: engine?.ports.http ?? null };
  });
}
