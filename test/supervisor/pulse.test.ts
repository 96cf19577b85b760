// When figures that stand still are a hang, without a clock.
import { describe, expect, it } from 'vitest';
import { renderer } from '../../agent/engines/index.js';
import { type Look, PulseJudge } from '../../agent/supervisor/pulse.js';
import { orderFor } from './harness.js';

const busy = (beat: string): Look => ({ kind: 'pulse', pulse: { beat, requests: 3 } });
const idle = (beat: string): Look => ({ kind: 'pulse', pulse: { beat, requests: 0 } });
const SILENT: Look = { kind: 'silent' };

/** Looks every second for `seconds`; no request for a token is answered: after its time, or at once as `refused`. */
function watch(look: (second: number) => Look, seconds: number, { refused = false } = {}) {
  const judge = new PulseJudge(100_000, 0);
  const asked: number[] = [];
  for (let s = 1; s <= seconds; s++) {
    const next = judge.looked(look(s), s * 1000);
    if (next === 'hung') return { hungAt: s, asked };
    if (next === 'wait') continue;
    asked.push(s);
    const askedAt = s * 1000;
    if (!refused) s += judge.probeMs / 1000;
    judge.asked('none', askedAt, s * 1000);
  }
  return { hungAt: null, asked };
}

describe('an engine whose figures move', () => {
  it('is never asked for a token, however long its queue is', () => {
    expect(watch(s => busy(`step ${s}`), 1_000)).toEqual({ hungAt: null, asked: [] });
  });

  it('lives though no request for a token was answered in a row of three', () => {
    // One step of a long prefill now and then.
    expect(watch(s => busy(`step ${Math.floor(s / 80)}`), 1_000).hungAt).toBeNull();
  });
});

describe('an engine whose figures stand still', () => {
  it('with requests at work is asked three times, a quarter of the time apart, and is hung then', () => {
    expect(watch(() => busy('same'), 1_000)).toEqual({ hungAt: 104, asked: [26, 52, 78] });
  });

  it('is asked less often while it is idle', () => {
    const judge = new PulseJudge(100_000, 0);
    judge.looked(idle('same'), 0);
    const asked: number[] = [];
    for (let s = 1; s <= 100; s++) {
      if (judge.looked(idle('same'), s * 1000) === 'wait') continue;
      asked.push(s);
      judge.asked('token', s * 1000, s * 1000);
    }
    expect(asked).toEqual([34, 68]);
  });

  it('is hung also when it is silent altogether, or refuses connections', () => {
    expect(watch(() => SILENT, 1_000).hungAt).toBe(103);
    expect(watch(() => SILENT, 1_000, { refused: true })).toEqual({ hungAt: 100, asked: [25, 50, 75] });
  });

  it('is not hung as long as it answers one request of three with anything', () => {
    const judge = new PulseJudge(100_000, 0);
    let asked = 0;
    for (let s = 1; s <= 1_000; s++) {
      const next = judge.looked(busy('same'), s * 1000);
      expect(next).not.toBe('hung');
      if (next === 'probe') judge.asked(asked++ % 3 === 2 ? 'other' : 'none', s * 1000, s * 1000);
    }
  });
});

it('an engine without figures is not judged: a hang could not be told from a long queue', () => {
  expect(watch(() => ({ kind: 'unreadable' }), 1_000)).toEqual({ hungAt: null, asked: [] });
});

describe('the figures of a vLLM', () => {
  const signs = renderer('vllm').lifeSigns(orderFor('r'))!;
  const metrics = (more: Record<string, number>) =>
    Object.entries({
      'vllm:num_requests_running{engine="0",model_name="tiny"}': 2,
      'vllm:num_requests_waiting{engine="0",model_name="tiny"}': 1,
      'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"}': 1,
      'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"}': 0.25,
      'vllm:prompt_tokens_total{engine="0",model_name="tiny"}': 10,
      'vllm:generation_tokens_total{engine="0",model_name="tiny"}': 20,
      'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}': 0,
      'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}': 4,
      ...more,
    })
      .map(([name, value]) => `${name} ${value}.0`)
      .join('\n');

  it('count what runs and what waits, once', () => {
    expect(signs.read(metrics({}))?.requests).toBe(3);
  });

  it.each([
    'vllm:generation_tokens_total{engine="0",model_name="tiny"}',
    'vllm:prompt_tokens_total{engine="0",model_name="tiny"}',
    'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"}',
  ])('beat with a step of its core: %s', name => {
    expect(signs.read(metrics({ [name]: 77 }))?.beat).not.toBe(signs.read(metrics({}))?.beat);
  });

  it.each([
    'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}',
    'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}',
  ])('do not beat with what its API process does alone: %s', name => {
    expect(signs.read(metrics({ [name]: 77 }))?.beat).toBe(signs.read(metrics({}))?.beat);
  });

  it('are none with --disable-log-stats, and not looked for where it may be put to sleep', () => {
    expect(signs.read('http_requests_total{handler="/health"} 4.0\n')).toBeNull();
    expect(renderer('vllm').lifeSigns(orderFor('r', { env: { VLLM_SERVER_DEV_MODE: '1' } }))).toBeNull();
  });
});
