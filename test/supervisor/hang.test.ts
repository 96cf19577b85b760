// A ready engine that hangs while its /health says 200, and ones that only look like it. The stand-in engine with the
// real renderer: its file makes it hang as a stopped core does.
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { renderer } from '../../agent/engines/index.js';
import type { SupervisorOptions } from '../../agent/supervisor/types.js';
import { cleanUp, makeNode, never, orderFor, treePids, uniqueName, until } from './harness.js';

afterEach(cleanUp);

const bin = path.resolve(import.meta.dirname, '../../bin/llmgw-standin-vllm.mjs');
const KEY = 'e'.repeat(64);

async function ready(env: Record<string, string> = {}, change: Partial<SupervisorOptions> = {}) {
  const node = makeNode();
  const hang = path.join(node.workDir, 'hang');
  const options: Partial<SupervisorOptions> = {
    engines: {
      preflight: async () => ({
        engine: { name: 'vllm', type: 'vllm', bin, version: '0.33.0', launch_mode: 'mp' },
        secretEnv: {},
      }),
      renderer,
    },
    secrets: { engineKey: async () => ({ key: KEY, key_id: '0' }), envFromFiles: async () => ({}) },
    healthIntervalMs: 50,
    hangTimeoutMs: 1_200,
    ...change,
  };
  const s = await node.supervisor(options);
  const order = orderFor(uniqueName(), { slots: [], env: { ...env, LLMGW_STANDIN_HANG_FILE: hang } });
  const { pid, ports } = await s.launch(order);
  expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
  const url = `http://127.0.0.1:${ports.http}`;
  return {
    node,
    s,
    order,
    pid,
    url,
    options,
    hangs: () => writeFileSync(hang, ''),
  };
}

const ask = (url: string, tokens: number, signal?: AbortSignal) =>
  fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${KEY}` },
    body: JSON.stringify({ model: 'fake-model', prompt: 'a', max_tokens: tokens, stream: true }),
    ...(signal === undefined ? {} : { signal }),
  });

const generated = async (url: string): Promise<number> => {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(/^vllm:generation_tokens_total\S* (\S+)/m.exec(text)![1]);
};

describe('a ready engine whose core hangs while /health says 200', () => {
  it('is told as hung, with evidence, and left to its order', async () => {
    const { s, order, pid, url, hangs } = await ready();
    hangs();
    const [event] = await until(() => s.pending().length > 0 && s.pending());
    expect(event).toMatchObject({
      requested: false,
      failure: { code: 'ENGINE_HUNG', class: 'retry', exit: null, evidence: expect.any(String) },
    });
    expect(event!.failure.sentence).toContain('answered none of 3 requests for one token');
    expect((await fetch(`${url}/health`)).status).toBe(200);
    expect(s.inspect({ ...order, reason: 'test' })).toMatchObject({ alive: true, pid });
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ leaked: [] });
    expect(s.pending()).toEqual([event]);
  });

  it('is found with requests at work, and stopped though its SIGTERM never ends while a stream is open', async () => {
    const { node, s, order, url, hangs } = await ready({
      LLMGW_STANDIN_TOKEN_MS: '5',
      LLMGW_STANDIN_NEVER_END_ON_TERM: '1',
    });
    const stream = await ask(url, 100_000 / 5);
    const reader = stream.body!.getReader();
    await reader.read();
    hangs();
    const [event] = await until(() => s.pending().length > 0 && s.pending());
    expect(event!.failure.code).toBe('ENGINE_HUNG');
    await s.stop({ ...order, reason: 'test' });
    expect(treePids(node.workDir)).toEqual([]);
    await reader.cancel().catch(() => {});
  });

  it('is found by an agent that adopted it, with the key read anew', async () => {
    const { node, s, options, hangs } = await ready();
    s.close();
    hangs();
    const next = await node.supervisor(options);
    const [event] = await until(() => next.pending().length > 0 && next.pending());
    expect(event!.failure.code).toBe('ENGINE_HUNG');
  });

  it('is found as a process that was stopped altogether too, and the sentence names its state', async () => {
    const { s, pid } = await ready();
    process.kill(pid, 'SIGSTOP');
    const [event] = await until(() => s.pending().length > 0 && s.pending());
    expect(event!.failure).toMatchObject({ code: 'ENGINE_HUNG' });
    expect(event!.failure.sentence).toMatch(new RegExp(`pid ${pid} .* is in state T`));
  });
});

it('an engine that is idle is asked for a token now and then, with its own key, and stays', async () => {
  const { s, url } = await ready({}, { hangTimeoutMs: 3_000 });
  let tokens = 0;
  while (tokens < 3) tokens = await generated(url);
  expect(s.pending()).toEqual([]);
  expect(s.reports()).toMatchObject([{ state: 'ready' }]);
});

it('an engine that is slow and busy is never asked', async () => {
  const { s, url } = await ready({ LLMGW_STANDIN_TOKEN_MS: '40' }, { hangTimeoutMs: 4_000 });
  const end = new AbortController();
  const stream = await ask(url, 20_000, end.signal);
  const reader = stream.body!.getReader();
  let got = '';
  while ((got.match(/^data: /gm) ?? []).length < 60)
    got += Buffer.from((await reader.read()).value!).toString();
  const log = await s.tail(s.reports()[0]!.replica, { lines: 1_000 });
  end.abort();
  expect(log.filter(line => line.includes('POST /v1/completions'))).toEqual([]);
  expect(s.pending()).toEqual([]);
});
