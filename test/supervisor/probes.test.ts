// Probes as slow engines need them, and their answers as any program on that port may give them.
import { getEventListeners } from 'node:events';
import net from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import type { EngineRenderer } from '../../agent/engines/types.js';
import { httpStatus } from '../../agent/supervisor/probe.js';
import { cleanUp, fakeRenderer, makeNode, orderFor, uniqueName, until } from './harness.js';

const servers: net.Server[] = [];
afterEach(async () => {
  cleanUp();
  for (const s of servers.splice(0)) await new Promise(resolve => s.close(resolve));
});

it('a health that takes longer than most is waited for as its engine says, once at a time, while the log goes on', async () => {
  // Holds its first answer for longer than the usual probe waits, counts what is asked meanwhile, and prints on.
  const code = `let asked = 0; setInterval(() => console.log('STAGE ' + (asked > 0 ? 'asked' : 'not asked')), 20);
    require('node:http').createServer((q, r) => {
      const answer = () => r.end(JSON.stringify({ data: [{ id: 'asked-' + asked }] }));
      if (q.url !== '/health') return answer();
      asked++;
      setTimeout(answer, 2300);
    }).listen(Number(process.env.FAKE_PORT), '127.0.0.1');`;
  const renderer: EngineRenderer = {
    ...fakeRenderer,
    stage: line => (line.startsWith('STAGE ') ? { stage: line.slice(6), percent: 7, eta_ms: 9 } : null),
    render(input) {
      const plain = fakeRenderer.render(input);
      const probe = { ...plain.probe!, timeoutMs: 25_000, periodMs: 25_000 };
      return { ...plain, argv: [process.execPath, '-e', code], probe };
    },
  };
  const node = makeNode();
  const s = await node.supervisor({ engines: { ...node.options.engines, renderer: () => renderer } });
  const order = orderFor(uniqueName());
  await s.launch(order);
  const seen: string[] = [];
  const ready = s.awaitReady(order, p => void seen.push(p.stage), new AbortController().signal);
  await until(() => seen.includes('asked'));
  // As heartbeats and the workflow get it.
  expect(s.reports()).toMatchObject([{ stage: 'asked', percent: 7, eta_ms: 9 }]);
  expect(await Promise.race([ready, 'not yet'])).toBe('not yet');
  expect(await ready).toMatchObject({ ready: true, model_ids: ['asked-1'] });
});

describe('the status of a GET', () => {
  const never = new AbortController().signal;
  async function serving(answer: (socket: net.Socket) => void): Promise<string> {
    const server = net.createServer(socket => {
      socket.on('error', () => {});
      socket.once('data', () => answer(socket));
    });
    servers.push(server);
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', () => resolve()));
    return `http://127.0.0.1:${(server.address() as net.AddressInfo).port}/health`;
  }

  it('is read from its first bytes, in however many pieces they come, and the rest isn’t waited for', async () => {
    const url = await serving(socket => {
      socket.write('HTTP/1.1 5');
      setTimeout(() => socket.write('03 Service Unavailable\r\n'), 5);
    });
    expect(await httpStatus(url, never)).toBe(503);
  });

  it('is none where nobody listens, something else answers, the end comes early, or nothing comes', async () => {
    const gone = await serving(() => {});
    await new Promise(resolve => servers.pop()!.close(resolve));
    expect(await httpStatus(gone, never)).toBeNull();
    expect(await httpStatus(await serving(s => s.end('SSH-2.0-OpenSSH_9.2\r\n')), never)).toBeNull();
    expect(await httpStatus(await serving(s => s.end('HTTP/1.1')), never)).toBeNull();
    expect(await httpStatus(await serving(() => {}), never, 20)).toBeNull();
  });

  it('leaves nothing behind on the signal that ends it', async () => {
    const end = new AbortController();
    const asking = httpStatus(await serving(() => {}), end.signal);
    end.abort();
    expect(await asking).toBeNull();
    const other = new AbortController();
    await httpStatus(await serving(s => s.end('HTTP/1.1 200 OK\r\n\r\n')), other.signal);
    expect(getEventListeners(other.signal, 'abort')).toEqual([]);
  });
});
