import http from 'node:http';
import net from 'node:net';
import { describe, expect, it, vi } from 'vitest';
import { FakeEngine, plainAnswer, RawEngine, statusAnswer } from '../fakes/router-engine.js';
import { backend, call, cleanup, errorOf, startRouter, using } from './harness.js';

const STREAM = '{"model":"m","stream":true}';
const metric = async (port: number, line: string) => {
  const text = (await call(port, { method: 'GET', path: '/metrics' })).body.toString();
  return Number(
    text
      .split('\n')
      .find(l => l.startsWith(line))
      ?.slice(line.length) ?? 0,
  );
};
/** Nothing ever listens on port 1. A port that was free a moment ago may be another test's engine by now. */
const DEAD = 'http://127.0.0.1:1';

describe('a client that leaves', () => {
  it('before the first token ends the request at the engine, and it is not sent again (router-01)', async () => {
    const engine = await using(FakeEngine.start());
    const other = await using(FakeEngine.start());
    engine.answer = () => {};
    other.answer = () => {};
    const router = await startRouter({ backends: [backend(engine.url), backend(other.url)] });
    let request: http.ClientRequest | undefined;
    const reply = call(router.port, {
      body: STREAM,
      onRequest: req => {
        request = req;
      },
    }).catch(() => 'gone');
    const seen = () => [...engine.seen, ...other.seen];
    await vi.waitFor(() => expect(seen()).toHaveLength(1));
    request!.destroy();
    expect(await reply).toBe('gone');
    await vi.waitFor(() => expect(seen()[0]!.aborted).toBe(true));
    await vi.waitFor(async () =>
      expect(await metric(router.port, 'llmgw_router_requests_total{model="m",code="499"} ')).toBe(1),
    );
    const { body } = await call(router.port, { method: 'GET', path: '/metrics' });
    expect(
      body
        .toString()
        .match(/^llmgw_router_outstanding\{.*\} .*$/gm)
        ?.map(line => line.at(-1)),
    ).toEqual(['0', '0']);
    expect(seen()).toHaveLength(1);
  });

  it('in the middle of a stream ends it at the engine', async () => {
    const engine = await using(FakeEngine.start());
    engine.answer = res => {
      res.writeHead(200, { 'Content-Type': 'text/event-stream' });
      res.write('data: 1\n\n');
    };
    const router = await startRouter({ backends: [backend(engine.url)] });
    const reply = await call(router.port, { body: STREAM, onPart: (_part, req) => req.destroy() });
    expect(reply.complete).toBe(false);
    await vi.waitFor(() => expect(engine.seen[0]!.aborted).toBe(true));
  });

  it('or takes nothing of its answer is held at the engine, then given up, and is no fault of the replica', async () => {
    const engine = await using(FakeEngine.start());
    engine.answer = (res, seen) => {
      // Endless: a router that buffers would never come to a stop.
      const pump = () => {
        while (!seen.aborted && res.write(Buffer.alloc(256 * 1024)));
      };
      res.writeHead(200, { 'Content-Type': 'text/event-stream' });
      res.on('drain', pump);
      pump();
    };
    const router = await startRouter({ backends: [backend(engine.url)], timeouts: { idle: '200ms' } });
    const socket = net.connect(router.port, '127.0.0.1');
    cleanup(() => socket.destroy());
    socket.on('error', () => {});
    const head = `POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${STREAM.length}`;
    socket.write(`${head}\r\n\r\n${STREAM}`);
    await vi.waitFor(() => expect(engine.seen[0]?.aborted).toBe(true), { timeout: 10_000 });
    expect(await metric(router.port, 'llmgw_router_requests_total{model="m",code="499"} ')).toBe(1);
    expect(await metric(router.port, 'llmgw_router_ejections_total')).toBe(0);
  });

  it('while it waits for a replica frees its place', async () => {
    const router = await startRouter({ backends: [backend(DEAD)] }, { queueLength: 1 });
    const requests: http.ClientRequest[] = [];
    const onRequest = (req: http.ClientRequest) => void requests.push(req);
    const waiting = call(router.port, { onRequest }).catch(() => 'gone');
    const queued = () => metric(router.port, 'llmgw_router_queued{model="m"} ');
    await vi.waitFor(async () => expect(await queued()).toBe(1));
    const refused = await call(router.port);
    expect(refused.status).toBe(429);
    expect(refused.headers['retry-after']).toBe('1');
    expect(errorOf(refused)).toMatchObject({ type: 'rate_limit_error', code: 'queue_full' });
    requests[0]!.destroy();
    expect(await waiting).toBe('gone');
    await vi.waitFor(async () => expect(await queued()).toBe(0));
  });
});

describe('before the first byte', () => {
  it('a refused connection sends the request to another replica and leaves the dead one alone', async () => {
    const engine = await using(FakeEngine.start());
    const router = await startRouter({ backends: [backend(DEAD), backend(engine.url)] });
    for (let i = 0; i < 6; i++) expect((await call(router.port)).status).toBe(200);
    expect(engine.seen).toHaveLength(6);
    expect(await metric(router.port, 'llmgw_router_ejections_total{reason="connect"} ')).toBeGreaterThan(0);
  });

  it('an engine that dies at work loses no request: another one gets it, once', async () => {
    const dying = await using(RawEngine.start(socket => socket.resetAndDestroy()));
    const engine = await using(FakeEngine.start());
    const router = await startRouter({ backends: [backend(dying.url), backend(engine.url)] });
    for (let i = 0; i < 4; i++) expect((await call(router.port)).status).toBe(200);
    expect(dying.requests).toBeGreaterThan(0);
    expect(engine.seen).toHaveLength(4);
  });

  it('a request that kills engines stops at the second', async () => {
    const engines = await Promise.all(
      [0, 1, 2, 3].map(() => using(RawEngine.start(socket => socket.resetAndDestroy()))),
    );
    const router = await startRouter({ backends: engines.map(e => backend(e.url)) });
    const reply = await call(router.port);
    expect(reply.status).toBe(502);
    expect(errorOf(reply)).toMatchObject({ type: 'upstream_error', code: 'upstream_error' });
    expect(engines.reduce((n, e) => n + e.requests, 0)).toBe(2);
  });

  it('a 503 goes to another replica where there is one, and is passed on as it is where there is none', async () => {
    const starting = await using(FakeEngine.start());
    const engine = await using(FakeEngine.start());
    starting.answer = statusAnswer(503, 'starting');
    const both = await startRouter({ backends: [backend(starting.url), backend(engine.url)] });
    for (let i = 0; i < 4; i++) expect((await call(both.port)).status).toBe(200);
    expect(starting.seen.length).toBeGreaterThan(0);
    const alone = await startRouter({ backends: [backend(starting.url)] });
    const reply = await call(alone.port);
    expect(reply.status).toBe(503);
    expect(errorOf(reply).message).toBe('starting');
  });

  it('4xx is the engine’s answer: passed on, and no fault', async () => {
    const engine = await using(FakeEngine.start());
    engine.answer = statusAnswer(400, 'too many tokens');
    const router = await startRouter({ backends: [backend(engine.url)] });
    for (let i = 0; i < 4; i++) expect(errorOf(await call(router.port)).message).toBe('too many tokens');
    expect(engine.seen).toHaveLength(4);
  });

  it('an answer that is no HTTP is never passed on', async () => {
    const broken = await using(
      RawEngine.start(socket =>
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n'),
      ),
    );
    const engine = await using(FakeEngine.start());
    const router = await startRouter({ backends: [backend(broken.url), backend(engine.url)] });
    for (let i = 0; i < 4; i++) expect((await call(router.port)).status).toBe(200);
    expect(broken.requests).toBeGreaterThan(0);
  });

  it('no answer in time is 504 and isn’t asked for again', async () => {
    const engine = await using(FakeEngine.start());
    const other = await using(FakeEngine.start());
    engine.answer = () => {};
    other.answer = () => {};
    const router = await startRouter({
      backends: [backend(engine.url), backend(other.url)],
      timeouts: { first_byte: '200ms' },
    });
    const reply = await call(router.port);
    expect(reply.status).toBe(504);
    expect(errorOf(reply).code).toBe('upstream_timeout');
    expect(engine.seen.length + other.seen.length).toBe(1);
  });
});

describe('a kept connection', () => {
  it('that the engine closes under a request costs nobody anything, and is handled exactly once (router-05)', async () => {
    // Every second request on a connection meets its end: the answer to the first was complete, the second gets none.
    let handled = 0;
    const used = new WeakSet<net.Socket>();
    const engine = await using(
      RawEngine.start(socket => {
        if (used.has(socket)) {
          socket.resetAndDestroy();
          return;
        }
        used.add(socket);
        handled++;
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
      }),
    );
    const router = await startRouter({ backends: [backend(engine.url)] });
    for (let i = 0; i < 10; i++) expect((await call(router.port)).status).toBe(200);
    expect(handled).toBe(10);
    expect(engine.requests).toBe(19);
    expect(await metric(router.port, 'llmgw_router_ejections_total')).toBe(0);
  });

  it('with bytes that nobody asked for is thrown away, so that no answer reaches the wrong client', async () => {
    const engine = await using(
      RawEngine.start((socket, _request, count) => {
        socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n${count}`);
        setImmediate(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong'));
      }),
    );
    const router = await startRouter({ backends: [backend(engine.url)] });
    for (let i = 1; i <= 3; i++) expect((await call(router.port)).body.toString()).toBe(String(i));
    expect(engine.connections).toBe(3);
  });
});

describe('an engine that dies in the middle of a stream (router-03)', () => {
  const head = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n';
  const bytes = 'data: {"id":"c1","choices":[{"delta":{"content":"a"}}]}\n\ndata: {"id":"c1","cho';
  const chunk = `${Buffer.byteLength(bytes).toString(16)}\r\n${bytes}\r\n`;

  it('leaves the client with an error event and a broken end, never with [DONE]', async () => {
    const engine = await using(RawEngine.start(socket => socket.write(head + chunk)));
    const other = await using(RawEngine.start(socket => socket.write(head + chunk)));
    const router = await startRouter({ backends: [backend(engine.url), backend(other.url)] });
    const reply = await call(router.port, {
      body: STREAM,
      onPart: () => void Promise.all([engine.kill(), other.kill()]),
    });
    expect(reply.complete).toBe(false);
    const text = reply.body.toString();
    expect(text.startsWith(`${bytes}\n\ndata: `)).toBe(true);
    expect(text).not.toContain('[DONE]');
    const event = JSON.parse(text.slice(bytes.length + 8).trim());
    expect(event.error).toMatchObject({ type: 'upstream_error', code: 'upstream_broke_off' });
    expect(engine.requests + other.requests).toBe(1);
  });

  it('leaves an answer with a length short, without bytes that aren’t the engine’s', async () => {
    const engine = await using(
      RawEngine.start(socket => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf')),
    );
    const router = await startRouter({ backends: [backend(engine.url)] });
    const reply = await call(router.port, { onPart: () => void engine.kill() });
    expect([reply.complete, reply.body.toString()]).toEqual([false, 'half']);
  });

  it('takes an engine that falls silent for one that is gone', async () => {
    const engine = await using(RawEngine.start(socket => socket.write(head + chunk)));
    const router = await startRouter({ backends: [backend(engine.url)], timeouts: { idle: '150ms' } });
    const reply = await call(router.port, { body: STREAM });
    expect(reply.complete).toBe(false);
    expect(reply.body.toString()).toContain('no further byte within 150 ms');
  });
});

describe('the only replica', () => {
  it('restarts without a client noticing: requests wait for it', async () => {
    const first = await FakeEngine.start();
    const router = await startRouter({ backends: [backend(first.url)] });
    expect((await call(router.port)).status).toBe(200);
    await first.kill();
    const waiting = [1, 2, 3].map(() => call(router.port));
    await vi.waitFor(async () =>
      expect(await metric(router.port, 'llmgw_router_queued{model="m"} ')).toBeGreaterThan(0),
    );
    const second = await using(FakeEngine.start(first.port));
    for (const reply of await Promise.all(waiting)) expect(reply.status).toBe(200);
    expect(second.seen).toHaveLength(3);
  });

  it('that doesn’t come back is 429 with Retry-After and the reason', async () => {
    const router = await startRouter({ backends: [backend(DEAD)] }, { queueTimeout: 100 });
    const reply = await call(router.port);
    expect(reply.status).toBe(429);
    expect(reply.headers['retry-after']).toBe('5');
    expect(errorOf(reply).code).toBe('no_replica_ready');
    expect(errorOf(reply).message).toContain('ECONNREFUSED');
  });

  it('that refuses the router’s key is 502 with the key to correct, and the 401 stays here', async () => {
    const engine = await using(FakeEngine.start());
    engine.key = 'another';
    const router = await startRouter({ backends: [backend(engine.url)] });
    const reply = await call(router.port, { headers: { Authorization: 'Bearer another' } });
    expect(reply.status).toBe(502);
    expect(errorOf(reply)).toMatchObject({ code: 'upstream_auth' });
  });
});

describe('stopping', () => {
  const slow = async () => {
    const engine = await using(FakeEngine.start());
    let finish = () => {};
    engine.answer = res => {
      res.writeHead(200, { 'Content-Type': 'text/event-stream' });
      res.write('data: 1\n\n');
      finish = () => res.end('data: [DONE]\n\n');
    };
    return { engine, finish: () => finish() };
  };

  it('lets a stream end, takes no new connection, and is over right after', async () => {
    const { engine, finish } = await slow();
    const stop = new AbortController();
    const router = await startRouter({ backends: [backend(engine.url)] }, { signal: stop.signal });
    const reply = await call(router.port, {
      body: STREAM,
      onPart: part => {
        if (!part.toString().startsWith('data: 1')) return;
        stop.abort();
        setImmediate(finish);
      },
    });
    expect([reply.complete, reply.body.toString()]).toEqual([true, 'data: 1\n\ndata: [DONE]\n\n']);
    await router.closed;
    await expect(call(router.port)).rejects.toThrow('ECONNREFUSED');
  });

  it('cuts off what has not ended within timeouts.shutdown', async () => {
    const { engine } = await slow();
    const router = await startRouter({ backends: [backend(engine.url)], timeouts: { shutdown: '100ms' } });
    const reply = await call(router.port, { body: STREAM, onPart: () => void router.close() });
    expect(reply.complete).toBe(false);
    await router.closed;
    await vi.waitFor(() => expect(engine.seen[0]!.aborted).toBe(true));
  });

  it('is over at once when it is idle, kept connections or not', async () => {
    const engine = await using(FakeEngine.start());
    const router = await startRouter({ backends: [backend(engine.url)], timeouts: { shutdown: '1h' } });
    const agent = new http.Agent({ keepAlive: true });
    cleanup(() => agent.destroy());
    engine.answer = plainAnswer;
    await call(router.port, { agent });
    await router.close();
  });
});
