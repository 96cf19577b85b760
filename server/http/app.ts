// The operators' HTTP API: one plugin a resource. Errors are `{error: {code, message, hint}}`, from the one catalogue.
import { createHash, timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import Fastify, { type FastifyError, type FastifyInstance, type FastifyRequest } from 'fastify';
import { ERRORS, errorBody, isErrorCode, LlmgwError } from '../../contracts/errors.js';
import { isLoopbackHost } from '../../lib/address.js';
import type { Logger } from '../../lib/log.js';
import type { FleetClient } from '../fleet.js';
import type { Nodes } from '../peers/nodes.js';
import type { Replicas } from '../replicas.js';
import type { RouteHub } from '../routes.js';
import type { Hub } from '../stream/hub.js';
import { fleetRoutes } from './fleet.js';
import { leakRoutes } from './leaks.js';
import { logRoutes } from './logs.js';
import { nodeRoutes } from './nodes.js';
import { replicaRoutes } from './replicas.js';
import { routerRoutes } from './routers.js';

export interface HttpDeps {
  fleet: FleetClient;
  replicas: Replicas;
  routes: RouteHub;
  hub: Hub;
  /** Nodes wherever their streams are. */
  nodes: Nodes;
  /** Workers run and the ledger is there. */
  ready: () => boolean;
  instance: string;
  /** One `[name:]token` a line, `#` comments; null: no credential needed (loopback only, see server/config.ts). */
  tokensFile: string | null;
  tls: { cert: Buffer; key: Buffer } | null;
  log: Logger;
}

export function httpApp(deps: HttpDeps): FastifyInstance {
  const app = Fastify({
    logger: false,
    // A replica's name is short; what is longer is no id.
    routerOptions: { maxParamLength: 256 },
    bodyLimit: 1024 * 1024,
    ...(deps.tls === null ? {} : { https: deps.tls }),
  } as object) as unknown as FastifyInstance;
  app.setErrorHandler((err: FastifyError, _request, reply) => {
    const known = asLlmgwError(err);
    if (known.code === 'INTERNAL') deps.log.error({ err }, 'a request failed');
    void reply.status(ERRORS[known.code].http).send(errorBody(known.code, known.message));
  });
  app.setNotFoundHandler((request, reply) => {
    void reply.status(404).send(errorBody('BAD_REQUEST', `there is no ${request.method} ${request.url}`));
  });
  if (deps.tokensFile !== null) guard(app, deps.tokensFile);
  else refuseOtherSites(app);
  app.get('/healthz', async () => ({ ok: true }));
  app.get('/readyz', async (_request, reply) => {
    const ok = deps.ready();
    return reply.status(ok ? 200 : 503).send({ ok });
  });
  app.get('/metrics', async (_request, reply) => reply.type('text/plain; version=0.0.4').send(metrics(deps)));
  void app.register(nodeRoutes(deps));
  void app.register(fleetRoutes(deps));
  void app.register(replicaRoutes(deps));
  void app.register(logRoutes(deps));
  void app.register(leakRoutes(deps));
  void app.register(routerRoutes(deps));
  return app;
}

function asLlmgwError(err: FastifyError | LlmgwError): LlmgwError {
  if (err instanceof LlmgwError) return err;
  const { statusCode } = err as FastifyError;
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500)
    return new LlmgwError('BAD_REQUEST', err.message);
  const type = (err as { type?: string }).type;
  if (isErrorCode(type)) return new LlmgwError(type, err.message);
  // gRPC's UNAVAILABLE and DEADLINE_EXCEEDED: Temporal is down, which is no bug of ours.
  const code = (err as { code?: unknown }).code ?? (err.cause as { code?: unknown } | undefined)?.code;
  if (code === 14 || code === 4)
    return new LlmgwError('UNAVAILABLE', `Temporal does not answer: ${err.message}`);
  return new LlmgwError('INTERNAL', err.message, { cause: err });
}

/** Tokens are re-read for each request, so that one can be revoked without a restart. Health is for load balancers. */
function guard(app: FastifyInstance, file: string): void {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  app.addHook('onRequest', async (request: FastifyRequest) => {
    if (request.url === '/healthz' || request.url === '/readyz') return;
    const given = /^Bearer\s+(\S+)$/i.exec(request.headers.authorization ?? '')?.[1];
    const tokens = readFileSync(file, 'utf8')
      .split('\n')
      .map(line => line.replace(/#.*/, '').trim())
      .filter(line => line !== '')
      .map(line => line.slice(line.indexOf(':') + 1));
    const ok = given !== undefined && tokens.some(t => timingSafeEqual(digest(t), digest(given)));
    if (!ok)
      throw new LlmgwError(
        'UNAUTHENTICATED',
        given === undefined ? 'no bearer token was given' : 'the token is not known',
      );
  });
}

/**
 * Without tokens only this machine's programs may ask. A browser on it runs other people's pages: they show by their
 * Origin, and by a Host that is not loopback when a name was pointed here (DNS rebinding).
 */
function refuseOtherSites(app: FastifyInstance): void {
  const isLocal = (url: string): boolean => {
    try {
      return isLoopbackHost(new URL(url).hostname.replace(/^\[|\]$/g, ''));
    } catch {
      return false;
    }
  };
  app.addHook('onRequest', async (request: FastifyRequest) => {
    const { host, origin } = request.headers;
    const local =
      (host === undefined || isLocal(`http://${host}`)) && (origin === undefined || isLocal(origin));
    if (!local) {
      throw new LlmgwError(
        'UNAUTHENTICATED',
        'without tokens_file only this machine itself may ask, and no page of another site',
      );
    }
  });
}

function metrics(deps: HttpDeps): string {
  const table = deps.routes.table();
  return [
    '# TYPE llmgw_agents_connected gauge',
    `llmgw_agents_connected ${deps.hub.nodes().length}`,
    '# TYPE llmgw_route_table_version gauge',
    `llmgw_route_table_version ${table?.version ?? 0}`,
    '# TYPE llmgw_endpoints gauge',
    `llmgw_endpoints ${table?.endpoints.length ?? 0}`,
    '# TYPE llmgw_routers_known gauge',
    `llmgw_routers_known ${deps.routes.ownRouters(null).length}`,
    '',
  ].join('\n');
}
