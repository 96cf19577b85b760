import fs, { readFileSync } from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { gzipSync } from 'node:zlib';
import { describe, expect, it, vi } from 'vitest';
import { parse } from 'yaml';
import { FakeEngine, RawEngine } from '../fakes/router-engine.js';
import { backend, call, cleanup, errorOf, raw, startRouter, tempDir, using } from './harness.js';

const caseOf = (name: string) =>
  parse(readFileSync(path.join(import.meta.dirname, '../cases', `${name}.yaml`), 'utf8'));

async function withEngine(more: Record<string, unknown> = {}) {
  const engine = await using(FakeEngine.start());
  const router = await startRouter({ backends: [backend(engine.url)], ...more });
  return { engine, router };
}

describe('a request', () => {
  it('reaches the engine byte for byte, unknown fields, odd spacing and query included', async () => {
    const { engine, router } = await withEngine();
    const body = '{ "zz":1e3 , "model":"m","user":"\\u00e9 \ud83d\ude00", "new_field":{"a":[1.0,2]} }\n';
    const reply = await call(router.port, { path: '/v1/embeddings?a=b%20c&d', body });
    expect(reply.status).toBe(200);
    expect(engine.seen[0]).toMatchObject({ method: 'POST', url: '/v1/embeddings?a=b%20c&d' });
    expect(engine.seen[0]!.body.toString()).toBe(body);
  });

  it('keeps end-to-end headers and loses hop-by-hop ones and the client’s credentials', async () => {
    const { engine, router } = await withEngine();
    const headers = {
      'X-Custom': 'Kept As Is',
      traceparent: '00-1-2-01',
      Connection: 'keep-alive, X-Hop',
      'X-Hop': '1',
      TE: 'trailers',
      'Proxy-Authorization': 'Basic x',
      Authorization: 'Bearer client-secret',
      'X-Api-Key': 'client-secret',
      'X-Request-Id': 'abc',
      Expect: '100-continue',
    };
    await call(router.port, { headers });
    const seen = engine.seen[0]!;
    expect(seen.rawHeaders).toEqual(expect.arrayContaining(['X-Custom', 'Kept As Is', 'traceparent']));
    expect(seen.headers).toMatchObject({ host: `127.0.0.1:${engine.port}`, 'x-request-id': 'abc' });
    expect(seen.rawHeaders.join('\n')).not.toMatch(/client-secret|x-hop|trailers|proxy-|expect/i);
  });

  it('carries the client’s Authorization where forward_auth says so, and api_key_file’s key where that is set', async () => {
    const engine = await using(FakeEngine.start());
    engine.key = 'client-key';
    const forwarding = await startRouter({ backends: [backend(engine.url, { forward_auth: true })] });
    const headers = { Authorization: 'Bearer client-key' };
    expect((await call(forwarding.port, { headers })).status).toBe(200);
    expect((await call(forwarding.port)).status).toBe(401);

    const file = path.join(tempDir(), 'key');
    fs.writeFileSync(file, 'backend-key\n');
    engine.key = 'backend-key';
    const own = await startRouter({ backends: [backend(engine.url, { api_key_file: file })] });
    expect((await call(own.port, { headers })).status).toBe(200);
  });

  it('goes below the path of the backend’s URL, with or without its /v1', async () => {
    const engine = await using(FakeEngine.start());
    for (const [suffix, url] of [
      ['/base', '/base/v1/chat/completions'],
      ['/base/v1/', '/base/v1/chat/completions'],
      ['/', '/v1/chat/completions'],
    ]) {
      const router = await startRouter({ backends: [backend(engine.url + suffix)] });
      await call(router.port);
      expect(engine.seen.at(-1)!.url).toBe(url);
    }
  });
});

describe('an answer', () => {
  it('comes back byte for byte: status, reason, doubled headers, compressed body', async () => {
    const { engine, router } = await withEngine();
    const zipped = gzipSync('{"a":1}');
    engine.answer = res => {
      res.writeHead(418, 'Short and stout', [
        'Content-Type', 'application/json',
        'Content-Encoding', 'gzip',
        'Content-Length', String(zipped.length),
        'Set-Cookie', 'a=1',
        'Set-Cookie', 'b=2',
        'X-Latin', 'caf\xe9',
        'X-Hop', '1',
        'Connection', 'X-Hop',
      ]); // biome-ignore format: pairs
      res.end(zipped);
    };
    const reply = await call(router.port, { headers: { 'Accept-Encoding': 'gzip, br' } });
    expect([reply.status, reply.reason]).toEqual([418, 'Short and stout']);
    expect(reply.body.equals(zipped)).toBe(true);
    expect(reply.headers).toMatchObject({
      'content-encoding': 'gzip',
      'content-length': String(zipped.length),
      'set-cookie': ['a=1', 'b=2'],
      'x-latin': 'caf\xe9',
    });
    expect(reply.headers['x-hop']).toBeUndefined();
    expect(reply.headers['x-request-id']).toMatch(/^[0-9a-f-]{36}$/);
  });

  it('streams: each event reaches the client before the engine sends the next', async () => {
    const { engine, router } = await withEngine();
    const events = ['a', 'b', 'c'].map(x => `data: {"choices":[{"delta":{"content":"${x}"}}]}\n\n`);
    const next: (() => void)[] = [];
    engine.answer = async res => {
      res.writeHead(200, { 'Content-Type': 'text/event-stream' });
      res.flushHeaders();
      for (const event of [...events, 'data: [DONE]\n\n']) {
        await new Promise<void>(resolve => next.push(resolve));
        res.write(event);
      }
      res.end();
    };
    const headSeen = vi.fn();
    const parts: string[] = [];
    const reply = call(router.port, {
      body: '{"model":"m","stream":true}',
      // The engine is held until the client has what was sent so far: a buffering router would hang here.
      onPart: part => {
        parts.push(part.toString());
        next.shift()?.();
      },
      onRequest: req => req.on('response', headSeen),
    });
    // The head alone, before any event.
    await vi.waitFor(() => expect(headSeen).toHaveBeenCalled());
    next.shift()!();
    const whole = await reply;
    expect(parts).toEqual([...events, 'data: [DONE]\n\n']);
    expect(whole).toMatchObject({ complete: true, status: 200 });
    expect(whole.headers['content-type']).toBe('text/event-stream');
  });

  it('leaves a trailing usage chunk with empty choices as it is (router-10)', async () => {
    const { engine, router } = await withEngine();
    const tail = `${caseOf('router-10-trailing-usage-chunk').input.upstream_tail.join('\n\n')}\n\n`;
    engine.answer = res => {
      res.writeHead(200, { 'Content-Type': 'text/event-stream' });
      res.end(tail);
    };
    const reply = await call(router.port, { body: '{"model":"m","stream":true}' });
    expect(reply.body.toString()).toBe(tail);
    expect(engine.seen[0]!.body.toString()).toBe('{"model":"m","stream":true}');
  });

  it('passes a 20 KB line and bytes without a Content-Encoding untouched (router-11, router-15)', async () => {
    const { engine, router } = await withEngine();
    const odd = Buffer.concat([Buffer.from([0x1f, 0x8b]), Buffer.from(`data: ${'x'.repeat(20_480)}\n\n`)]);
    engine.answer = res => void res.writeHead(200, { 'Content-Type': 'application/json' }).end(odd);
    expect((await call(router.port)).body.equals(odd)).toBe(true);
  });

  it('has no chunk sizes for an HTTP/1.0 client and ends with the connection (router-15)', async () => {
    const { engine, router } = await withEngine();
    engine.answer = res => {
      res.writeHead(200, { 'Content-Type': 'text/event-stream' });
      res.write('data: 1\n\n');
      res.end('data: [DONE]\n\n');
    };
    const body = '{"model":"m","stream":true}';
    const text = await raw(
      router.port,
      `POST /v1/chat/completions HTTP/1.0\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    expect(text.split('\r\n\r\n')[1]).toBe('data: 1\n\ndata: [DONE]\n\n');
  });

  it('keeps large answers whole when the client reads slowly', async () => {
    const { engine, router } = await withEngine();
    const big = Buffer.alloc(24 * 1024 * 1024, 'abcdefgh');
    engine.answer = res => void res.writeHead(200, { 'Content-Type': 'application/octet-stream' }).end(big);
    const req = http.request({
      host: '127.0.0.1',
      port: router.port,
      method: 'POST',
      path: '/v1/completions',
      agent: false,
    });
    req.end('{"model":"m"}');
    const reply = await new Promise<Buffer>((resolve, reject) => {
      req.on('error', reject);
      req.on('response', res => {
        const parts: Buffer[] = [];
        res.on('data', part => {
          parts.push(part);
          res.pause();
          setImmediate(() => res.resume());
        });
        res.on('end', () => resolve(Buffer.concat(parts)));
      });
    });
    expect(reply.equals(big)).toBe(true);
  });

  it('reuses connections on both sides', async () => {
    const engine = await using(
      RawEngine.start(socket => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')),
    );
    const router = await startRouter({ backends: [backend(engine.url)] });
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    cleanup(() => agent.destroy());
    const sockets = new Set<unknown>();
    for (let i = 0; i < 5; i++) {
      const reply = await call(router.port, {
        agent,
        onRequest: req => req.on('socket', s => sockets.add(s)),
      });
      expect(reply.body.toString()).toBe('ok');
    }
    expect([sockets.size, engine.connections, engine.requests]).toEqual([1, 1, 5]);
  });
});

describe('what the router answers itself', () => {
  it('lists models in OpenAI’s shape, each name once, and one model alone', async () => {
    const a = await using(FakeEngine.start());
    const router = await startRouter({
      backends: [backend(a.url, { models: ['m', 'org/alias'] }), backend(`${a.url}/other`)],
    });
    const list = await call(router.port, { method: 'GET', path: '/v1/models' });
    const { object, data } = JSON.parse(list.body.toString());
    expect(object).toBe('list');
    expect(data.map((m: { id: string; object: string }) => [m.id, m.object])).toEqual([
      ['m', 'model'],
      ['org/alias', 'model'],
    ]);
    const one = await call(router.port, { method: 'GET', path: '/v1/models/org/alias' });
    expect(JSON.parse(one.body.toString()).id).toBe('org/alias');
    expect((await call(router.port, { method: 'GET', path: '/v1/models/nope' })).status).toBe(404);
  });

  it('says 404 with the nearest names for a model that nobody serves', async () => {
    const engine = await using(FakeEngine.start());
    const router = await startRouter({ backends: [backend(engine.url, { models: ['qwen3-8b', 'other'] })] });
    const reply = await call(router.port, { body: '{"model":"qwen3-8"}' });
    expect(reply.status).toBe(404);
    expect(errorOf(reply)).toMatchObject({
      type: 'invalid_request_error',
      code: 'model_not_found',
      param: 'model',
    });
    expect(errorOf(reply).message).toContain('Known: "qwen3-8b"');
    expect(engine.seen).toHaveLength(0);
  });

  it('says health, readiness and metrics with bounded labels', async () => {
    const { router } = await withEngine();
    await call(router.port);
    await call(router.port, { body: '{"model":"made-up-by-a-client"}' });
    const get = async (at: string) => {
      const reply = await call(router.port, { method: 'GET', path: at });
      return [reply.status, reply.body.toString()] as const;
    };
    expect(await get('/healthz')).toEqual([200, 'ok\n']);
    expect(await get('/readyz')).toEqual([200, 'ready\n']);
    const [, metrics] = await get('/metrics');
    expect(metrics).toContain('llmgw_router_requests_total{model="m",code="200"} 1');
    expect(metrics).toContain('llmgw_router_requests_total{model="",code="404"} 1');
    expect(metrics).toContain('llmgw_router_time_to_first_byte_seconds_count{model="m"} 1');
    expect(metrics).not.toContain('made-up');
    for (const line of metrics.trim().split('\n'))
      expect(line).toMatch(/^(# (HELP|TYPE) .+|[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+)$/);
  });
});
