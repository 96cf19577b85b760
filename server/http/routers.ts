// /v1/routes and /v1/routers: what routers live on. The watch is NDJSON: one full table a line, an empty line every 5 s.
import type { FastifyPluginAsync } from 'fastify';
import { LlmgwError } from '../../contracts/errors.js';
import { RouterReport } from '../../contracts/routes.js';
import type { HttpDeps } from './app.js';

const EMPTY_LINE_MS = 5_000;
/** A watcher that reads this little of what it is sent is cut: it comes again and gets one full table. */
const MAX_UNSENT = 8 * 1024 * 1024;

export function routerRoutes({ routes }: HttpDeps): FastifyPluginAsync {
  return async app => {
    app.get<{ Querystring: { watch?: string } }>('/v1/routes', async (request, reply) => {
      if (routes.table() === null) await routes.refresh();
      const table = routes.table();
      if (request.query.watch !== '1') {
        if (table === null) throw new LlmgwError('UNAVAILABLE', 'the ledger has not been read yet');
        // Routers believe that the table went back only from an instance that has read the ledger just now.
        void reply.header('age', Math.floor((routes.tableAge() ?? 0) / 1_000));
        return table;
      }
      reply.hijack();
      const { raw } = reply;
      raw.writeHead(200, { 'content-type': 'application/x-ndjson', 'cache-control': 'no-store' });
      raw.socket?.setNoDelay(true);
      const send = (line: string): void => {
        if (raw.writableLength > MAX_UNSENT) raw.destroy();
        else raw.write(`${line}\n`);
      };
      const stop = routes.watch(
        t => send(JSON.stringify(t)),
        () => raw.end(),
      );
      const beat = setInterval(() => send(''), EMPTY_LINE_MS);
      raw.on('error', () => undefined); // 'close' follows
      raw.once('close', () => {
        clearInterval(beat);
        stop();
      });
    });

    app.post<{ Params: { id: string } }>('/v1/routers/:id', async (request, reply) => {
      const parsed = RouterReport.safeParse(request.body);
      if (!parsed.success)
        throw new LlmgwError(
          'BAD_REQUEST',
          parsed.error.issues.map(i => `${i.path.join('.')}: ${i.message}`).join('; '),
        );
      routes.report(request.params.id, parsed.data);
      return reply.status(204).send();
    });
  };
}
