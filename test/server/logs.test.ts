// A log that is followed over the operators' API, a real stream and a real agent's requests: what reaches the reader, and
// how it ends.
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import type { ServeRequest } from '../../agent/stream/types.js';
import { LlmgwError } from '../../contracts/errors.js';
import { silentLogger } from '../../lib/log.js';
import { type HttpDeps, httpApp } from '../../server/http/app.js';
import { controlPlane, startAgent, until } from '../stream/support.js';

/** The API of an instance that holds the streams of these nodes. */
async function api(
  agents: Record<string, ServeRequest>,
  members: { node: string; rank: number }[],
  onAsk: (opts: { signal?: AbortSignal } | undefined) => void = () => undefined,
) {
  const cp = await controlPlane();
  const started = Object.entries(agents).map(([nodeId, serve]) => startAgent(cp.port, { nodeId, serve }));
  for (const agent of started) await until(() => agent.welcomes[0]);
  const rows = Object.keys(agents).map(node_id => ({ node_id, state: 'connected' }));
  const deps = {
    fleet: { nodes: async () => rows },
    replicas: { show: async () => ({ members, phase: 'ready', reason: 'serving' }) },
    nodes: {
      request: (...args: Parameters<typeof cp.hub.request>) => {
        onAsk(args[3]);
        return cp.hub.request(...args);
      },
      withEngineOf: async () => null,
    },
    tokensFile: null,
    tls: null,
    log: silentLogger(),
    ready: () => true,
  };
  const app = httpApp(deps as unknown as HttpDeps);
  await app.listen({ host: '127.0.0.1', port: 0 });
  onTestFinished(() => app.close());
  const { port } = app.server.address() as AddressInfo;
  const get = (query: string) => {
    const seen = { text: '', status: 0, ended: false };
    const req = http.get(`http://127.0.0.1:${port}/v1/replicas/demo/logs?${query}`, res => {
      seen.status = res.statusCode ?? 0;
      res.on('data', chunk => {
        seen.text += chunk;
      });
      res.on('error', () => undefined);
      res.on('end', () => {
        seen.ended = true;
      });
    });
    req.on('error', () => undefined);
    return { seen, req };
  };
  return { cp, app, get, agents: started };
}

const MEMBERS = [
  { node: 'gpu-a-01', rank: 0 },
  { node: 'gpu-b-02', rank: 1 },
];

test('comes from the node of that rank, until its generation has ended', async () => {
  const asked: unknown[] = [];
  const serve: ServeRequest = async function* (kind, payload) {
    asked.push([kind, payload]);
    yield Buffer.from('{"line":"one"}\n');
    yield Buffer.from('\n');
    yield Buffer.from('{"end":"engine","note":"over"}\n');
  };
  const { get } = await api({ 'gpu-a-01': serve, 'gpu-b-02': serve }, MEMBERS);
  const { seen } = get('follow=1&rank=1&lines=3');
  await until(() => seen.ended);
  expect(seen).toMatchObject({ status: 200, text: '{"line":"one"}\n\n{"end":"engine","note":"over"}\n' });
  expect(asked).toEqual([['follow', { replica: 'demo', rank: 1, lines: 3 }]]);
});

test('ends at the node when its reader leaves, and runs no further ahead than a reader reads', async () => {
  let left = false;
  let produced = 0;
  const serve: ServeRequest = async function* (_kind, _payload, signal) {
    signal.addEventListener('abort', () => {
      left = true;
    });
    for (;;) {
      produced++;
      yield Buffer.alloc(65_536, 0x0a);
    }
  };
  const { get } = await api({ 'gpu-a-01': serve }, MEMBERS);
  const { req } = get('follow=1');
  const res = await new Promise<http.IncomingMessage>(resolve => req.once('response', resolve));
  res.pause();
  // Standing still: what was produced went into the buffers of two sockets and the credit, and no more comes.
  let before = -1;
  await until(() => {
    const stands = before === produced;
    before = produced;
    return stands && produced > 16;
  });
  expect(produced).toBeLessThan(1_000);
  req.destroy();
  await until(() => left);
});

test('is looked for no longer when its reader has left', async () => {
  const asked: (AbortSignal | undefined)[] = [];
  const serve: ServeRequest = async function* (_kind, _payload, signal) {
    yield* [];
    await new Promise(resolve => signal.addEventListener('abort', resolve));
  };
  const { get } = await api({ 'gpu-a-01': serve }, [], opts => void asked.push(opts?.signal));
  const { req } = get('rank=1');
  await until(() => asked.length === 1);
  expect(asked[0]?.aborted).toBe(false);
  req.destroy();
  await until(() => asked[0]?.aborted);
});

test('says what happened when the node is lost half-way or this instance stops', async () => {
  const serve: ServeRequest = async function* (_kind, _payload, signal) {
    yield Buffer.from('{"line":"half');
    await new Promise(resolve => signal.addEventListener('abort', resolve));
  };
  const lost = await api({ 'gpu-a-01': serve }, MEMBERS);
  const one = lost.get('follow=1');
  await until(() => one.seen.text !== '');
  await lost.agents[0]!.stop();
  await until(() => one.seen.ended);
  expect(one.seen.text).toMatch(
    /^\{"line":"half\n\{"end":"lost","note":".*the engine may run on: follow its log again when gpu-a-01 is heard"\}\n$/,
  );
  const stops = await api({ 'gpu-a-01': serve }, MEMBERS);
  const two = stops.get('follow=1');
  await until(() => two.seen.text !== '');
  await stops.app.close();
  await until(() => two.seen.ended);
  expect(two.seen.text).toContain('this control plane instance stops: follow the log again');
});

test('an agent that can not, and a log that nobody has, are said; one that another node has is found there', async () => {
  const unknown: ServeRequest = async function* () {
    yield* [];
    throw new LlmgwError('ENGINE_UNKNOWN', 'this node has no log of replica demo');
  };
  const older: ServeRequest = async function* (kind) {
    if (kind !== 'logs')
      throw new LlmgwError('BAD_REQUEST', `this agent does not answer requests for ${kind}`);
    yield Buffer.from('tail\n');
  };
  const { get } = await api({ 'gpu-a-01': older, 'gpu-b-02': unknown }, MEMBERS);
  const cannot = get('follow=1');
  await until(() => cannot.seen.ended);
  expect(cannot.seen.status).toBe(400);
  expect(cannot.seen.text).toContain('the agent of gpu-a-01 is of a release that can not follow a log');
  const found = get('rank=1&generation=2');
  await until(() => found.seen.ended);
  expect(found.seen).toMatchObject({ status: 200, text: 'tail\n' });
  const none = await api({ 'gpu-b-02': unknown }, MEMBERS);
  const nowhere = none.get('rank=1');
  await until(() => nowhere.seen.ended);
  expect(nowhere.seen.status).toBe(404);
});
