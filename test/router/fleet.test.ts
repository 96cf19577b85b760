import fs from 'node:fs';
import path from 'node:path';
import { describe, expect, it, vi } from 'vitest';
import { engineKey, keyId, nodeSecret } from '../../lib/engine-key.js';
import { FakeControlPlane } from '../fakes/router-control-plane.js';
import { FakeEngine, RawEngine } from '../fakes/router-engine.js';
import { call, endpoint, errorOf, startRouter, tempDir, using } from './harness.js';

const QUICK = { backoffBase: 10, backoffMax: 50 };
const MASTER = 'a'.repeat(64);

async function fleet(more: Record<string, unknown> = {}, options = {}) {
  const plane = await using(FakeControlPlane.start());
  const start = (extra: Record<string, unknown> = {}) =>
    startRouter({ server: plane.url, ...more, ...extra }, { tableTimes: QUICK, ...options });
  return { plane, start };
}

const ready = async (port: number) => (await call(port, { method: 'GET', path: '/readyz' })).status === 200;
const models = async (port: number): Promise<string[]> => {
  const reply = await call(port, { method: 'GET', path: '/v1/models' });
  return JSON.parse(reply.body.toString()).data.map((m: { id: string }) => m.id);
};
const keyFile = (text: string): string => {
  const file = path.join(tempDir(), 'engine-master.key');
  fs.writeFileSync(file, text);
  return file;
};

describe('the route table', () => {
  it('is pulled, then watched: a new replica and its aliases serve without a restart', async () => {
    const { plane, start } = await fleet();
    const engine = await using(FakeEngine.start());
    const router = await start();
    await vi.waitFor(() => expect(plane.watching).toBe(1));
    expect(plane.asked.slice(0, 1)).toEqual(['GET /v1/routes']);
    const gang = endpoint(engine.url, { model: 'qwen3-8b', aliases: ['default'], nodes: ['n2'] });
    plane.set([{ ...gang, of_a_newer_build: { x: 1 } } as typeof gang]);
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['qwen3-8b', 'default']));
    expect((await call(router.port, { body: '{"model":"default"}' })).status).toBe(200);
  });

  it('with an address in it that is none serves all the others', async () => {
    const { plane, start } = await fleet();
    const engine = await using(FakeEngine.start());
    plane.set([endpoint('http://[broken', { model: 'x', replica: 'x' }), endpoint(engine.url)]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    expect((await call(router.port)).status).toBe(200);
  });

  it('is watched again after the control plane was away, and nothing is lost meanwhile', async () => {
    const { plane, start } = await fleet();
    const engine = await using(FakeEngine.start());
    plane.set([endpoint(engine.url)]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    await plane.kill();
    expect((await call(router.port)).status).toBe(200);
    const back = await using(FakeControlPlane.start(plane.port));
    back.set([endpoint(engine.url, { model: 'n' })], plane.table.version + 1);
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['n']));
  });

  it('is watched again when the watch falls silent', async () => {
    const { plane, start } = await fleet({}, { tableTimes: { ...QUICK, silence: 50 } });
    await start();
    const watches = () => plane.asked.filter(a => a.includes('watch')).length;
    await vi.waitFor(() => expect(watches()).toBeGreaterThan(2));
  });

  it('of the last run serves when the control plane is away at the start', async () => {
    const { plane, start } = await fleet();
    const engine = await using(FakeEngine.start());
    const state = { state_dir: tempDir() };
    plane.set([endpoint(engine.url)]);
    const first = await start(state);
    await vi.waitFor(async () => expect(await models(first.port)).toEqual(['m']));
    await first.close();
    await plane.kill();
    const second = await start(state);
    expect(await ready(second.port)).toBe(true);
    expect((await call(second.port)).status).toBe(200);
  });

  it('of another control plane, or a damaged one, is not used', async () => {
    const { plane, start } = await fleet();
    const state_dir = tempDir();
    const table = { version: 9, endpoints: [endpoint('http://127.0.0.1:9')] };
    const file = path.join(state_dir, 'routes.json');
    await plane.kill();
    for (const text of [
      '{"format":1,"ser',
      JSON.stringify({ format: 1, server: 'http://127.0.0.1:1', table }),
    ]) {
      fs.writeFileSync(file, text);
      const router = await start({ state_dir });
      expect(await models(router.port)).toEqual([]);
      expect(await ready(router.port)).toBe(false);
      await router.close();
    }
  });

  it('never goes back to an older version', async () => {
    const { plane, start } = await fleet();
    const engine = await using(FakeEngine.start());
    const router = await start();
    plane.set([endpoint(engine.url)], 10);
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    plane.set([endpoint(engine.url, { model: 'old' })], 9);
    plane.set([endpoint(engine.url), endpoint(engine.url, { model: 'new', fence: 2 })], 11);
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m', 'new']));
    plane.set([], 3);
    await vi.waitFor(() => expect(plane.last()?.version).toBe(11));
    expect(await models(router.port)).toEqual(['m', 'new']);
  });

  it('before the first one a request waits instead of being told that its model does not exist', async () => {
    const { plane, start } = await fleet();
    const engine = await using(FakeEngine.start());
    await plane.kill();
    const router = await start();
    const waiting = call(router.port);
    await vi.waitFor(async () => expect(await ready(router.port)).toBe(false));
    const back = await using(FakeControlPlane.start(plane.port));
    back.set([endpoint(engine.url)]);
    expect((await waiting).status).toBe(200);
  });
});

describe('a replica of the fleet', () => {
  it('that crashes is replaced under its requests: the one at work and those that come in between', async () => {
    const { plane, start } = await fleet();
    const dying = await using(RawEngine.start(() => {}));
    plane.set([endpoint(dying.url, { fence: 1 })]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    const atWork = call(router.port);
    await vi.waitFor(() => expect(dying.requests).toBe(1));
    await dying.kill();
    plane.set([]);
    await vi.waitFor(async () => expect(await models(router.port)).toEqual([]));
    const between = call(router.port);
    await vi.waitFor(() => expect(plane.last()?.version).toBe(plane.table.version));
    const next = await using(FakeEngine.start());
    plane.set([endpoint(next.url, { fence: 2 })]);
    expect([(await atWork).status, (await between).status]).toEqual([200, 200]);
    expect(next.seen).toHaveLength(2);
  });

  it('that drains gets nothing new; what it has ends, and its end is reported at once', async () => {
    const { plane, start } = await fleet({}, { reportInterval: 3_600_000 });
    const old = await using(FakeEngine.start());
    const young = await using(FakeEngine.start());
    let finish = () => {};
    old.answer = res => {
      res.writeHead(200, { 'Content-Type': 'text/event-stream' });
      res.write('data: 1\n\n');
      finish = () => res.end('data: [DONE]\n\n');
    };
    plane.set([endpoint(old.url, { replica: 'old' })]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    const stream = call(router.port);
    await vi.waitFor(() => expect(old.seen).toHaveLength(1));
    plane.set([
      endpoint(old.url, { replica: 'old', state: 'draining' }),
      endpoint(young.url, { replica: 'young' }),
    ]);
    const reported = (replica: string) => plane.last()?.endpoints.find(e => e.replica === replica);
    await vi.waitFor(() => {
      expect(plane.last()?.version).toBe(plane.table.version);
      expect(reported('old')).toMatchObject({ outstanding: 1 });
    });
    for (let i = 0; i < 4; i++) expect((await call(router.port)).status).toBe(200);
    expect([old.seen.length, young.seen.length]).toEqual([1, 4]);
    // Out of the table it is still reported for as long as it has a request.
    plane.set([endpoint(young.url, { replica: 'young' })]);
    await vi.waitFor(() => expect(plane.last()?.version).toBe(plane.table.version));
    expect(reported('old')).toMatchObject({ outstanding: 1, fence: 1 });
    const before = plane.reports.length;
    finish();
    expect((await stream).body.toString()).toBe('data: 1\n\ndata: [DONE]\n\n');
    await vi.waitFor(() => expect(plane.reports.length).toBeGreaterThan(before));
    expect(reported('old')).toBeUndefined();
    expect(reported('young')).toMatchObject({ outstanding: 0, ok: 4, failed: 0 });
    expect(Date.parse(reported('young')!.last_success!)).not.toBeNaN();
  });

  it('whose only endpoint drains has its requests wait for the next generation', async () => {
    const { plane, start } = await fleet();
    const engine = await using(FakeEngine.start());
    plane.set([endpoint(engine.url, { state: 'draining' })]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    const waiting = call(router.port);
    await vi.waitFor(() => expect(plane.last()?.queued).toEqual({ m: 1 }), { timeout: 10_000 });
    plane.set([]);
    plane.set([endpoint(engine.url, { fence: 2 })]);
    expect((await waiting).status).toBe(200);
  });
});

describe('engines’ own keys', () => {
  const spec = (url: string, fence: number) =>
    endpoint(url, {
      fence,
      node: 'gpu-a-01',
      auth: 'derived',
      key_id: keyId(nodeSecret(MASTER, 'gpu-a-01')),
    });
  const keyOf = (fence: number) => engineKey(nodeSecret(MASTER, 'gpu-a-01'), 'demo', fence);

  it('are derived from the master that the route names, the current or the one before', async () => {
    const { plane, start } = await fleet({ master_secret_file: keyFile(`${'b'.repeat(64)}\n${MASTER}\n`) });
    const engine = await using(FakeEngine.start());
    engine.key = keyOf(7);
    plane.set([spec(engine.url, 7)]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    const reply = await call(router.port, { headers: { Authorization: 'Bearer of-the-client' } });
    expect(reply.status).toBe(200);
    expect(engine.seen[0]!.headers.authorization).toBe(`Bearer ${keyOf(7)}`);
  });

  it('refused with 401 mean a stale route: the request waits for the right one, the client never sees it', async () => {
    const { plane, start } = await fleet({ master_secret_file: keyFile(`${MASTER}\n`) });
    const stranger = await using(FakeEngine.start());
    stranger.key = keyOf(8);
    plane.set([spec(stranger.url, 7)]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    const waiting = call(router.port);
    await vi.waitFor(() => expect(stranger.seen).toHaveLength(1));
    plane.set([spec(stranger.url, 8)]);
    expect((await waiting).status).toBe(200);
    expect(stranger.seen).toHaveLength(2);
  });

  it('that can’t be derived here are said, and nothing goes to the engine without one', async () => {
    const { plane, start } = await fleet({}, { queueTimeout: 100 });
    const engine = await using(FakeEngine.start());
    plane.set([spec(engine.url, 7)]);
    const router = await start();
    await vi.waitFor(async () => expect(await models(router.port)).toEqual(['m']));
    const reply = await call(router.port);
    expect(reply.status).toBe(429);
    expect(errorOf(reply).message).toContain('master_secret_file');
    expect(engine.seen).toHaveLength(0);
  });

  it('of a file that holds none stop the start, with the file named', async () => {
    const { start } = await fleet({ master_secret_file: keyFile('hello') });
    await expect(start()).rejects.toThrow(
      /^master_secret_file: .*engine-master\.key: expected one or two lines/,
    );
  });
});

it('reports under the same id after a restart', async () => {
  const { plane, start } = await fleet();
  const state = { state_dir: tempDir() };
  for (let i = 0; i < 2; i++) {
    const seen = plane.reports.length;
    const router = await start(state);
    await vi.waitFor(() => expect(plane.reports.length).toBeGreaterThan(seen));
    await router.close();
  }
  expect(new Set(plane.reports.map(r => r.id)).size).toBe(1);
});
