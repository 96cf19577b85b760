// What the router answers itself, without an engine: the models, health, metrics. And the errors that say what to use
// instead.
import type { Endpoints } from './endpoints.js';
import type { Gauges, Metrics } from './metrics.js';
import type { OpenAiError } from './openai-error.js';

export interface PageDeps {
  endpoints: Endpoints;
  metrics: Metrics;
  gauges: () => Gauges;
  stopping: () => boolean;
  /** Null: ready; otherwise why not. */
  notReady: () => string | null;
  /** Seconds since the epoch at which the router started: `created` of the models. */
  startedAt: number;
}

export interface Page {
  status: number;
  type: string;
  body: string;
}

const TEXT = 'text/plain; charset=utf-8';
const PROMETHEUS = 'text/plain; version=0.0.4; charset=utf-8';
/** `/health` is what engines call it, and what load balancers in front of engines ask. */
const PATHS = new Set(['/healthz', '/health', '/readyz', '/metrics']);

/** The answer to a request that isn't a POST under /v1; `path` without its query. */
export function page(deps: PageDeps, method: string, path: string): Page | OpenAiError {
  if (!path.startsWith('/v1/') && !PATHS.has(path)) return notFound(path);
  if (method !== 'GET' && method !== 'HEAD') return notAllowed(path);
  switch (path) {
    case '/healthz':
    case '/health':
      return { status: 200, type: TEXT, body: 'ok\n' };
    case '/readyz': {
      const reason = deps.stopping() ? 'the router is stopping' : deps.notReady();
      if (reason === null) return { status: 200, type: TEXT, body: 'ready\n' };
      return { status: 503, type: TEXT, body: `not ready: ${reason}\n` };
    }
    case '/metrics':
      return { status: 200, type: PROMETHEUS, body: deps.metrics.render(deps.gauges()) };
    case '/v1/models':
      return json({ object: 'list', data: deps.endpoints.models().map(m => modelObject(deps, m)) });
    default:
      return path.startsWith(ONE_MODEL) ? oneModel(deps, path.slice(ONE_MODEL.length)) : notAllowed(path);
  }
}

const ONE_MODEL = '/v1/models/';

function oneModel(deps: PageDeps, raw: string): Page | OpenAiError {
  const id = decodeUri(raw);
  const found = deps.endpoints.models().find(m => m.id === id);
  if (found !== undefined) return json(modelObject(deps, found));
  const message = `The model ${JSON.stringify(id.slice(0, 200))} does not exist here, see GET /v1/models.`;
  return { status: 404, type: 'invalid_request_error', code: 'model_not_found', param: 'model', message };
}

const modelObject = (deps: PageDeps, { id, root }: { id: string; root: string }): object => ({
  id,
  object: 'model',
  created: deps.startedAt,
  owned_by: 'llmgw',
  root,
  parent: null,
});

const json = (body: object): Page => ({ status: 200, type: 'application/json', body: JSON.stringify(body) });

export const badRequest = (code: string, message: string): OpenAiError => ({
  status: 400,
  type: 'invalid_request_error',
  code,
  message,
});

export const notFound = (path: string): OpenAiError => ({
  ...badRequest(
    'not_found',
    `There is nothing at ${JSON.stringify(path.slice(0, 200))}; the API is under /v1.`,
  ),
  status: 404,
});

function notAllowed(path: string): OpenAiError {
  const reads = PATHS.has(path) || path === '/v1/models' || path.startsWith(ONE_MODEL);
  return {
    ...badRequest('method_not_allowed', `Use ${reads ? 'GET' : 'POST'} at ${path.slice(0, 200)}.`),
    status: 405,
    headers: ['Allow', reads ? 'GET, HEAD' : 'POST'],
  };
}

function decodeUri(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
