// The operators' API at its edge: who may ask when there are no tokens.
import { expect, it } from 'vitest';
import { silentLogger } from '../../lib/log.js';
import { type HttpDeps, httpApp } from '../../server/http/app.js';

const app = (tokensFile: string | null) =>
  httpApp({
    ready: () => true,
    tokensFile,
    tls: null,
    log: silentLogger(),
    instance: 'cp-1',
  } as unknown as HttpDeps);

it.each([
  [{ host: '127.0.0.1:8080' }, 200],
  [{ host: 'localhost:8080', origin: 'http://localhost:3000' }, 200],
  [{ host: '[::1]:8080' }, 200],
  [{ host: '127.0.0.1:8080', origin: 'http://evil.example' }, 401],
  [{ host: '127.0.0.1:8080', origin: 'null' }, 401],
  [{ host: 'evil.example' }, 401],
])(
  'answers a request with %j by %i without tokens: no page of another site may ask',
  async (headers, status) => {
    const res = await app(null).inject({ method: 'GET', url: '/readyz', headers });
    expect(res.statusCode).toBe(status);
  },
);

it('says with the route table how long ago it was read from the ledger', async () => {
  const deps = {
    ready: () => true,
    tokensFile: null,
    tls: null,
    log: silentLogger(),
    routes: { table: () => ({ version: 3, endpoints: [] }), tableAge: () => 42_900 },
  };
  const res = await httpApp(deps as unknown as HttpDeps).inject({ method: 'GET', url: '/v1/routes' });
  expect(res.json()).toEqual({ version: 3, endpoints: [] });
  expect(res.headers.age).toBe('42');
});
