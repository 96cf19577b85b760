// /v1/replicas: list, show, deploy, stop, restart.
import type { FastifyPluginAsync } from 'fastify';
import type { HttpDeps } from './app.js';

export function replicaRoutes({ replicas }: HttpDeps): FastifyPluginAsync {
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
  };
}
