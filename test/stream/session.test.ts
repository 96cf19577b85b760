import { copyFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { LlmgwError } from '../../contracts/errors.js';
import { controlPlane, exitOf, gpuOf, makePki, startAgent, tempDir, tlsPaths, until } from './support.js';

test('a node is connected when it was welcomed, over mutual TLS, and knows its slots and namespace', async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const agent = startAgent(cp.port, { tls: await pki.client('gpu-a-01') });
  const welcome = await until(() => agent.welcomes[0]);
  expect(welcome).toMatchObject({
    instance: 'cp-1',
    temporalNamespace: 'default',
    peerAddress: '127.0.0.1',
    unproven: false,
  });
  expect([...welcome.slots]).toEqual([
    [0, 'GPU-a'],
    [7, 'GPU-b'],
  ]);
  expect(cp.hub.nodes()).toMatchObject([
    { nodeId: 'gpu-a-01', session: welcome.session, unproven: false, compatible: true },
  ]);
});

test('an IPv6 address is dialled, and needs an IP entry in the server certificate', async () => {
  const pki = await makePki(['::1']);
  const cp = await controlPlane({ tls: pki.server, host: '::1' });
  const agent = startAgent(cp.port, { host: '::1', tls: await pki.client('gpu-a-01') });
  expect((await until(() => agent.welcomes[0])).peerAddress).toBe('::1');

  const named = await makePki(['control.example']);
  const other = await controlPlane({ tls: named.server, host: '::1' });
  const refused = startAgent(other.port, { host: '::1', tls: await named.client('gpu-a-01') });
  const line = await until(() => refused.lines.find(l => l.reason === 'lost'));
  expect(line.msg).toContain('is for other host names');
  expect(refused.welcomes).toEqual([]);
});

test('without TLS a node is let in on loopback, marked unproven', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port);
  expect((await until(() => agent.welcomes[0])).unproven).toBe(true);
  expect(cp.hub.node('gpu-a-01')?.unproven).toBe(true);
});

test('heartbeats carry the engines with their progress', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, { heartbeatIntervalMs: 100 });
  agent.engines.push({
    replica: 'demo',
    fence: 7,
    rank: 0,
    state: 'loading',
    pid: 4242,
    gpus: ['GPU-a'],
    ports: { http: 20_000 },
    stage: 'loading weights',
    percent: 42,
  });
  await until(() => cp.hub.node('gpu-a-01')?.engines[0]?.percent === 42);
  expect(cp.hub.node('gpu-a-01')?.engines).toEqual(agent.engines);
  expect(cp.beats.every(b => b.nodeId === 'gpu-a-01')).toBe(true);
});

test('an event is sent again until Temporal has it, and follows each Hello', async () => {
  let refusals = 1;
  const accepted: string[] = [];
  const cp = await controlPlane({
    handlers: {
      event: async (_node, event) => {
        if (refusals-- > 0) throw new Error('Temporal is away');
        accepted.push(event.replica);
      },
    },
  });
  const agent = startAgent(cp.port, { heartbeatIntervalMs: 100 });
  agent.pending.push(exitOf('before-welcome'));
  await until(() => agent.welcomes.length > 0);
  await until(() => refusals === 0);
  expect(agent.pending).toHaveLength(1);
  agent.addEvent(exitOf('while-connected'));
  await until(() => agent.pending.length === 0);
  expect(accepted.sort()).toEqual(['before-welcome', 'while-connected']);
});

test('Hello names the exits that nobody has acknowledged', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, { pending: [exitOf('demo', 3)] });
  await until(() => agent.pending.length === 0);
  expect(cp.hellos[0]?.unacked).toEqual([exitOf('demo', 3)]);
});

test('a changed condition changes the inventory, which is told at once; an unchanged one is not told', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port);
  await until(() => agent.welcomes[0]);
  agent.client.inventoryChanged();
  agent.conditions.set('worker', 'it ended');
  agent.conditions.set('worker', 'it ended');
  await until(() => cp.inventories.length > 0);
  expect(cp.inventories.map(i => i.conditions)).toEqual([[{ code: 'worker', message: 'it ended' }]]);
});

test('GPUs that are numbered after Welcome are known to the agent without a new stream', async () => {
  const cp = await controlPlane({
    handlers: {
      hello: async () => ({ highestSession: 0, slots: {} }),
      inventoryChanged: async (_node, _session, inventory) =>
        Object.fromEntries(inventory.gpus.map((gpu, slot) => [slot, gpu.uuid])),
    },
  });
  const agent = startAgent(cp.port);
  await until(() => agent.welcomes[0]);
  expect(agent.client.welcomed()?.slots.size).toBe(0);
  agent.node.gpus.push(gpuOf('GPU-late'), gpuOf('GPU-later'));
  agent.client.inventoryChanged();
  await until(() => (agent.client.welcomed()?.slots.size ?? 0) > 0);
  expect([...(agent.client.welcomed()?.slots ?? [])]).toEqual([
    [0, 'GPU-late'],
    [1, 'GPU-later'],
  ]);
  expect(agent.client.welcomed()?.peerAddress).toBe('127.0.0.1');
  expect(agent.welcomes).toHaveLength(1);
});

test('what flickers waits for its time, and goes along with what placement hangs on, which is told at once', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, { inventoryEveryMs: 3_600_000 });
  await until(() => agent.welcomes[0]);
  agent.conditions.set('one', 'first');
  await until(() => cp.inventories.length > 0);
  agent.conditions.set('two', 'held back');
  agent.node.gpus.push(gpuOf('GPU-a'));
  agent.client.inventoryChanged();
  agent.node.gpus[0] = gpuOf('GPU-a', { usable: false, reason: 'lost' });
  agent.client.inventoryChanged();
  agent.conditions.set('three', 'held back');
  agent.node.gpus[0] = gpuOf('GPU-a', { foreign_mib: 600 });
  agent.client.inventoryChanged();
  await until(() => cp.inventories.some(i => i.gpus[0]?.foreign_mib === 600));
  expect(cp.inventories.map(i => i.conditions.map(c => c.code))).toEqual([
    ['one'],
    ['one', 'two'],
    ['one', 'two'],
    ['one', 'two', 'three'],
  ]);
});

test('what was held back is told when its time has come', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, { inventoryEveryMs: 50 });
  await until(() => agent.welcomes[0]);
  for (const code of ['one', 'two', 'three']) agent.conditions.set(code, code);
  await until(() => cp.inventories.at(-1)?.conditions.length === 3);
  expect(cp.inventories.map(i => i.conditions.length)).toEqual([1, 3]);
});

test('a session number below the highest seen jumps above it and says Hello again on the same stream', async () => {
  const highest = Date.now() + 3_600_000;
  const cp = await controlPlane({
    handlers: { hello: async () => ({ highestSession: highest, slots: {} }) },
  });
  const workDir = tempDir();
  const agent = startAgent(cp.port, { workDir });
  expect((await until(() => agent.welcomes[0])).session).toBe(highest + 1);
  expect(agent.waits()).toEqual([]);
  await agent.stop();
  const again = startAgent(cp.port, { workDir });
  await until(() => cp.hub.node('gpu-a-01')?.session === highest + 2);
  expect(again.lines.some(l => l.msg.includes('jumping above'))).toBe(false);
});

test('a newer session takes the node over; the older one is told and ended, and nobody is told that the node is gone', async () => {
  const cp = await controlPlane();
  const first = startAgent(cp.port, { reconnectBaseMs: 60_000, reconnectMaxMs: 60_000 });
  await until(() => first.welcomes[0]);
  const second = startAgent(cp.port);
  const welcome = await until(() => second.welcomes[0]);
  const line = await until(() => first.lines.find(l => l.reason === 'superseded'));
  expect(line.msg).toContain(String(welcome.session));
  expect(cp.hub.nodes().map(n => n.session)).toEqual([welcome.session]);
  expect(cp.gone).toEqual([]);
});

test('another machine with the same name is refused while the first one heartbeats: both show duplicate_identity', async () => {
  const cp = await controlPlane();
  const first = startAgent(cp.port, { bootId: 'boot-1' });
  const welcome = await until(() => first.welcomes[0]);
  const second = startAgent(cp.port, { bootId: 'boot-2' });
  await until(() => second.conditions.list()[0]);
  await until(() => first.conditions.list()[0]);
  for (const agent of [first, second]) {
    expect(agent.conditions.list()).toMatchObject([{ code: 'duplicate_identity' }]);
    expect(agent.conditions.list()[0]?.message).toMatch(/boot-1.*boot-2/);
  }
  expect(cp.hub.node('gpu-a-01')?.session).toBe(welcome.session);
  expect(second.welcomes).toEqual([]);
});

test('a request is answered in chunks that never run ahead of the reader', async () => {
  const cp = await controlPlane();
  let produced = 0;
  const agent = startAgent(cp.port, {
    serve: async function* (kind, payload) {
      expect([kind, payload]).toEqual(['logs', { replica: 'demo' }]);
      for (; produced < 500; produced += 1) yield Buffer.alloc(1_000, produced % 256);
    },
  });
  await until(() => agent.welcomes[0]);
  let read = 0;
  for await (const chunk of cp.hub.request('gpu-a-01', 'logs', { replica: 'demo' })) {
    read += 1;
    expect(chunk[0]).toBe((read - 1) % 256);
    if (read === 20) {
      await new Promise(resolve => setImmediate(resolve));
      expect(produced).toBeLessThan(60);
    }
  }
  expect(read).toBe(500);
});

test('an error of a request arrives with its code; a reader who leaves cancels it at the node', async () => {
  const cp = await controlPlane();
  let cancelled = false;
  const agent = startAgent(cp.port, {
    serve: async function* (kind, _payload, signal) {
      if (kind !== 'logs') throw new LlmgwError('BAD_REQUEST', `no such request: ${kind}`);
      signal.addEventListener('abort', () => {
        cancelled = true;
      });
      for (;;) yield Buffer.from('line\n');
    },
  });
  await until(() => agent.welcomes[0]);
  const wrong = cp.hub.request('gpu-a-01', 'dance', {}).next();
  await expect(wrong).rejects.toMatchObject({ code: 'BAD_REQUEST', message: 'no such request: dance' });
  for await (const chunk of cp.hub.request('gpu-a-01', 'logs', {})) {
    expect(chunk.toString()).toBe('line\n');
    break;
  }
  await until(() => cancelled);
  await expect(cp.hub.request('gpu-b-02', 'logs', {}).next()).rejects.toMatchObject({
    code: 'NODE_UNREACHABLE',
  });
});

test('a request ends with the stream that it went over, and with its timeout', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, {
    serve: async function* (_kind, _payload, signal) {
      yield Buffer.from('first');
      await new Promise(resolve => signal.addEventListener('abort', resolve));
    },
  });
  await until(() => agent.welcomes[0]);
  const slow = cp.hub.request('gpu-a-01', 'logs', {}, { timeout: 50 });
  await slow.next();
  await expect(slow.next()).rejects.toMatchObject({ code: 'NODE_UNREACHABLE' });
  const cut = cp.hub.request('gpu-a-01', 'logs', {});
  await cut.next();
  const next = cut.next();
  await agent.stop();
  await expect(next).rejects.toMatchObject({ code: 'NODE_UNREACHABLE' });
});

test('an instance that stops sends its agents away: they dial again at once, without a back-off', async () => {
  const cp = await controlPlane();
  const agent = startAgent(cp.port, { reconnectBaseMs: 60_000, reconnectMaxMs: 60_000 });
  await until(() => agent.welcomes[0]);
  cp.hub.goAway('it is replaced');
  await until(() => agent.welcomes[1]);
  expect(agent.waits()).toEqual([0]);
  expect(cp.gone).toMatchObject([{ nodeId: 'gpu-a-01', reason: 'shutdown' }]);
});

test('certificates are read for each connection: one that was mended is used without a restart', async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const good = await pki.client('gpu-a-01');
  const dir = tempDir();
  const paths = tlsPaths(dir, 'agent');
  const agent = startAgent(cp.port, { tls: paths });
  const line = await until(() => agent.lines.find(l => l.reason === 'lost'));
  expect(line.msg).toContain(`${paths.ca} does not exist`);
  copyFileSync(good.cert, paths.cert);
  copyFileSync(good.key, paths.key);
  copyFileSync(good.ca, paths.ca);
  await until(() => agent.welcomes[0]);
});
