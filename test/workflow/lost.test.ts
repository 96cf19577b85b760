// What gets lost, comes late or comes twice between the parts.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { shapeOf } from '../../domain/replica/make.js';
import { spec } from '../domain/fixtures.js';
import { eventually, type Installation, TestServer } from './harness.js';
import { exitEvent, strongProof } from './sim-node.js';

let server: TestServer;
let installation: Installation;

beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install();
});
afterAll(() => server?.stop());

const holders = async (name: string) =>
  Object.values((await installation.fleet.ledger()).grants).filter(g => g.replica === name);

describe('an agent that goes away', () => {
  it('before it takes the order costs that node: the next one is taken, and no GPU stays booked', async () => {
    const [away, other] = ['n-away', 'n-other'];
    // It said hello, but nobody polls its queue.
    await installation.silentNode(away).hello();
    const replica = await installation.startReplica('not-taken', { placement: { nodes: [away, other] } });
    await replica.reaches('placing');
    await installation.node(other);
    const status = await replica.reaches('ready', 2);
    expect(status.members).toMatchObject([{ node: other }]);
    expect(status.restarts.in_window).toBe(0);
    expect(status.journal.map(j => j.text)).toContainEqual(
      expect.stringContaining(`${away} did not take the order`),
    );
    await installation.row(away, r => r.gpus.free === 8, 'has its GPUs back');
  });

  it('in the middle of a launch is given the same order again, under the same fence, and nothing is counted', async () => {
    const node = await installation.node('n-launching');
    const launch = node.hold('launch');
    const replica = await installation.startReplica('relaunched', { placement: { nodes: [node.id] } });
    const order = await launch.called;
    await node.end({ kill: true });
    await node.start();
    const status = await replica.reaches('ready');
    expect(status).toMatchObject({ generation: 1, fence: order.fence, restarts: { in_window: 0 } });
    expect(node.calls.map(c => [c.activity, c.fence])).toEqual([
      ['launch', order.fence],
      ['launch', order.fence],
      ['await_ready', order.fence],
    ]);
  });

  it('while an engine loads goes on watching when it is back, in the same generation', async () => {
    const node = await installation.node('n-loading');
    const loading = node.hold('await_ready');
    const replica = await installation.startReplica('loads-on', { placement: { nodes: [node.id] } });
    const order = await loading.called;
    await node.end({ kill: true });
    await node.start();
    const status = await replica.reaches('ready');
    expect(status).toMatchObject({ generation: 1, fence: order.fence, restarts: { in_window: 0 } });
    expect(node.countOf('launch')).toBe(1);
    expect(node.countOf('stop')).toBe(0);
  });

  it('before it can stop a crashed engine keeps the GPUs booked until it is back and has proven the stop (INV-1, INV-2)', async () => {
    const node = await installation.node('n-silent-stop', 1);
    const replica = await installation.startReplica('waits-for-proof', { placement: { nodes: [node.id] } });
    const { fence } = await replica.reaches('ready');
    await node.end();
    await node.exit('waits-for-proof', fence!);
    await eventually(
      replica.status,
      s => s.phase === 'stopping' && s.reason.includes(`${node.id} has not stopped it yet`),
      'it says that the stop is still open',
    );
    expect(await holders('waits-for-proof')).toMatchObject([{ fence, left: {} }]);
    await node.start();
    expect((await replica.reaches('ready', 2)).fence).toBeGreaterThan(fence!);
  });

  it('for ever does not keep a cancelled replica: it ends and leaves the hold, which is not free (INV-1)', async () => {
    const node = await installation.node('n-gone');
    const replica = await installation.startReplica('hold-left', { placement: { nodes: [node.id] } });
    const { fence } = await replica.reaches('ready');
    await node.end();
    await replica.handle.cancel();
    const ended = await replica.ended();
    expect(ended.status).toBe('CANCELLED');
    expect((await replica.status()).reason).toContain(`hold left on ${node.id}`);
    expect(await holders('hold-left')).toMatchObject([
      { fence, left: { [node.id]: 'the stop is not proven' } },
    ]);
    expect(await installation.row(node.id, r => r.gpus.leaked === 1, 'shows it')).toMatchObject({
      gpus: { free: 7, leaked: 1 },
    });
  });
});

it('a stop whose proof cannot be had leaves those GPUs out, and the next generation takes others; the ledger goes on trying', async () => {
  const node = await installation.node('n-leaks', 2);
  const replica = await installation.startReplica('leaks', { placement: { nodes: [node.id] } });
  const { fence } = await replica.reaches('ready');
  node.hold('stop').refuse('STOP_INCOMPLETE', 'pid 4711 holds 70 GiB of GPU 0');
  // The bound of all attempts is reached in the second one: what the first said is still what is told.
  node.hold('stop');
  const byTheLedger = node.hold('stop');
  await node.exit('leaks', fence!);
  const next = await replica.reaches('ready', 2);
  expect(next.members[0]?.gpus).toEqual(['GPU-n-leaks-1']);
  expect(next.journal.map(j => j.text)).toContainEqual(expect.stringContaining('pid 4711 holds'));
  expect(await installation.row(node.id, r => r.gpus.leaked === 1, 'shows the leak')).toMatchObject({
    gpus: { total: 2, free: 0, held: 1, leaked: 1 },
  });
  await byTheLedger.called;
  byTheLedger.answer(strongProof());
  await installation.row(node.id, r => r.gpus.leaked === 0 && r.gpus.free === 1, 'has the GPU back');
});

describe('a message that comes twice or late', () => {
  it('of an exit starts one next generation, however often it is told, and an older one starts none', async () => {
    const node = await installation.node('n-twice');
    const replica = await installation.startReplica('twice', { placement: { nodes: [node.id] } });
    const { fence } = await replica.reaches('ready');
    const exit = () => node.exit('twice', fence!);
    await Promise.all([exit(), exit(), exit(), exit(), exit()]);
    const next = await replica.reaches('ready', 2);
    await Promise.all([exit(), node.exit('twice', fence!, {}, 2)]);
    // Both of them are in the history before the query is answered.
    expect(await replica.status()).toMatchObject({
      phase: 'ready',
      generation: 2,
      fence: next.fence,
      restarts: { in_window: 1 },
    });
    expect(node.countOf('launch')).toBe(2);
  });

  it('to the ledger is answered as the first one was, and grants once', async () => {
    const node = await installation.node('n-repeat');
    const replica = await installation.startReplica('repeat', { placement: { nodes: [node.id] } });
    const { fence } = await replica.reaches('ready');
    const [grant] = await holders('repeat');
    const reserve = {
      kind: 'reserve',
      key: grant!.key,
      replica: 'repeat',
      run_id: grant!.run_id,
      first_run_id: grant!.first_run_id,
      shape: shapeOf(spec({ placement: { nodes: [node.id] } })),
      exclude: [],
      prefer: null,
    };
    for (let i = 0; i < 3; i++) await installation.ledgerHandle().signal('reserve', reserve);
    expect((await holders('repeat')).map(g => g.fence)).toEqual([fence]);
    expect((await installation.fleet.ledger()).waiting.filter(w => w.replica === 'repeat')).toEqual([]);
    expect(await replica.status()).toMatchObject({ phase: 'ready', generation: 1, fence });
  });
});

describe('a workflow that is gone', () => {
  it('and was granted GPUs meanwhile does not keep them', async () => {
    const nodeId = 'n-undeliverable';
    const replica = await installation.startReplica('terminated', { placement: { nodes: [nodeId] } });
    await eventually(
      async () => (await installation.fleet.ledger()).waiting.some(w => w.replica === 'terminated'),
      Boolean,
      'it waits for GPUs',
    );
    await replica.handle.terminate('by the test');
    await installation.node(nodeId);
    await eventually(
      async () => (await installation.fleet.ledger()).journal.map(j => j.text),
      journal => journal.some(text => /grant \d+ of terminated returned/.test(text)),
      'the grant came back',
    );
    expect(await holders('terminated')).toEqual([]);
    await installation.row(nodeId, r => r.gpus.free === 8, 'is free');
  });

  it('and left an engine has it claimed by the next run of its name: it serves on, with its fence (INV-5)', async () => {
    const node = await installation.node('n-claimed', 1);
    const spec = { placement: { nodes: [node.id] } };
    const first = await installation.startReplica('claimed', spec);
    const { fence, members } = await first.reaches('ready');
    await first.handle.terminate('by the test');
    const next = await (await installation.startReplica('claimed', spec)).reaches('ready');
    expect(next).toMatchObject({ fence, generation: 1, members: [{ pid: members[0]!.pid }] });
    expect(node.calls.map(c => c.activity)).toEqual(['launch', 'await_ready', 'adopt', 'await_ready']);
    expect(await holders('claimed')).toMatchObject([{ fence }]);
  });

  it('and left an engine of another spec has it stopped with proof by the next run, before that takes GPUs (INV-1)', async () => {
    const node = await installation.node('n-left', 1);
    const first = await installation.startReplica('left', {
      placement: { nodes: [node.id] },
      args: ['--seed', '1'],
    });
    const { fence } = await first.reaches('ready');
    await first.handle.terminate('by the test');
    expect(await holders('left')).toMatchObject([{ fence }]);
    const next = await (await installation.startReplica('left', { placement: { nodes: [node.id] } })).reaches(
      'ready',
    );
    expect(node.calls.map(c => [c.activity, c.fence])).toEqual([
      ['launch', fence],
      ['await_ready', fence],
      ['adopt', fence],
      ['stop', fence],
      ['launch', next.fence],
      ['await_ready', next.fence],
    ]);
    expect((await holders('left')).map(g => g.fence)).toEqual([next.fence]);
  });

  it('has its exits kept by the ledger as unclaimed', async () => {
    expect(await installation.fleet.engineEvent('n1', exitEvent('nobody', 4_711))).toBe('unclaimed');
    const { exits } = await installation.fleet.ledger();
    expect(exits).toMatchObject([{ event: { replica: 'nobody', fence: 4_711, seq: 1 } }]);
  });
});

describe('a control plane instance that is gone', () => {
  it('holds up neither a drain nor the others that are told of a new table', async () => {
    const apart = await server.install();
    await apart.fleet.register({
      instance: 'dead',
      queue: 'llmgw-cp-dead',
      peer_addr: null,
      version: '0.1.0',
    });
    const node = await apart.node('n1');
    const replica = await apart.startReplica('drains', { drain_timeout: '20s' });
    await replica.reaches('ready');
    await eventually(replica.route, r => r !== undefined, 'the endpoint is in the table');
    const { version } = await apart.fleet.routes();
    await eventually(
      () => apart.pushed,
      pushed => pushed.includes(version),
      'the live instance was told',
    );
    await replica.handle.cancel();
    expect((await replica.ended()).status).toBe('CANCELLED');
    expect(apart.drains).toMatchObject([{ replica: 'drains' }]);
    expect(node.countOf('stop')).toBe(1);
  });
});

describe('a ledger that is not there', () => {
  it('at first is waited for, by replicas and nodes, and everything is told to it when it comes', async () => {
    const apart = await server.install({ ledger: false });
    const node = await apart.silentNode('n1').start();
    await node.hello();
    const replica = await apart.startReplica('early');
    const loser = await apart.startReplica('cancelled-early');
    await replica.reaches('pending');
    await loser.reaches('pending');
    await loser.handle.cancel();
    await apart.startLedger();
    // As a control plane does that finds another ledger.
    await node.hello({ session: node.session });
    const status = await replica.reaches('ready');
    expect(status).toMatchObject({ generation: 1, members: [{ node: 'n1' }] });
    expect((await loser.ended()).status).toBe('CANCELLED');
    expect(Object.values((await apart.fleet.ledger()).grants).map(g => g.replica)).toEqual(['early']);
    expect((await apart.fleet.ledger()).waiting).toEqual([]);
  });
});

it('every history of this file replays', async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThan(20);
});
