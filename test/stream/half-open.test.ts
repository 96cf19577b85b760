import { readFileSync } from 'node:fs';
import http2 from 'node:http2';
import net from 'node:net';
import tls from 'node:tls';
import { credentials } from '@grpc/grpc-js';
import { expect, onTestFinished, test } from 'vitest';
import { PING_EVERY, PING_TIMEOUT } from '../../agent/stream/dial.js';
import { agentProto } from '../../proto/load.js';
import { controlPlane, exitOf, inventory, makePki, rawServer, relay, startAgent, until } from './support.js';

test('mtls-grpc-10: a connection whose bytes vanish is found by both sides; the agent dials a new one', async () => {
  const cp = await controlPlane();
  const nat = await relay(cp.port);
  const agent = startAgent(nat.port, { heartbeatIntervalMs: 100 });
  const first = await until(() => agent.welcomes[0]);
  nat.blackhole();
  const second = await until(() => agent.welcomes[1]);
  expect(second.session).toBeGreaterThan(first.session);
  expect(agent.lines.find(l => l.reason === 'lost')?.msg).toContain('nothing was heard');
  expect(cp.hub.nodes().map(n => n.session)).toEqual([second.session]);
});

test('mtls-grpc-10: a node that says nothing for three intervals is gone, and its session is freed', async () => {
  const cp = await controlPlane();
  const client = new (agentProto().Agent)(`dns:127.0.0.1:${cp.port}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  const call = client.Connect();
  call.on('error', () => {});
  call.on('data', () => {});
  const hello = {
    protocol_version: 1,
    node_id: 'gpu-a-01',
    session: Date.now(),
    boot_id: 'boot-1',
    inventory: Buffer.from(JSON.stringify(inventory('gpu-a-01', 'boot-1'))),
    heartbeat_interval_ms: 100,
  };
  call.write({ hello });
  expect(await until(() => cp.gone[0])).toMatchObject({
    nodeId: 'gpu-a-01',
    session: hello.session,
    reason: 'silent',
  });
  expect(cp.hub.nodes()).toEqual([]);
  call.write({ heartbeat: { seq: 1 } });
  // Another machine takes the name over at once, because the old one no longer heartbeats.
  const agent = startAgent(cp.port, { bootId: 'boot-2' });
  await until(() => agent.welcomes[0]);
  expect(cp.beats.filter(b => b.session === hello.session)).toEqual([]);
});

test('mtls-grpc-10: pings find vanished bytes within their own limits, however seldom the heartbeats are', async () => {
  const cp = await controlPlane();
  const nat = await relay(cp.port);
  const agent = startAgent(nat.port, {
    heartbeatIntervalMs: 3_600_000,
    pingEveryMs: 100,
    pingTimeoutMs: 100,
  });
  await until(() => agent.welcomes[0]);
  nat.blackhole();
  await until(() => agent.welcomes[1]);
  expect(nat.taken()).toBe(2);
  expect(PING_EVERY + PING_TIMEOUT).toBeLessThanOrEqual(15_000);
});

test('mtls-grpc-10: a peer that is stopped and goes on: its node is silent meanwhile, what it said late is ignored', async () => {
  const cp = await controlPlane();
  const link = await relay(cp.port);
  const agent = startAgent(link.port, {
    heartbeatIntervalMs: 100,
    welcomeWithinMs: 300,
    reconnectMaxMs: 100,
    pending: [],
  });
  const first = await until(() => agent.welcomes[0]);
  link.stall();
  // Said into the stopped connection, and again over the next one.
  agent.addEvent(exitOf('replica/late'));
  expect(await until(() => cp.gone[0])).toMatchObject({ session: first.session, reason: 'silent' });
  expect(cp.hub.nodes()).toEqual([]);
  await until(() => agent.lines.find(l => l.msg.includes('nothing was heard')));
  // New sockets are taken by a stopped process too, and answered by nobody.
  await until(() => agent.lines.find(l => l.msg.includes('no Welcome within')));
  const beats = cp.beats.length;
  link.resume();
  const next = await until(() => agent.welcomes[1]);
  expect(next.session).toBeGreaterThan(first.session);
  await until(() => agent.pending.length === 0);
  expect(cp.beats.slice(beats).filter(b => b.session === first.session)).toEqual([]);
  await until(() => cp.hub.node('gpu-a-01')?.session === agent.welcomes.at(-1)?.session);
});

test('mtls-grpc-10: a server that accepts and then says nothing costs a bounded time; its socket is closed', async () => {
  const closed: string[] = [];
  const pki = await makePki();
  const silentTcp = net.createServer(socket => socket.resume().on('close', () => closed.push('tcp')));
  const silentTls = tls.createServer(
    { cert: readFileSync(pki.server.cert), key: readFileSync(pki.server.key), ALPNProtocols: ['h2'] },
    socket =>
      socket
        .on('error', () => {})
        .resume()
        .on('close', () => closed.push('tls')),
  );
  const silentH2 = http2.createServer();
  silentH2.on('stream', stream =>
    stream
      .on('error', () => {})
      .on('close', () => closed.push('h2'))
      .resume(),
  );
  const dials: [net.Server, boolean][] = [
    [silentTcp, true],
    [silentTls, true],
    [silentTcp, false],
    [silentH2 as unknown as net.Server, false],
  ];
  const identity = await pki.client('gpu-a-01');
  const ports = new Map<net.Server, number>();
  for (const [server, secure] of dials) {
    const port = ports.get(server) ?? (await rawServer(server));
    ports.set(server, port);
    const agent = startAgent(port, { ...(secure ? { tls: identity } : {}), welcomeWithinMs: 150 });
    await until(() => agent.lines.find(l => l.reason === 'lost' && l.msg.includes('no Welcome within')));
    expect(agent.welcomes).toEqual([]);
  }
  await until(() => ['tcp', 'tls', 'h2'].every(kind => closed.includes(kind)));
});

test('bug 2 of the seed: the stream ends with the agent while its server neither reads nor answers', async () => {
  const pki = await makePki();
  const identity = await pki.client('gpu-a-01');
  // Takes the connection and never reads from it.
  const deaf = await rawServer(net.createServer(socket => socket.pause()));
  for (const tlsPaths of [identity, null]) {
    const agent = startAgent(deaf, { ...(tlsPaths ? { tls: tlsPaths } : {}), welcomeWithinMs: 3_600_000 });
    await agent.stop();
  }
  // Welcomed, then the bytes vanish: the read side never returns by itself.
  const cp = await controlPlane({ tls: pki.server });
  const nat = await relay(cp.port);
  const agent = startAgent(nat.port, { tls: identity, heartbeatIntervalMs: 3_600_000 });
  await until(() => agent.welcomes[0]);
  nat.blackhole();
  await agent.stop();
  expect(agent.waits()).toEqual([]);
});

test('mtls-grpc-11: a connection closed gently, or at once, is dialled again within one base wait', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, { reconnectBaseMs: 40 });
  await until(() => cp.beats.length >= 5);
  await cp.close();
  await until(() => agent.waits().length > 0);
  const again = await controlPlane({ port: cp.port });
  await until(() => again.hub.node('gpu-a-01'));
  expect(agent.waits()[0]).toBe(0);
  expect(agent.lines.some(l => l.server_says !== undefined)).toBe(false);
});
