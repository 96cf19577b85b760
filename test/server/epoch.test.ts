// Another ledger, a reset one, entities that somebody terminated: who is told what again.
import { WorkflowNotFoundError } from '@temporalio/client';
import { expect, onTestFinished, test } from 'vitest';
import { LlmgwError } from '../../contracts/errors.js';
import type { Holders, NodeHello } from '../../contracts/messages.js';
import type { LedgerRoutes, RouteTable } from '../../contracts/routes.js';
import { agentHandlers } from '../../server/agents.js';
import { LedgerWatch } from '../../server/epoch.js';
import type { FleetClient } from '../../server/fleet.js';
import { RouteHub } from '../../server/routes.js';
import type { RunStart } from '../../server/runs.js';
import { gpuOf, inventory, recordingLog, until } from '../stream/support.js';
import { fakeFleet } from './support.js';

function world(connected = ['gpu-a-01', 'gpu-b-02']) {
  const { log, lines } = recordingLog();
  const w = {
    routes: tableOf('e1', 'r1', null),
    gone: false,
    /** Run → how it began. */
    starts: new Map<string, RunStart | null>([['r1', { originalRunId: 'r1', continuedRunId: null }]]),
    openNodes: new Set(connected),
    connected,
    /** What was done, in its order. */
    did: [] as string[],
    failing: new Set<string>(),
    now: 1_000_000,
    lines,
  };
  const watch = new LedgerWatch({
    instance: 'cp-1',
    routes: async () => {
      if (!w.gone) return w.routes;
      const cause = new WorkflowNotFoundError('it is closed', 'fleet', undefined);
      throw new LlmgwError('UNAVAILABLE', 'there is no ledger', { cause });
    },
    register: async () => {
      w.did.push('register');
      w.gone = false;
    },
    rebuild: async ({ why }) => void w.did.push(`rebuild ${why.split(':')[0]}`),
    start: async (_id, run) => w.starts.get(run) ?? null,
    agents: {
      nodes: () => w.connected,
      helloAgain: async id => {
        if (w.failing.delete(id)) throw new Error('Temporal is away');
        w.did.push(`hello ${id}`);
      },
      tellHeard: async id => void w.did.push(`heard ${id}`),
    },
    nodeIsOpen: async id => w.openNodes.has(id),
    log,
    now: () => w.now,
  });
  onTestFinished(() => watch.close());
  /** A pull of the table, and all that follows from it. */
  const pull = async () => {
    const table = await watch.table();
    await new Promise(resolve => setImmediate(resolve));
    return table;
  };
  const look = (holders: Partial<Holders> = {}, listed = w.openNodes) => {
    const { epoch, run_id, continued_run_id } = w.routes;
    const whole: Holders = {
      ...{ epoch, run_id, continued_run_id, rebuilding: null, engines: 0, grants: [] },
      ...{ instances: ['cp-1'], nodes: w.connected },
      ...holders,
    };
    return watch.look(whole, { replicas: new Map(), nodes: listed });
  };
  const did = (what: string) => until(() => w.did.includes(what));
  return { w, pull, look, did };
}

function tableOf(epoch: string, run_id: string, continued_run_id: string | null): LedgerRoutes {
  return { version: 7, endpoints: [], epoch, run_id, continued_run_id, rebuilding: false };
}

const everyone = ['register', 'hello gpu-a-01', 'hello gpu-b-02'];

test('routers get the table alone, and while the ledger is rebuilt they keep theirs', async () => {
  const { w, pull } = world();
  expect(await pull()).toEqual({ version: 7, endpoints: [] });
  w.routes = { ...w.routes, version: 0, rebuilding: true };
  expect(await pull()).toBeNull();
  expect(w.did).toEqual([]);
});

test('INV-5: a router that watches hears nothing of a ledger that is rebuilt, and its next table soon after', async () => {
  let next: RouteTable | null = { version: 7, endpoints: [] };
  let pulls = 0;
  const pull = async () => {
    pulls++;
    return next;
  };
  const hub = new RouteHub({ pull, log: recordingLog().log });
  onTestFinished(() => hub.stop());
  const tables: number[] = [];
  await hub.refresh();
  hub.watch(
    t => void tables.push(t.version),
    () => {},
  );
  next = null;
  await hub.refresh();
  expect([hub.table()?.version, tables]).toEqual([7, [7]]);
  next = { version: 8, endpoints: [] };
  await until(() => tables.length === 2);
  expect([tables, pulls]).toEqual([[7, 8], 3]);
});

test('a ledger that is another one hears of this instance and of each of its nodes again', async () => {
  const { w, pull, did, look } = world();
  await pull();
  w.routes = tableOf('e2', 'r2', null);
  w.starts.set('r2', { originalRunId: 'r2', continuedRunId: null });
  await pull();
  await did('hello gpu-b-02');
  expect(w.did).toEqual(everyone);
  // The janitor must not go by what it has just read of it.
  expect(await look()).toBe(false);
  expect(await look()).toBe(true);
  expect(w.did).toEqual(everyone);
});

test('a ledger that continued as new, also several times since the last look, is the same one', async () => {
  const { w, pull } = world();
  await pull();
  w.routes = tableOf('e1', 'r2', 'r1');
  w.starts.set('r2', { originalRunId: 'r2', continuedRunId: 'r1' });
  await pull();
  for (const [run, before] of [
    ['r3', 'r2'],
    ['r4', 'r3'],
    ['r5', 'r4'],
  ] as const)
    w.starts.set(run, { originalRunId: run, continuedRunId: before });
  w.routes = tableOf('e1', 'r5', 'r4');
  await pull();
  // An answer that was on its way for long.
  w.routes = tableOf('e1', 'r2', 'r1');
  await pull();
  expect(w.did).toEqual([]);
});

test('a ledger that was reset is rebuilt first, and then told everything', async () => {
  const { w, pull, did } = world();
  await pull();
  w.routes = tableOf('e1', 'r2', 'r1');
  w.starts.set('r2', { originalRunId: 'r2', continuedRunId: 'r1' });
  await pull();
  // The reset of r2 began as r2 did: it continues r1 too.
  w.routes = tableOf('e1', 'r2-again', 'r1');
  w.starts.set('r2-again', { originalRunId: 'r2', continuedRunId: 'r1' });
  await pull();
  await did('hello gpu-b-02');
  expect(w.did).toEqual(['rebuild reset', ...everyone]);
  await pull();
  expect(w.did).toHaveLength(4);
});

test('a reset that lies behind a continuation is found too', async () => {
  const { w, pull, did } = world();
  await pull();
  w.starts.set('r1-again', { originalRunId: 'r1', continuedRunId: null });
  w.starts.set('r2', { originalRunId: 'r2', continuedRunId: 'r1-again' });
  w.routes = tableOf('e1', 'r2', 'r1-again');
  await pull();
  await did('rebuild reset');
});

test('a ledger that was reset while no control plane was up is rebuilt at the first look', async () => {
  const { w, pull, did } = world();
  w.starts.set('r1', { originalRunId: 'r0', continuedRunId: null });
  await pull();
  await did('hello gpu-b-02');
  expect(w.did).toEqual(['rebuild reset', ...everyone]);
});

test('a ledger that was terminated is started by the next pull', async () => {
  const { w, pull } = world();
  await pull();
  w.gone = true;
  expect(await pull()).toEqual({ version: 7, endpoints: [] });
  expect(w.did).toEqual(['register']);
});

test('an instance and a node that the ledger lacks are told again, the node once a minute', async () => {
  const { w, look, did } = world();
  await look({ instances: [], nodes: ['gpu-a-01'] });
  await did('hello gpu-b-02');
  expect(w.did).toEqual(['register', 'hello gpu-b-02']);
  w.now += 30_000;
  await look({ nodes: ['gpu-a-01'] });
  expect(w.did).toHaveLength(2);
  w.now += 30_000;
  await look({ nodes: ['gpu-a-01'] });
  await until(() => w.did.length === 3);
});

test('a connected node whose workflow was terminated says hello again; one that a late list lacks does not', async () => {
  const { w, look, did } = world();
  await look({}, new Set());
  expect(w.did).toEqual([]);
  w.openNodes.delete('gpu-b-02');
  await look({}, new Set());
  await did('hello gpu-b-02');
  expect(w.did).toEqual(['hello gpu-b-02']);
});

test('a hello that Temporal did not take is said again after a pause', async () => {
  const { w, look, did } = world();
  w.failing.add('gpu-a-01');
  await look({ nodes: [] });
  await until(() => w.lines.some(l => l.level === 40 && l.node === 'gpu-a-01'));
  expect(w.did).not.toContain('hello gpu-a-01');
  w.now += 5_000;
  await did('hello gpu-a-01');
});

test('a hello that is said again has the session, the last inventory and the engines of the last heartbeat', async () => {
  const hellos: NodeHello[] = [];
  const slots: unknown[] = [];
  const fake = fakeFleet();
  const fleet: Partial<FleetClient> = {
    ...fake.fleet,
    hello: async (_node, hello) => {
      hellos.push(hello);
      return { highest_session: hello.session, slots: { '0': 'GPU-b' } };
    },
  };
  const handlers = agentHandlers({
    fleet: fleet as FleetClient,
    instance: 'cp-1',
    peerAddr: null,
    tellSlots: (...told) => void slots.push(told),
    log: recordingLog().log,
  });
  onTestFinished(() => handlers.close());
  const engine = {
    replica: 'demo',
    fence: 7,
    rank: 0,
    pid: 1,
    gpus: [],
    ports: {},
    stage: null,
    percent: null,
  };
  handlers.welcomed?.({
    nodeId: 'gpu-a-01',
    session: 5,
    bootId: 'boot-1',
    protocolVersion: 1,
    compatible: true,
    capabilities: [],
    agentVersion: '0',
    inventory: inventory('gpu-a-01', 'boot-1'),
    engines: [],
    unacked: [],
    peerAddress: '10.0.0.5',
    heartbeatIntervalMs: 5_000,
    clockSkewMs: 0,
    unproven: false,
  });
  handlers.heartbeat('gpu-a-01', 5, { seq: 1, clockSkewMs: 12, engines: [{ ...engine, state: 'ready' }] });
  const newer = { ...inventory('gpu-a-01', 'boot-1'), gpus: [gpuOf('GPU-b')] };
  await handlers.inventoryChanged('gpu-a-01', 5, newer);
  expect(handlers.nodes()).toEqual(['gpu-a-01']);
  await handlers.helloAgain('gpu-a-01');
  expect(hellos).toMatchObject([
    {
      session: 5,
      instance: 'cp-1',
      clock_offset_ms: 12,
      engines: [{ replica: 'demo', state: 'ready' }],
      inventory: { gpus: newer.gpus },
    },
  ]);
  // A node workflow that began anew has numbered the GPUs anew: the agent must know.
  expect(slots).toEqual([['gpu-a-01', 5, { 0: 'GPU-b' }]]);
  handlers.gone('gpu-a-01', 5, 'closed');
  expect(handlers.nodes()).toEqual([]);
  await handlers.helloAgain('gpu-a-01');
  expect(hellos).toHaveLength(1);
});

test('a node that is heard here and counts as silent has its heartbeats told at once', async () => {
  const { w, pull, look } = world();
  w.connected = ['here'];
  w.openNodes.add('here');
  await pull();
  await look({ quiet: ['elsewhere', 'here'] });
  expect(w.did.filter(d => d.startsWith('heard'))).toEqual(['heard here']);
});
