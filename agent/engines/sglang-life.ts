// Whether an SGLang works. Its /health asks its own scheduler for a token and takes 20 s to find that none comes, and
// says 200 as long as anything at all comes out; so the figures of its scheduler tell, and a request for one token
// where they stand still. They are there because llmgw starts it with --enable-metrics.
import type { MemberOrder } from '../../contracts/activities.js';
import type { LifeSigns, Pulse } from './types.js';

/** Series that only the scheduler moves, or tokens that come out of it; a client that leaves moves none of them. */
const FROM_SCHEDULER =
  /^sglang:(?:num_running_reqs|num_queue_reqs|num_used_tokens|token_usage|gen_throughput|cache_hit_rate|generation_tokens_total|num_retracted_reqs|cuda_graph_passes_total)(?:\{|\s)/;

const REQUESTS = /^sglang:num_(?:running|queue)_reqs(?:\{[^}]*\})?\s+(\S+)/;

/** null without the gauge of running requests: metrics are off, or another program answers. */
export function readSglangPulse(metrics: string): Pulse | null {
  const lines = metrics.split('\n').filter(line => FROM_SCHEDULER.test(line));
  if (!lines.some(line => REQUESTS.test(line))) return null;
  const requests = lines.reduce((sum, line) => sum + Number(REQUESTS.exec(line)?.[1] ?? 0), 0);
  return { beat: lines.join('\n'), requests };
}

/** With a memory saver whoever drives it may take its memory away, and then standing still is right. */
export function sglangLifeSigns({ spec, rank }: MemberOrder): LifeSigns | null {
  if (rank > 0 || spec.args.some(arg => arg.startsWith('--enable-memory'))) return null;
  return {
    metricsPath: '/metrics',
    read: readSglangPulse,
    oneToken: {
      path: '/v1/completions',
      body: { model: spec.served_model_name, prompt: 'a', max_tokens: 1, temperature: 0 },
    },
  };
}
