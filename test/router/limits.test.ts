import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { FakeEngine } from '../fakes/router-engine.js';
import { backend, call, cleanup, errorOf, raw, startRouter, using } from './harness.js';

const caseOf = (name: string) =>
  parse(readFileSync(path.join(import.meta.dirname, '../cases', `${name}.yaml`), 'utf8'));

async function withEngine(more: Record<string, unknown> = {}) {
  const engine = await using(FakeEngine.start());
  const router = await startRouter({ backends: [backend(engine.url)], ...more });
  return { engine, router };
}

const jsonOf = (size: number) => {
  const frame = '{"model":"m","x":""}';
  return `${frame.slice(0, -2)}${'a'.repeat(size - frame.length)}"}`;
};

describe('a large body (router-06)', () => {
  it('of 12 MiB reaches the engine byte for byte', async () => {
    const { engine, router } = await withEngine();
    const body = jsonOf(12 * 1024 * 1024);
    expect((await call(router.port, { body })).status).toBe(200);
    expect(engine.seen[0]!.body.toString() === body).toBe(true);
  });

  it('is refused by its Content-Length before it is read, by one byte, and taken at the limit', async () => {
    const { engine, router } = await withEngine({ max_body: '2KiB' });
    const over = await call(router.port, { body: jsonOf(2049) });
    expect(over.status).toBe(413);
    expect(over.headers['content-type']).toBe('application/json');
    expect(errorOf(over)).toMatchObject({ type: 'invalid_request_error', code: 'request_too_large' });
    expect((await call(router.port, { body: jsonOf(2048) })).status).toBe(200);
    // Announced, and never sent: the answer doesn't wait for it.
    const socket = net.connect(router.port, '127.0.0.1');
    cleanup(() => socket.destroy());
    socket.write('POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 73400320\r\n\r\n');
    const [answer] = await once(socket, 'data');
    expect(String(answer)).toMatch(/^HTTP\/1\.1 413 /);
    expect(String(answer)).toContain('request_too_large');
    expect(engine.seen).toHaveLength(1);
  });

  it('without a length is refused as soon as it passes the limit', async () => {
    const { engine, router } = await withEngine({ max_body: '2KiB' });
    const req = http.request({
      host: '127.0.0.1',
      port: router.port,
      method: 'POST',
      path: '/v1/completions',
      agent: false,
    });
    req.on('error', () => {});
    cleanup(() => req.destroy());
    req.write(jsonOf(4096));
    // Not ended: the rest would never come.
    const [res] = (await once(req, 'response')) as [http.IncomingMessage];
    expect(res.statusCode).toBe(413);
    expect(engine.seen).toHaveLength(0);
  });

  it('is asked for with 100-continue only when it fits', async () => {
    const { router } = await withEngine({ max_body: '2KiB' });
    const expecting = async (size: number) => {
      const headers = { Expect: '100-continue', 'Content-Length': size };
      const req = http.request({
        host: '127.0.0.1',
        port: router.port,
        method: 'POST',
        path: '/v1/completions',
        headers,
        agent: false,
      });
      req.on('error', () => {});
      cleanup(() => req.destroy());
      req.flushHeaders();
      const first = await Promise.race([
        once(req, 'continue').then(() => 'continue'),
        once(req, 'response').then(([res]) => res.statusCode),
      ]);
      if (first !== 'continue') return first;
      req.end(jsonOf(size));
      const [res] = await once(req, 'response');
      return ['continue', res.statusCode];
    };
    expect(await expecting(2048)).toEqual(['continue', 200]);
    expect(await expecting(2049)).toBe(413);
  });
});

describe('ambiguous framing (router-08)', () => {
  const head = 'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n';
  const raws: string[] = [
    caseOf('router-08-cl-te-smuggling').input.raws[0],
    `${head}Content-Length: 5\r\nContent-Length: 6\r\n\r\n{"a":1}`,
    `${head}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n`,
    `${head}Transfer-Encoding: gzip\r\n\r\nabc`,
  ].map(text => text.replaceAll('\\r', '\r').replaceAll('\\n', '\n'));
  it.each(raws.map((text, i) => [i, text] as const))(
    'form %i is refused and ends the connection',
    async (_i, text) => {
      const { engine, router } = await withEngine();
      const answer = await raw(router.port, text);
      expect(answer).toMatch(/^HTTP\/1\.1 400 /);
      expect(answer.match(/HTTP\/1\.1/g)).toHaveLength(1);
      expect(engine.seen).toHaveLength(0);
    },
  );
});

describe('requests that no engine gets', () => {
  it.each([
    ['a body that is not JSON', { body: '{"model":' }, 400, 'invalid_json'],
    ['a body without a model', { body: '{}' }, 400, 'model_required'],
    ['a model that is no name', { body: '{"model":7}' }, 400, 'model_required'],
    ['a list', { body: '[]' }, 400, 'model_required'],
    ['a compressed body', { headers: { 'content-encoding': 'gzip' } }, 415, 'unsupported_content_encoding'],
    ['a path that climbs', { path: '/v1/../sleep' }, 400, 'bad_path'],
    ['a path that climbs in disguise', { path: '/v1/%2e%2e/sleep' }, 400, 'bad_path'],
    ['an escaped slash', { path: '/v1/x%2f..%2fsleep' }, 400, 'bad_path'],
    ['a change of the engine', { path: '/v1/load_lora_adapter' }, 404, 'not_found'],
    ['another path', { path: '/sleep' }, 404, 'not_found'],
    ['a PUT', { method: 'PUT', path: '/v1/chat/completions' }, 405, 'method_not_allowed'],
    ['a TRACE', { method: 'TRACE', path: '/v1/models' }, 405, 'method_not_allowed'],
    ['a GET of a generation', { method: 'GET', path: '/v1/chat/completions' }, 405, 'method_not_allowed'],
    ['a preflight without cors', { method: 'OPTIONS' }, 405, 'method_not_allowed'],
  ])('%s', async (_what, options, status, code) => {
    const { engine, router } = await withEngine();
    const reply = await call(router.port, options);
    expect(reply.status).toBe(status);
    expect(errorOf(reply).code).toBe(code);
    expect(reply.headers['access-control-allow-origin']).toBeUndefined();
    expect(engine.seen).toHaveLength(0);
  });
});

describe('browsers, with cors (router-13)', () => {
  const cors = { origins: ['https://ui.example'], max_age: '10m' };
  const Origin = 'https://ui.example';
  it('get their preflight answered and the header on answers and errors', async () => {
    const { engine, router } = await withEngine({ cors });
    const preflight = await call(router.port, {
      method: 'OPTIONS',
      headers: {
        Origin,
        'Access-Control-Request-Method': 'POST',
        'Access-Control-Request-Headers': 'authorization',
      },
    });
    expect(preflight.status).toBe(204);
    expect(preflight.headers).toMatchObject({
      'access-control-allow-origin': Origin,
      'access-control-allow-headers': 'authorization',
      'access-control-max-age': '600',
    });
    expect(engine.seen).toHaveLength(0);
    for (const body of ['{"model":"m"}', '{"model":"nope"}', '{'])
      expect(
        (await call(router.port, { headers: { Origin }, body })).headers['access-control-allow-origin'],
      ).toBe(Origin);
    const other = await call(router.port, { headers: { Origin: 'https://evil.example' } });
    expect(other.headers['access-control-allow-origin']).toBeUndefined();
  });

  it('HEAD has the headers of GET and no body, and the connection stays usable', async () => {
    const { router } = await withEngine();
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    cleanup(() => agent.destroy());
    const head = await call(router.port, { method: 'HEAD', path: '/v1/models', agent });
    const get = await call(router.port, { method: 'GET', path: '/v1/models', agent });
    expect([head.status, head.body.length, head.headers['content-length']]).toEqual([
      200,
      0,
      get.headers['content-length'],
    ]);
    expect(get.status).toBe(200);
  });
});

it('cuts off a client that dribbles its request', async () => {
  const { engine, router } = await withEngine({ timeouts: { request: '1s' } });
  const answer = await raw(
    router.port,
    'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{',
  );
  expect(answer).toMatch(/^HTTP\/1\.1 408 /);
  expect(engine.seen).toHaveLength(0);
});

describe('starting', () => {
  const start = (yaml: Record<string, unknown>) =>
    startRouter({ backends: [backend('http://127.0.0.1:9')], ...yaml });
  it('is refused on a port that is taken, naming it', async () => {
    const first = await start({});
    await expect(start({ listen: first.address })).rejects.toThrow(
      `cannot listen on ${first.address}: the port is taken`,
    );
  });
  it('is refused with a key file that has no key', async () => {
    const more = { api_key_file: '/nowhere/key' };
    await expect(start({ backends: [backend('http://127.0.0.1:9', more)] })).rejects.toThrow(
      /^backends\[0\]\.api_key_file: .*\/nowhere\/key/,
    );
  });
});
