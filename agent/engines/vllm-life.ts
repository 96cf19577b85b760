// Whether a vLLM works. Its /health looks at flags only: with a core that hangs (a collective that never returns, a
// stopped process) it goes on saying 200. What the API process tells on /metrics comes from the core with every step,
// so figures that move are a proof of life; figures that stand still are none of death, since an idle core has no steps.
import type { MemberOrder } from '../../contracts/activities.js';
import type { LifeSigns, Pulse } from './types.js';

/**
 * Series that only a step of the core moves. Others (request_success_total and the histograms of requests) the API
 * process moves by itself when a client leaves, which is what the end of a request for one token is.
 */
const FROM_CORE =
  /^vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc|prefix_cache_queries_total|num_preemptions_total|prompt_tokens_total|generation_tokens_total|iteration_tokens_total_(?:sum|count))(?:\{|\s)/;

const COUNTER = /^vllm:generation_tokens_total/;
const REQUESTS = /^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})?\s+(\S+)/;

/** null without the counter of generated tokens: `--disable-log-stats` leaves all of them out. */
export function readVllmPulse(metrics: string): Pulse | null {
  const lines = metrics.split('\n').filter(line => FROM_CORE.test(line));
  if (!lines.some(line => COUNTER.test(line))) return null;
  const requests = lines.reduce((sum, line) => sum + Number(REQUESTS.exec(line)?.[1] ?? 0), 0);
  return { beat: lines.join('\n'), requests };
}

/** With its development endpoints whoever drives it may put it to sleep or pause it: then standing still is right. */
export function vllmLifeSigns({ spec }: MemberOrder): LifeSigns | null {
  if (!['', '0'].includes(spec.env.VLLM_SERVER_DEV_MODE ?? '')) return null;
  return {
    metricsPath: '/metrics',
    read: readVllmPulse,
    oneToken: {
      path: '/v1/completions',
      body: { model: spec.served_model_name, prompt: 'a', max_tokens: 1, temperature: 0 },
    },
  };
}
