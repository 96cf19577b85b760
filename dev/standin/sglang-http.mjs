// SGLang's endpoints, open and closed as it has them: /health asks its scheduler for a token, everything but /health,
// /ready and /metrics asks for the key, and chat answers whatever model a request names.
import { complete, createEngineServer, HANG_LOOK_MS, json, models } from './http.mjs';

/** After so long /health gives up and says 503. */
const HEALTH_LIMIT_MS = 20_000;

const empty = (response, status) => response.writeHead(status, { 'content-length': 0 }).end();
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

/** @param {{status: 'Starting' | 'Up' | 'UnHealthy', exiting: boolean, healthMs: number, metrics: boolean}} state */
export function createSglangServer(engine, state) {
  engine.owner = 'sglang';
  engine.anyModel = true;
  const health = { GET: (_request, response) => void generateHealth(engine, state, response) };
  const flag = (_request, response) => empty(response, state.status === 'Up' && !state.exiting ? 200 : 503);
  const info = {
    GET: (_request, response) =>
      json(response, 200, { model_path: engine.root, served_model_name: engine.names[0] }),
  };
  const routes = {
    '/health': health,
    '/health_generate': health,
    '/ready': { GET: flag },
    '/ping': { GET: flag },
    '/model_info': info,
    '/get_model_info': info,
    '/server_info': { GET: (_request, response) => json(response, 200, { version: engine.version }) },
    '/v1/models': { GET: (_request, response) => models(response, engine) },
    '/v1/chat/completions': { POST: (request, response) => complete('chat', request, response, engine) },
    '/v1/completions': { POST: (request, response) => complete('text', request, response, engine) },
    ...(state.metrics ? { '/metrics': { GET: (_request, response) => metrics(response, engine) } } : {}),
  };
  return createEngineServer(engine, { routes, isGuarded });
}

/** A follower's: it says 200 whatever happens to its schedulers. */
export function createDummyServer(engine) {
  const ok = { GET: (_request, response) => empty(response, 200) };
  const routes = { '/ping': ok, '/health': ok, '/health_generate': ok };
  return createEngineServer(engine, { routes, isGuarded: () => false });
}

const isGuarded = path => !['/health', '/ready', '/metrics'].some(prefix => path.startsWith(prefix));

async function generateHealth(engine, state, response) {
  if (state.exiting || state.status === 'Starting') return empty(response, 503);
  const until = Date.now() + HEALTH_LIMIT_MS;
  await pause(state.healthMs);
  while (engine.hung && Date.now() < until) await pause(HANG_LOOK_MS);
  state.status = engine.hung ? 'UnHealthy' : 'Up';
  empty(response, engine.hung ? 503 : 200);
}

function metrics(response, engine) {
  const labels = `{model_name="${engine.names[0]}",tp_rank="0",pp_rank="0"}`;
  const figures = engine.figures();
  const series = [
    ['sglang:num_running_reqs', 'gauge', figures.running],
    ['sglang:num_queue_reqs', 'gauge', 0],
    ['sglang:num_used_tokens', 'gauge', 0],
    ['sglang:prompt_tokens_total', 'counter', figures.prompt],
    ['sglang:generation_tokens_total', 'counter', figures.generated],
    ['sglang:num_requests_total', 'counter', figures.succeeded],
  ];
  const text = series.map(([name, type, value]) => `# TYPE ${name} ${type}\n${name}${labels} ${value}.0\n`);
  response.writeHead(200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' });
  response.end(text.join(''));
}
