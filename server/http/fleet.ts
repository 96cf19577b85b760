// /v1/fleet: the brake, what runs unclaimed, alarms; and what operators decide about nodes that are gone and about
// processes that llmgw didn't start.
import type { FastifyPluginAsync } from 'fastify';
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';
import { adopt } from '../adopt.js';
import type { HttpDeps } from './app.js';

/** Who asks, for the journal: ctl says the user; without a word it is the API. */
const By = z
  .string()
  .regex(/^[\x21-\x7e]{1,64}$/, 'expected a name of 1 to 64 printable characters')
  .default('api');
const BrakeBody = z.object({ by: By });
const ForgetBody = z.object({ by: By, confirm: z.string().optional() });

export function fleetRoutes({ fleet }: Pick<HttpDeps, 'fleet'>): FastifyPluginAsync {
  return async app => {
    app.get('/v1/fleet', () => fleet.status());
    app.post('/v1/fleet/brake', request => fleet.brake(true, read(BrakeBody, request.body).by));
    app.post('/v1/fleet/release-brake', request => fleet.brake(false, read(BrakeBody, request.body).by));

    app.post<{ Params: { id: string } }>('/v1/nodes/:id/forget', request => {
      const { id } = request.params;
      const { by, confirm } = read(ForgetBody, request.body);
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

function read<T>(schema: z.ZodType<T>, body: unknown): T {
  const parsed = schema.safeParse(body ?? {});
  if (parsed.success) return parsed.data;
  const faults = parsed.error.issues.map(i => `${i.path.join('.') || 'the body'}: ${i.message}`);
  throw new LlmgwError('BAD_REQUEST', faults.join('; '));
}
