import { readFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { ChannelCredentials, Metadata, status } from '@grpc/grpc-js';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { Backoff } from '../../agent/stream/backoff.js';
import { isAbsent } from '../../agent/stream/end.js';
import { agentProto } from '../../proto/load.js';
import { peerAddress } from '../../server/stream/identify.js';
import { forgeLeaf } from '../pki/forge.js';
import { controlPlane, makePki, startAgent, tlsPaths, until } from './support.js';

const readCase = (name: string) =>
  parse(readFileSync(new URL(`../cases/${name}.yaml`, import.meta.url), 'utf8'));

test('mtls-grpc-03: a certificate cannot speak for another node: refused with both names, whose stream is untouched', async () => {
  const { input } = readCase('mtls-grpc-03-identity-mismatch');
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const victim = startAgent(cp.port, {
    nodeId: input.hello.node_id,
    tls: await pki.client(input.hello.node_id),
  });
  const welcome = await until(() => victim.welcomes[0]);

  const impostor = startAgent(cp.port, {
    nodeId: input.hello.node_id,
    tls: await pki.client(input.cert.CN),
    bootId: 'boot-2',
  });
  const line = await until(() => impostor.lines.find(l => l.server_says !== undefined));
  expect(line).toMatchObject({ certificate: input.cert.CN, claim: input.hello.node_id });
  expect(line.not_after).toMatch(/^\d{4}-\d\d-\d\dT/);
  for (const name of [input.cert.CN, input.hello.node_id]) {
    expect(line.server_says).toContain(`"${name}"`);
    expect(cp.lines.some(l => l.msg.startsWith('refused a stream') && l.msg.includes(`"${name}"`))).toBe(
      true,
    );
  }
  expect(impostor.welcomes).toEqual([]);
  expect(cp.hub.node(input.hello.node_id)?.session).toBe(welcome.session);
  expect(victim.waits()).toEqual([]);
});

test('bug 1 of the seed: a refused agent is told why each time and backs off further each time', async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const agent = startAgent(cp.port, {
    tls: await pki.client('gpu-z-26'),
    reconnectBaseMs: 10,
    reconnectMaxMs: 60_000,
  });
  await until(() => agent.waits().length >= 5);
  const waits = agent.waits();
  // Jitter takes at most half: each wait is at least the one before.
  for (const [i, wait] of waits.entries())
    if (i > 0) expect(wait).toBeGreaterThanOrEqual(waits[i - 1] as number);
  expect(waits[4]).toBeGreaterThanOrEqual(80);
  const refusals = agent.lines.filter(l => l.server_says !== undefined);
  expect(refusals.length).toBeGreaterThanOrEqual(4);
  for (const line of refusals) expect(line.msg).toMatch(/"gpu-z-26".*"gpu-a-01"/);
});

test('a stream that is welcomed and then lost at once does not reset the back-off', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, {
    reconnectBaseMs: 10,
    reconnectMaxMs: 60_000,
    heartbeatIntervalMs: 10_000,
  });
  for (let i = 1; i <= 4; i += 1) {
    const welcome = await until(() => agent.welcomes[i - 1]);
    cp.hub.supersede('gpu-a-01', welcome.session + 1, 'cp-2');
    await until(() => agent.waits().length >= i);
  }
  expect(agent.waits()[3]).toBeGreaterThanOrEqual(40);
});

test('a stream that has held resets the back-off', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, {
    reconnectBaseMs: 10,
    reconnectMaxMs: 60_000,
    heartbeatIntervalMs: 100,
  });
  for (let i = 1; i <= 3; i += 1) {
    const welcome = await until(() => agent.welcomes[i - 1]);
    await until(() => cp.beats.filter(b => b.session === welcome.session).length >= 5);
    cp.hub.supersede('gpu-a-01', welcome.session + 1, 'cp-2');
    await until(() => agent.waits().length >= i);
  }
  expect(Math.max(...agent.waits())).toBeLessThanOrEqual(10);
});

test('the back-off doubles from base to max and takes away at most half', () => {
  const low = new Backoff(1_000, 30_000, () => 0);
  const high = new Backoff(1_000, 30_000, () => 1);
  expect(Array.from({ length: 7 }, () => low.next())).toEqual([
    500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000,
  ]);
  expect(Array.from({ length: 7 }, () => high.next())).toEqual([
    1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000,
  ]);
  high.reset();
  expect(high.next()).toBe(1_000);
});

test('waits at a lower bound double no further than it, and no longer ones follow from them', () => {
  const backoff = new Backoff(1_000, 30_000, () => 1);
  expect(Array.from({ length: 6 }, () => backoff.next(4_000))).toEqual([
    1_000, 2_000, 4_000, 4_000, 4_000, 4_000,
  ]);
  expect(backoff.next()).toBe(4_000);
  expect(backoff.next()).toBe(8_000);
  expect(new Backoff(10_000, 30_000, () => 1).next(4_000)).toBe(10_000);
  expect(new Backoff(100, 1_000, () => 1).next(4_000)).toBe(100);
});

test('only a peer that is not there at all is absent: one that answers and breaks off may be overloaded', () => {
  const error = (code: string) => Object.assign(new Error(code), { code });
  expect(['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH'].map(code => isAbsent(error(code)))).toEqual([
    true,
    true,
    true,
  ]);
  expect([error('ECONNRESET'), error('ERR_SSL_WRONG_VERSION_NUMBER'), null].map(isAbsent)).toEqual([
    false,
    false,
    false,
  ]);
});

/** One call with any certificate at all, as a foreign client would make it. */
function rawCall(
  port: number,
  pem: { ca: string; cert?: string; key?: string },
): Promise<{ code: status; details: string }> {
  const file = (path: string | undefined) => (path === undefined ? null : readFileSync(path));
  const credentials = ChannelCredentials.createSsl(file(pem.ca), file(pem.key), file(pem.cert));
  const client = new (agentProto().Agent)(`dns:localhost:${port}`, credentials, {
    'grpc.enable_http_proxy': 0,
  });
  const call = client.Connect(new Metadata());
  call.on('error', () => {});
  return new Promise(resolve =>
    call.on('status', s => {
      client.close();
      resolve(s);
    }),
  );
}

test('mtls-grpc-01: a certificate for servers only is refused in words; the log has reason, subject and serial', async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  await forgeLeaf(pki.dir, 'node-a', { cn: ['node-a'], usages: ['serverAuth'] });
  const paths = tlsPaths(pki.dir, 'node-a');
  const answer = await rawCall(cp.port, paths);
  expect(answer.code).toBe(status.UNAUTHENTICATED);
  expect(answer.details).toMatch(/certificate refused by control plane.*unsuitable certificate purpose/);
  const line = await until(() => cp.lines.find(l => l.reason === 'INVALID_PURPOSE'));
  expect(line).toMatchObject({ subject: 'node-a', serial: expect.stringMatching(/^[0-9A-F]+$/) });

  const agent = startAgent(cp.port, { nodeId: 'node-a', tls: paths });
  await until(() => agent.waits().length >= 3);
  expect(agent.lines.find(l => l.reason === 'lost')?.msg).toContain('clientAuth');
  expect(agent.welcomes).toEqual([]);
  expect(cp.hub.nodes()).toEqual([]);
});

test('without a certificate, with an expired one and with one of another CA nothing gets in, and each is told why', async () => {
  const pki = await makePki();
  const other = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  await forgeLeaf(pki.dir, 'old', { cn: ['gpu-a-01'], usages: ['clientAuth'], from: -9, to: -2 });
  const { ca } = pki.server;
  const foreign = await other.client('gpu-a-01');
  const answers = [
    await rawCall(cp.port, { ca }),
    await rawCall(cp.port, tlsPaths(pki.dir, 'old')),
    await rawCall(cp.port, { ca, cert: foreign.cert, key: foreign.key }),
  ];
  expect(answers.map(a => a.code)).toEqual(Array(3).fill(status.UNAUTHENTICATED));
  expect(answers[0]?.details).toContain('none was presented');
  expect(answers[1]?.details).toContain('has expired');
  expect(answers[2]?.details).toContain('does not lead to a CA');
  expect(cp.hellos).toEqual([]);
});

test('a server certificate does not open the stream of a node', async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const agent = startAgent(cp.port, { nodeId: 'cp-1', tls: pki.server });
  const line = await until(() => agent.lines.find(l => l.server_says !== undefined));
  expect(line.server_says).toContain("is a server's");
});

test('a server of another CA is named as such by the agent', async () => {
  const pki = await makePki();
  const other = await makePki();
  const cp = await controlPlane({ tls: other.server });
  const agent = startAgent(cp.port, { tls: await pki.client('gpu-a-01') });
  const line = await until(() => agent.lines.find(l => l.reason === 'lost'));
  expect(line.msg).toContain('comes from a CA that is not in');
});

test('a plain server behind an https address is said to be no TLS', async () => {
  const pki = await makePki();
  const plain = createServer(s => s.end('HTTP/1.1 400 Bad Request\r\n\r\n'));
  await new Promise<void>(resolve => plain.listen(0, '127.0.0.1', resolve));
  try {
    const agent = startAgent((plain.address() as { port: number }).port, {
      tls: await pki.client('gpu-a-01'),
    });
    const line = await until(() => agent.lines.find(l => l.reason === 'lost'));
    expect(line.msg).toContain('does not speak TLS');
  } finally {
    plain.close();
  }
});

test('a control plane that cannot take a node now says why; the agent comes again', async () => {
  let away = true;
  const cp = await controlPlane({
    handlers: {
      hello: async () => {
        if (away) throw new Error('Temporal does not answer');
        return { highestSession: 0, slots: {} };
      },
    },
  });
  const agent = startAgent(cp.port);
  await until(() => agent.lines.find(l => l.msg.includes('Temporal does not answer')));
  away = false;
  await until(() => agent.welcomes[0]);
});

test('a Hello that was handed on but not welcomed is followed by its end, once it is settled', async () => {
  const sessions: number[] = [];
  let settle: (error: Error) => void = () => {};
  const cp = await controlPlane({
    handlers: {
      hello: node => {
        sessions.push(node.session);
        if (sessions.length > 1) return Promise.resolve({ highestSession: 0, slots: {} });
        return new Promise((_, reject) => {
          settle = reject;
        });
      },
    },
  });
  const agent = startAgent(cp.port);
  await until(() => sessions.length === 1);
  expect(cp.gone).toEqual([]);
  settle(new Error('the query was not answered'));
  await until(() => agent.welcomes[0]);
  expect(cp.gone).toEqual([{ nodeId: 'gpu-a-01', session: sessions[0], reason: 'refused' }]);
});

test('an agent that leaves while its Hello is handed on leaves no session behind', async () => {
  let welcome: (() => void) | null = null;
  const cp = await controlPlane({
    handlers: {
      hello: () =>
        new Promise(resolve => {
          welcome = () => resolve({ highestSession: 0, slots: {} });
        }),
    },
  });
  const agent = startAgent(cp.port);
  const settle = await until<() => void>(() => welcome);
  await agent.stop();
  // The hub hears of the end when a stream that came after it was answered.
  const other = startAgent(cp.port, { nodeId: 'gpu-b-02' });
  welcome = null;
  (await until<() => void>(() => welcome))();
  await until(() => other.welcomes[0]);
  settle();
  expect(await until(() => cp.gone[0])).toMatchObject({ nodeId: 'gpu-a-01', reason: 'closed' });
  expect(cp.hub.node('gpu-a-01')).toBeNull();
});

test('a peer that connects and leaves, as port scans do, is no line above debug', async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const socket = connect(cp.port, '127.0.0.1', () => socket.resetAndDestroy());
  socket.on('error', () => {});
  const line = await until(() => cp.lines.find(l => l.msg === 'a TLS handshake failed'));
  expect(line.level).toBe(20);
});

test('a Hello that cannot be read is refused by what is wrong with it', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port);
  await until(() => agent.welcomes[0]);
  const odd = startAgent(cp.port, { nodeId: 'Not A Node' });
  const line = await until(() => odd.lines.find(l => l.server_says !== undefined));
  expect(line.server_says).toContain('Node id "Not A Node"');
});

test('a peer is named by its address alone', () => {
  const peers = [
    '10.0.0.5:41234',
    '[2001:db8::5]:41234',
    '[::1]:7',
    '::ffff:10.0.0.5:41234',
    '2001:db8::5:41234',
  ];
  expect(peers.map(peerAddress)).toEqual(['10.0.0.5', '2001:db8::5', '::1', '10.0.0.5', '2001:db8::5']);
});
