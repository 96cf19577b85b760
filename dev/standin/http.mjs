// The endpoints that the product uses, open and closed as vLLM has them: only /v1 asks for the key; /health looks at
// nothing but a flag; a request that is running when the engine stops is ended, or kept for ever by the knob.
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { plan } from './generate.mjs';
import { line, raw } from './log.mjs';

/** How often a hung core looks whether it may go on. */
export const HANG_LOOK_MS = 20;

const GUARDED = ['/v1', '/v2', '/inference', '/cohere'];

const isGuarded = path => GUARDED.some(prefix => path.startsWith(prefix));

const ROUTES = {
  '/health': { GET: (_request, response) => response.writeHead(200, { 'content-length': 0 }).end() },
  '/ping': {
    GET: (_request, response) => response.writeHead(200, { 'content-length': 0 }).end(),
    POST: (_request, response) => response.writeHead(200, { 'content-length': 0 }).end(),
  },
  '/load': { GET: (_request, response) => json(response, 200, { server_load: 0 }) },
  '/version': { GET: (_request, response, engine) => json(response, 200, { version: engine.version }) },
  '/metrics': { GET: (_request, response, engine) => metrics(response, engine) },
  '/v1/models': { GET: (_request, response, engine) => models(response, engine) },
  '/v1/chat/completions': {
    POST: (request, response, engine) => complete('chat', request, response, engine),
  },
  '/v1/completions': { POST: (request, response, engine) => complete('text', request, response, engine) },
};

export const ROUTE_LINES = Object.entries(ROUTES).map(
  ([path, methods]) => `Route: ${path}, Methods: ${Object.keys(methods).join(', ')}`,
);

/**
 * @param {Engine} engine what the endpoints tell and do
 * @param {{routes: object, isGuarded: (path: string) => boolean}} surface vLLM's unless it is another engine's
 * @returns {import('node:http').Server} not listening yet
 */
export function createEngineServer(engine, surface = { routes: ROUTES, isGuarded }) {
  return createServer((request, response) => {
    const path = new URL(request.url, 'http://engine').pathname;
    logAccess(engine, request, response, path);
    if (surface.isGuarded(path) && !authorised(engine, request)) {
      request.resume();
      return json(response, 401, { error: 'Unauthorized' });
    }
    const route = surface.routes[path];
    const handler = route?.[request.method === 'HEAD' ? 'GET' : request.method];
    if (handler !== undefined) return handler(request, response, engine);
    request.resume();
    return route === undefined
      ? json(response, 404, { detail: 'Not Found' })
      : json(response, 405, { detail: 'Method Not Allowed' });
  });
}

/** What serves: its names, its limits, and the requests in flight. */
export class Engine {
  /** Each open request's own way to end early. */
  open = new Set();
  stopping = false;
  totals = { prompt: 0, generated: 0, succeeded: 0 };
  /** What its core told its API process last. */
  told = { running: 0, ...this.totals };

  /** Whom /v1/models names. */
  owner = 'vllm';
  /** Whether it answers whatever model a request names. */
  anyModel = false;

  constructor({ names, root, version, keys, maxLen, tokens, tokenMs, hangFile, accessLog, coreHangs }) {
    Object.assign(this, {
      names,
      root,
      version,
      keys,
      maxLen,
      tokens,
      tokenMs,
      hangFile,
      accessLog,
      coreHangs,
    });
    this.created = Math.floor(Date.now() / 1000);
  }

  /** Its core does nothing, and its API process doesn't notice. */
  get hung() {
    return this.coreHangs() || (this.hangFile !== '' && existsSync(this.hangFile));
  }

  /** What /metrics tells: it stands still while the core hangs. */
  figures() {
    if (!this.hung) this.told = { running: this.open.size, ...this.totals };
    return this.told;
  }
}

function authorised(engine, request) {
  if (engine.keys.length === 0 || request.method === 'OPTIONS') return true;
  const [scheme, token] = (request.headers.authorization ?? '').split(' ');
  return scheme?.toLowerCase() === 'bearer' && engine.keys.includes(token);
}

export function json(response, status, body) {
  const text = JSON.stringify(body);
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(text),
  });
  response.end(text);
}

export function models(response, engine) {
  const data = engine.names.map(id => ({
    id,
    object: 'model',
    created: engine.created,
    owned_by: engine.owner,
    root: engine.root,
    parent: null,
    max_model_len: engine.maxLen,
  }));
  json(response, 200, { object: 'list', data });
}

function metrics(response, engine) {
  const labels = `{engine="0",model_name="${engine.names[0]}"}`;
  const figures = engine.figures();
  const series = [
    ['vllm:num_requests_running', 'gauge', figures.running],
    ['vllm:num_requests_waiting', 'gauge', 0],
    ['vllm:kv_cache_usage_perc', 'gauge', 0],
    ['vllm:prompt_tokens_total', 'counter', figures.prompt],
    ['vllm:generation_tokens_total', 'counter', figures.generated],
    ['vllm:request_success_total', 'counter', figures.succeeded],
  ];
  const text = series.map(([name, type, value]) => `# TYPE ${name} ${type}\n${name}${labels} ${value}.0\n`);
  response.writeHead(200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' });
  response.end(text.join(''));
}

export async function complete(kind, request, response, engine) {
  let body;
  try {
    const parts = [];
    for await (const part of request) parts.push(part);
    body = JSON.parse(Buffer.concat(parts).toString());
    if (body === null || typeof body !== 'object') throw new Error('not an object');
  } catch {
    if (response.destroyed) return;
    const message = 'JSON decode error';
    return json(response, 400, { error: { message, type: 'Bad Request', param: null, code: 400 } });
  }
  if (!engine.anyModel && !engine.names.includes(body.model)) {
    const message = `The model \`${body.model}\` does not exist.`;
    return json(response, 404, { error: { message, type: 'NotFoundError', param: 'model', code: 404 } });
  }
  if (engine.stopping) {
    const message = 'The engine is shutting down.';
    return json(response, 503, {
      error: { message, type: 'ServiceUnavailableError', param: null, code: 503 },
    });
  }
  const answer = plan(kind, body, engine);
  if ('error' in answer) return json(response, answer.status, { error: answer.error });
  await run(answer, response, engine);
}

async function run(answer, response, engine) {
  const flight = { ended: false, frozen: false, wake: () => {} };
  engine.open.add(flight);
  response.on('close', () => {
    flight.ended = true;
    flight.wake();
    engine.open.delete(flight);
    flight.closed?.();
  });
  const send = chunk => response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  await unhung(engine, flight);
  engine.totals.prompt += answer.promptTokens;
  if (answer.stream && !flight.frozen && !response.destroyed) {
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
    const opening = answer.opening();
    if (opening !== null) send(opening);
  }
  let text = '';
  for (;;) {
    if (engine.tokenMs > 0) await pause(engine.tokenMs, flight);
    await unhung(engine, flight);
    if (flight.frozen) return;
    const token = flight.ended ? null : answer.next();
    if (token === null) break;
    engine.totals.generated++;
    text += token;
    if (answer.stream) send(answer.chunk(token));
  }
  if (response.destroyed) return;
  if (answer.finish === null) {
    answer.finish = 'abort';
    if (answer.stream) send(answer.chunk(''));
  } else engine.totals.succeeded++;
  if (answer.stream) {
    if (answer.includeUsage) send(answer.usageChunk());
    response.end('data: [DONE]\n\n');
  } else json(response, 200, answer.whole(text));
}

/** Resolves when the core works, or the flight needs it no more. */
async function unhung(engine, flight) {
  while (engine.hung && !flight.ended && !flight.frozen) await pause(HANG_LOOK_MS, flight);
  engine.figures();
}

/** Ends early when the flight does: a stop doesn't wait for a slow token. */
function pause(ms, flight) {
  if (flight.ended || flight.frozen) return Promise.resolve();
  return new Promise(resolve => {
    const timer = setTimeout(resolve, ms);
    flight.wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

function logAccess(engine, request, response, path) {
  if (!engine.accessLog) return;
  const peer = `${request.socket.remoteAddress}:${request.socket.remotePort}`;
  response.on('finish', () => {
    const what = `"${request.method} ${path} HTTP/${request.httpVersion}" ${response.statusCode}`;
    raw(`(APIServer pid=${process.pid}) INFO:     ${peer} - ${what}\n`);
  });
}

/** Ends what is in flight; `frozen` keeps it open without another byte, as a real vLLM does. */
export function endFlights(engine, { frozen }) {
  for (const flight of engine.open) {
    if (frozen) flight.frozen = true;
    else flight.ended = true;
    flight.wake();
  }
}

/** Resolves when no request is in flight. */
export async function flightsEnded(engine) {
  while (engine.open.size > 0) {
    await Promise.race([...engine.open].map(flight => new Promise(resolve => (flight.closed = resolve))));
  }
}

export function logRoutes() {
  line('APIServer', 'INFO', 'launcher.py:186', 'Available routes are:');
  for (const text of ROUTE_LINES) line('APIServer', 'INFO', 'launcher.py:195', text);
}
