import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, describe, expect, it } from 'vitest';
import { VLLM_OPTIONS, VLLM_SWITCHES } from '../../agent/engines/vllm-flags.js';
import { alive, chat, endAll, ready, STANDIN, start, until } from './harness.js';

const run = promisify(execFile);

afterEach(endAll);

describe('the command line', () => {
  it('prints its version as vllm does', async () => {
    expect((await run(STANDIN, ['--version'])).stdout).toBe('0.33.0\n');
  });

  it.each([
    [['--frobnicate'], 'vllm: error: unrecognized arguments: --frobnicate'],
    [['--frobnicate', '3', '--enforce-eager'], 'vllm: error: unrecognized arguments: --frobnicate 3'],
    [['--port', 'many'], "vllm serve: error: argument --port: invalid int value: 'many'"],
    [['--max-model-len'], 'vllm serve: error: argument --max-model-len: expected one argument'],
  ])('refuses %j in the words of argparse', async (args, words) => {
    const failed = await run(STANDIN, ['serve', 'm', ...args]).catch(error => error);
    expect(failed.code).toBe(2);
    expect(failed.stderr.trimEnd().split('\n').at(-1)).toBe(words);
  });

  it.each([
    '--max_model_len=8k',
    '--max-model-l=8192',
    '--no-enable-prefix-caching',
    '--compilation-config.level=3',
    '-O3',
  ])('accepts the spelling %s', async flag => {
    const engine = await start({}, { args: [flag] });
    await ready(engine);
  });

  it('knows the flags that the agent knows', async () => {
    const path = '../../dev/standin/flags.mjs';
    const flags = (await import(/* @vite-ignore */ path)) as Record<string, string[]>;
    expect(new Set(VLLM_SWITCHES)).toEqual(new Set(flags.SWITCHES));
    expect(new Set(VLLM_OPTIONS)).toEqual(new Set([...flags.LISTS!, ...flags.OPTIONAL!, ...flags.VALUES!]));
  });

  it('refuses a misspelt knob', async () => {
    const engine = await start({ LOADMS: 5 });
    expect(await engine.ended).toEqual({ code: 2, signal: null });
    await until(() => engine.log().includes('LLMGW_STANDIN_LOADMS is no knob'));
  });
});

describe('loading', () => {
  it('says first that it is a stand-in, then what vLLM says in its order', async () => {
    const engine = await start();
    await ready(engine);
    const log = engine.log();
    expect(log.split('\n')[0]).toContain('stand-in');
    const landmarks = [
      'Starting to load model',
      'Loading safetensors checkpoint shards: 100%',
      'Loading weights took',
      'Available KV cache memory:',
      'Graph capturing finished in',
      'Starting vLLM server on http://127.0.0.1:',
      'Available routes are:',
      'Application startup complete.',
      'Uvicorn running on',
    ];
    const at = landmarks.map(text => log.indexOf(text));
    expect(at.every(place => place >= 0)).toBe(true);
    expect(at).toEqual([...at].sort((a, b) => a - b));
  });

  it('refuses connections until it is ready', async () => {
    const engine = await start({ LOAD_MS: 60_000 });
    await until(() => engine.log().includes('Initializing'));
    await expect(fetch(`${engine.url}/health`)).rejects.toThrow();
  });

  it('is ended by SIGINT when SIGTERM comes while it loads', async () => {
    const engine = await start({ LOAD_MS: 60_000 });
    await until(() => engine.log().includes('Initializing'));
    engine.child.kill('SIGTERM');
    expect(await engine.ended).toEqual({ code: null, signal: 'SIGINT' });
  });

  it.each([
    ['oom', 1, 'CUDA out of memory'],
    ['refused_flag', 2, 'unrecognized arguments'],
    ['exit0', 0, 'engine core exited unexpectedly'],
  ])('fails as told: %s', async (FAIL, code, words) => {
    const engine = await start({ FAIL });
    expect((await engine.ended).code).toBe(code);
    await until(() => engine.log().includes(words));
  });

  it('repeats the stall line of a load that hangs', async () => {
    const engine = await start({ HANG_LOAD: 5 });
    await until(() => engine.log().split('No available shared memory broadcast block').length > 3);
    await expect(fetch(`${engine.url}/health`)).rejects.toThrow();
  });

  it('finds a port that is taken before it loads', async () => {
    const first = await start();
    await ready(first);
    const second = await start({ LOAD_MS: 60_000 }, { args: ['--port', String(first.port)] });
    expect((await second.ended).code).toBe(1);
    await until(() => second.log().includes('[Errno 98]'));
  });

  it('refuses more GPUs than it sees', async () => {
    const engine = await start({}, { args: ['-tp', '4'], env: { CUDA_VISIBLE_DEVICES: '0,1' } });
    expect((await engine.ended).code).toBe(1);
    await until(() =>
      engine.log().includes('World size (4) is larger than the number of available GPUs (2)'),
    );
  });
});

describe('serving', () => {
  it('lists all served names', async () => {
    const engine = await start();
    await ready(engine);
    const models = (await (await fetch(`${engine.url}/v1/models`)).json()) as { data: { id: string }[] };
    expect(models.data.map(model => model.id)).toEqual(['qwen3-8b', 'alias']);
  });

  it('answers a chat whole, with usage', async () => {
    const engine = await start();
    await ready(engine);
    expect(await (await chat(engine, { max_tokens: 3 })).json()).toMatchObject({
      choices: [
        {
          message: { role: 'assistant', content: 'The stand in', tool_calls: [] },
          finish_reason: 'length',
        },
      ],
      usage: { prompt_tokens: 2, completion_tokens: 3, total_tokens: 5 },
    });
  });

  it('streams a role, the tokens, a trailing usage chunk and [DONE]', async () => {
    const engine = await start();
    await ready(engine);
    const response = await chat(engine, {
      stream: true,
      max_tokens: 2,
      stream_options: { include_usage: true },
    });
    expect(response.headers.get('content-type')).toContain('text/event-stream');
    const events = (await response.text())
      .trim()
      .split('\n\n')
      .map(event => event.slice('data: '.length));
    expect(events.at(-1)).toBe('[DONE]');
    const chunks = events.slice(0, -1).map(event => JSON.parse(event));
    expect(chunks.map(chunk => chunk.choices[0]?.delta)).toEqual([
      { role: 'assistant', content: '' },
      { content: 'The' },
      { content: ' stand' },
      undefined,
    ]);
    expect(chunks.at(-2).choices[0].finish_reason).toBe('length');
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: 2 } });
  });

  it('asks for the key on /v1 only', async () => {
    const engine = await start({}, { env: { VLLM_API_KEY: 'k' } });
    await ready(engine);
    const refused = await chat(engine, {});
    expect([refused.status, await refused.json()]).toEqual([401, { error: 'Unauthorized' }]);
    expect((await chat(engine, {}, { headers: { authorization: 'Bearer k' } })).status).toBe(200);
    expect((await fetch(`${engine.url}/metrics`)).status).toBe(200);
  });

  it.each([
    [{ model: 'other' }, 404, 'NotFoundError'],
    [{ max_tokens: 1_000_000 }, 400, 'BadRequestError'],
    [{ messages: [] }, 400, 'BadRequestError'],
  ])('refuses %j as vLLM does', async (body, status, type) => {
    const engine = await start();
    await ready(engine);
    const response = await chat(engine, body);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ error: { type, code: status } });
  });

  it('counts a request as running until its client has gone', async () => {
    const engine = await start({ TOKEN_MS: 60_000 });
    await ready(engine);
    const running = async (): Promise<number> => {
      const text = await (await fetch(`${engine.url}/metrics`)).text();
      return Number(/^vllm:num_requests_running\{.*\} (.*)$/m.exec(text)?.[1]);
    };
    const client = new AbortController();
    await chat(engine, { stream: true }, { signal: client.signal });
    expect(await running()).toBe(1);
    client.abort();
    await until(async () => (await running()) === 0);
  });

  it('dies with its engine core and exits 0, unless told another code', async () => {
    const engine = await start({ EXIT_AFTER_MS: 0 });
    expect((await engine.ended).code).toBe(0);
    await until(() => engine.log().includes('EngineDeadError'));
    const other = await start({ EXIT_AFTER_MS: 0, EXIT_CODE: 7 });
    expect((await other.ended).code).toBe(7);
  });
});

describe('a core that hangs', () => {
  it('says 200 on /health, gives no token, moves no figure, and goes on where it stopped', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'llmgw-hang-'));
    const file = join(dir, 'hang');
    const engine = await start({ TOKEN_MS: 2, HANG_FILE: file });
    await ready(engine);
    const figures = async () => (await fetch(`${engine.url}/metrics`)).text();
    const answer = await chat(engine, { stream: true, max_tokens: 200 });
    const reader = answer.body!.getReader();
    let text = Buffer.from((await reader.read()).value!).toString();
    writeFileSync(file, '');
    const hung = await figures();
    expect((await fetch(`${engine.url}/health`)).status).toBe(200);
    const leave = new AbortController();
    const late = chat(engine, { max_tokens: 1 }, { signal: leave.signal }).then(
      r => r.status,
      () => 'left',
    );
    expect(await figures()).toBe(hung);
    expect(hung).toMatch(/^vllm:num_requests_running\S* 1\.0$/m);
    leave.abort();
    expect(await late).toBe('left');
    expect(await figures()).toBe(hung);
    rmSync(dir, { recursive: true });
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      text += Buffer.from(part.value).toString();
    }
    expect(text).toContain('[DONE]');
    expect(await figures()).not.toBe(hung);
  });
});

describe('SIGTERM', () => {
  it('ends it with 0 and the shutdown lines; an open stream is ended', async () => {
    const engine = await start({ TOKEN_MS: 60_000 });
    await ready(engine);
    const response = await chat(engine, { stream: true });
    engine.child.kill('SIGTERM');
    expect(await engine.ended).toEqual({ code: 0, signal: null });
    expect(await response.text()).toContain('"finish_reason":"abort"');
    await until(() => engine.log().includes('Application shutdown complete.'));
    expect(engine.log()).toContain('[shutdown] API server: stopping engine client mode=abort timeout=0s');
  });

  it('lets a running request finish within --shutdown-timeout', async () => {
    const engine = await start({ TOKEN_MS: 20, TOKENS: 10 }, { args: ['--shutdown-timeout', '20'] });
    await ready(engine);
    const response = await chat(engine, { stream: true });
    engine.child.kill('SIGTERM');
    expect(await response.text()).toContain('"finish_reason":"stop"');
    expect((await engine.ended).code).toBe(0);
  });

  it('never ends it while a stream is open, when the knob says so', async () => {
    const engine = await start({ TOKEN_MS: 60_000, NEVER_END_ON_TERM: 1 });
    await ready(engine);
    const client = new AbortController();
    await chat(engine, { stream: true }, { signal: client.signal });
    engine.child.kill('SIGTERM');
    await until(async () => (await fetch(`${engine.url}/health`).catch(() => null)) === null);
    expect(alive(engine.child.pid!)).toBe(true);
    client.abort();
    expect((await engine.ended).code).toBe(0);
  });
});

describe('GPUs', () => {
  it('registers itself and the children that outlive it', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'llmgw-gpus-'));
    const engine = await start(
      { GPU_DIR: dir, CHILDREN: 1, CHILDREN_SETSID: 1 },
      { env: { CUDA_VISIBLE_DEVICES: 'GPU-a,GPU-b' } },
    );
    await ready(engine);
    const entries = readdirSync(dir).map(name => JSON.parse(readFileSync(join(dir, name), 'utf8')));
    expect(entries).toHaveLength(2);
    expect(entries.every(entry => entry.used_mib === 60_000 && entry.gpus.join() === 'GPU-a,GPU-b')).toBe(
      true,
    );
    const child = entries.find(entry => entry.pid !== engine.child.pid).pid as number;
    engine.child.kill('SIGTERM');
    expect((await engine.ended).code).toBe(0);
    expect(readdirSync(dir)).toEqual([`${child}.json`]);
    process.kill(child, 'SIGTERM');
    expect(alive(child)).toBe(true);
    process.kill(child, 'SIGKILL');
    rmSync(dir, { recursive: true });
  });
});
