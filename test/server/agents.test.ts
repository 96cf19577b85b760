import { WorkflowNotFoundError } from '@temporalio/client';
import { expect, onTestFinished, test } from 'vitest';
import { agentHandlers } from '../../server/agents.js';
import { FleetClient } from '../../server/fleet.js';
import type { HelloNode } from '../../server/stream/types.js';
import { exitOf, gpuOf, inventory, recordingLog, until } from '../stream/support.js';
import { type FakeFleet, fakeFleet } from './support.js';

const NODE = 'gpu-a-01';

function handlersOf(fake: FakeFleet) {
  const { log, lines } = recordingLog();
  const handlers = agentHandlers({ fleet: fake.fleet, instance: 'cp-1', peerAddr: null, log, retryMs: 1 });
  onTestFinished(() => handlers.close());
  return { handlers, lines };
}

const helloOf = (session: number): HelloNode => ({
  nodeId: NODE,
  session,
  bootId: 'boot-1',
  protocolVersion: 1,
  compatible: true,
  capabilities: [],
  agentVersion: '0',
  inventory: inventory(NODE, 'boot-1'),
  engines: [],
  unacked: [],
  peerAddress: '10.0.0.5',
  heartbeatIntervalMs: 5_000,
  clockSkewMs: 0,
  unproven: false,
});

test('INV-8: exits and progress carry the node of the certificate, whatever the peer says of itself', async () => {
  const fake = fakeFleet();
  const { handlers } = handlersOf(fake);
  handlers.welcomed?.(helloOf(1));
  await handlers.event(NODE, { ...exitOf('demo'), node: 'gpu-b-02' });
  expect(fake.events).toMatchObject([{ nodeId: NODE, event: { replica: 'demo' } }]);
  const engine = {
    replica: 'demo',
    fence: 7,
    rank: 0,
    state: 'loading' as const,
    pid: 1,
    gpus: [],
    ports: {},
    stage: 'weights',
    percent: 4,
  };
  handlers.heartbeat(NODE, 1, { seq: 1, clockSkewMs: 0, engines: [{ ...engine, eta_ms: 9_000 }] });
  // Another node's word of the same engine doesn't keep this one's back.
  handlers.welcomed?.({ ...helloOf(1), nodeId: 'gpu-b-02' });
  handlers.heartbeat('gpu-b-02', 1, { seq: 1, clockSkewMs: 0, engines: [engine] });
  const told = { fence: 7, stage: 'weights', percent: 4 };
  expect(fake.progress.map(p => p.msg)).toEqual([
    { node: NODE, ...told, eta_ms: 9_000 },
    { node: 'gpu-b-02', ...told },
  ]);
});

test('INV-8: the signal of an exit names the node, to its replica and, when that is closed, to the ledger', async () => {
  const signals: [string, string, unknown][] = [];
  const client = {
    connection: { withDeadline: (_at: number, call: () => unknown) => call() },
    workflow: {
      getHandle: (id: string) => ({
        signal: async (name: string, msg: unknown) => {
          signals.push([id, name, msg]);
          if (id === 'replica/closed') throw new WorkflowNotFoundError('it is closed', id, undefined);
        },
      }),
    },
  };
  const fleet = new FleetClient(client as never);
  expect(await fleet.engineEvent(NODE, { ...exitOf('demo'), node: 'gpu-b-02' })).toBe('told');
  expect(await fleet.engineEvent(NODE, exitOf('closed'))).toBe('unclaimed');
  expect(signals).toMatchObject([
    ['replica/demo', 'engine_event', { node: NODE, replica: 'demo' }],
    ['replica/closed', 'engine_event', { node: NODE }],
    ['fleet', 'unclaimed', { event: { node: NODE, replica: 'closed' } }],
  ]);
});

test('the end of a stream is told when Temporal is back, with each session that may be the one it counts by', async () => {
  const fake = fakeFleet();
  fake.away = true;
  const { handlers } = handlersOf(fake);
  handlers.welcomed?.(helloOf(1));
  handlers.gone(NODE, 1, 'closed');
  handlers.gone(NODE, 2, 'refused');
  await until(() => fake.attempts > 3);
  fake.away = false;
  await until(() => fake.gone.length === 2);
  expect(fake.gone.map(g => [g.session, g.reason])).toEqual([
    [1, 'the connection closed'],
    [2, 'its Hello could not be answered'],
  ]);
});

test('of inventories that Temporal did not take only the newest is sent, and its numbering comes back', async () => {
  const fake = fakeFleet();
  fake.away = true;
  fake.slots = { '0': 'GPU-a' };
  const { handlers } = handlersOf(fake);
  handlers.welcomed?.(helloOf(1));
  const older = handlers.inventoryChanged(NODE, 1, inventory(NODE, 'boot-1'));
  await until(() => fake.attempts > 2);
  const newest = { ...inventory(NODE, 'boot-1'), gpus: [gpuOf('GPU-a')] };
  const newer = handlers.inventoryChanged(NODE, 1, newest);
  expect(await older).toBeNull();
  fake.away = false;
  expect(await newer).toEqual({ 0: 'GPU-a' });
  expect(fake.inventories).toEqual([{ session: 1, inventory: newest }]);
});

test('a newer session ends what older ones had left to say', async () => {
  const fake = fakeFleet();
  fake.away = true;
  const { handlers } = handlersOf(fake);
  handlers.welcomed?.(helloOf(1));
  const older = handlers.inventoryChanged(NODE, 1, inventory(NODE, 'boot-1'));
  handlers.gone(NODE, 1, 'closed');
  await until(() => fake.attempts > 3);
  handlers.welcomed?.(helloOf(2));
  expect(await older).toBeNull();
  fake.away = false;
  await handlers.inventoryChanged(NODE, 2, inventory(NODE, 'boot-1'));
  handlers.gone(NODE, 2, 'closed');
  await until(() => fake.gone.length > 0);
  expect(fake.gone.map(g => g.session)).toEqual([2]);
  expect(fake.inventories.map(i => i.session)).toEqual([2]);
});

test('a Hello that was refused does not speak for the session that is live', async () => {
  const fake = fakeFleet();
  const { handlers } = handlersOf(fake);
  handlers.welcomed?.(helloOf(1));
  handlers.gone(NODE, 2, 'refused');
  const engine = {
    replica: 'demo',
    fence: 7,
    rank: 0,
    state: 'loading' as const,
    pid: 1,
    gpus: [],
    ports: {},
  };
  handlers.heartbeat(NODE, 1, {
    seq: 1,
    clockSkewMs: 0,
    engines: [{ ...engine, stage: 'weights', percent: 4 }],
  });
  expect(fake.progress).toHaveLength(1);
});

test('a session that was superseded from elsewhere says nothing any more, not even that it is gone', async () => {
  const fake = fakeFleet();
  const { handlers } = handlersOf(fake);
  handlers.welcomed?.(helloOf(1));
  handlers.superseded?.(NODE, 1);
  const engine = {
    replica: 'demo',
    fence: 7,
    rank: 0,
    state: 'loading' as const,
    pid: 1,
    gpus: [],
    ports: {},
  };
  handlers.heartbeat(NODE, 1, {
    seq: 1,
    clockSkewMs: 0,
    engines: [{ ...engine, stage: 'weights', percent: 4 } as never],
  });
  expect(fake.progress).toEqual([]);
  expect(fake.gone).toEqual([]);
});

test('a second machine under a name that heartbeats at another instance is refused before its hello is told', async () => {
  const fake = fakeFleet();
  const { log } = recordingLog();
  const told: string[] = [];
  const state = { instance: 'cp-2', peer_addr: 'b:1', boot_id: 'boot-0', session: 5 };
  const fleet = Object.assign(fake.fleet, {
    node: async () => state,
    hello: async () => {
      told.push('hello');
      return { highest_session: 0, slots: {} };
    },
  });
  const elsewhere = { node_id: NODE, address: '10.0.0.9', boot_id: 'boot-0', silent: false };
  const peers = {
    live: async () => ({ instance: 'cp-2', nodes: [elsewhere] }) as never,
    superseded: async () => void told.push('the first machine was told') as never,
  };
  const handlers = agentHandlers({
    fleet,
    instance: 'cp-1',
    peerAddr: 'a:1',
    peers,
    others: () => true,
    log,
  });
  onTestFinished(() => handlers.close());
  expect((await handlers.hello(helloOf(6))).duplicate).toContain('two machines have the same node_id');
  expect(told).toEqual(['the first machine was told']);
  elsewhere.silent = true;
  expect((await handlers.hello(helloOf(7))).duplicate).toBeUndefined();
  expect(told).toContain('hello');
});
