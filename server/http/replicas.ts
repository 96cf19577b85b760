// /v1/replicas: list, show, deploy, stop, restart, logs.
import { Readable } from 'node:stream';
import type { FastifyPluginAsync } from 'fastify';
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';
import type { HttpDeps } from './app.js';

const LogQuery = z.object({
  generation: z.coerce.number().int().min(1).optional(),
  rank: z.coerce.number().int().min(0).default(0),
  lines: z.coerce.number().int().min(1).max(100_000).default(512),
});

export function replicaRoutes({ replicas, nodes, fleet }: HttpDeps): FastifyPluginAsync {
  return async app => {
    app.get('/v1/replicas', () => replicas.list());
    app.post('/v1/replicas', async (request, reply) => {
      const done = await replicas.deploy(request.body);
      return reply.status(done.result === 'created' ? 201 : 200).send(done);
    });
    app.get<{ Params: { name: string } }>('/v1/replicas/:name', request =>
      replicas.show(request.params.name),
    );
    app.post<{ Params: { name: string } }>('/v1/replicas/:name/stop', request =>
      replicas.stop(request.params.name),
    );
    app.post<{ Params: { name: string } }>('/v1/replicas/:name/restart', request =>
      replicas.restart(request.params.name),
    );

    app.get<{ Params: { name: string } }>('/v1/replicas/:name/logs', async (request, reply) => {
      const query = LogQuery.safeParse(request.query);
      if (!query.success)
        throw new LlmgwError(
          'BAD_REQUEST',
          query.error.issues.map(i => `${i.path.join('.')}: ${i.message}`).join('; '),
        );
      const { name } = request.params;
      const node = await nodeOf(name, query.data.rank);
      const chunks = nodes.request(node, 'logs', { replica: name, ...query.data });
      // The first chunk decides between an answer and an error.
      const first = await chunks.next();
      const body = async function* () {
        if (!first.done) yield first.value;
        yield* chunks;
      };
      return reply.type('text/plain; charset=utf-8').send(Readable.from(body()));
    });
  };

  /** Where the member runs, or ran last: an ended replica's evidence lies on its node. */
  async function nodeOf(name: string, rank: number): Promise<string> {
    const status = await replicas.show(name);
    const member = status.members.find(m => m.rank === rank);
    if (member !== undefined) return member.node;
    const holding = await nodes.withEngineOf(name);
    if (holding !== null) return holding;
    const all = await fleet.nodes();
    if (all.length === 1) return all[0]!.node_id;
    throw new LlmgwError(
      'ENGINE_UNKNOWN',
      `replica/${name} has no member with rank ${rank} on any node now (${status.phase}: ${status.reason})`,
    );
  }
}
