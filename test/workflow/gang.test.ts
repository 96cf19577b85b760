// A replica of several members on real workflows, with a node for each (INV-7): whichever member ends, or whichever node
// is cut off, in whatever phase, all of it is stopped with proof and begins anew.
import { WorkflowUpdateFailedError } from '@temporalio/client';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { eventually, type Installation, type Replica, SHORT, TestServer } from './harness.js';
import { activitySummaries, currentDetails, runsOf } from './history.js';
import { exitEvent, type SimNode, strongProof } from './sim-node.js';

let server: TestServer;
let installation: Installation;
/** Of all tests but the last: a node costs a worker and a workflow, and each gang has GPUs of its own on it. */
let nodes: SimNode[];
/** Started by the test. */
let open: Replica[] = [];

beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install();
  nodes = await rack(installation, 4);
});
afterAll(() => server?.stop());
afterEach(async () => {
  for (const node of nodes) node.unhold();
  const last = open.filter(r => r.name !== 'long');
  open = [];
  await Promise.all(
    last.map(r =>
      r.handle
        .cancel()
        .then(() => r.ended())
        .catch(() => undefined),
    ),
  );
});

/** Connected nodes on one fabric. */
const rack = (at: Installation, count: number): Promise<SimNode[]> =>
  Promise.all(
    ['n1', 'n2', 'n3', 'n4'].slice(0, count).map(async id => {
      const node = at.silentNode(id);
      node.fabrics = ['ib-a'];
      return (await node.start()).hello();
    }),
  );

const gang = async (
  name: string,
  over: Record<string, unknown> = {},
  at = installation,
): Promise<Replica> => {
  const replica = await at.startReplica(name, {
    nodes: 3,
    tensor_parallel: 3,
    restart: { max_failures: 20, backoff_base: '50ms' },
    on_node_loss: { replace_after: '100ms' },
    ...over,
  });
  open.push(replica);
  return replica;
};

/** The nodes in rank order, as placed. */
async function placed(replica: Replica): Promise<SimNode[]> {
  const { members } = await replica.status();
  return members.map(m => nodes.find(n => n.id === m.node)!);
}

const orders = (node: SimNode, fence: number): string[] =>
  node.calls.filter(c => c.fence === fence).map(c => c.activity);
const holders = async (name: string) =>
  Object.values((await installation.fleet.ledger()).grants).filter(g => g.replica === name);

/** Its agent is gone, and so is everything else of it. */
async function cut(node: SimNode): Promise<void> {
  await node.end({ kill: true });
  await node.hello({ session: node.session, heartbeat_interval_ms: 50 });
  installation.onSilent = async ({ node_id, believed }) =>
    node_id === node.id && believed === 'silent'
      ? { verdict: 'dark', evidence: 'the test' }
      : new Promise(() => undefined);
  const { session, id } = node;
  await installation.fleet.gone(id, { session, instance: 'cp', reason: 'the connection closed' });
}

describe('a gang', () => {
  it('is prepared, started with all addresses, and ready by its first member; people see every member', async () => {
    for (const n of nodes) n.hold('spawn');
    const replica = await gang('starts');
    const { fence } = await replica.reaches('starting');
    const on = await placed(replica);
    const peers = on.map(({ id }, rank) => ({ rank, node: id, mgmt_addr: '127.0.0.1' }));
    await eventually(
      () => on.map(n => n.spawns.length),
      counts => counts.every(n => n === 1),
      'each is ordered to start',
    );
    on.forEach((n, rank) => {
      expect(n.spawns[0]).toMatchObject({ rank, fence, nodes: 3, fabric: 'ib-a', peers });
    });
    await replica.handle.cancel();
    expect((await replica.ended()).status).toBe('CANCELLED');
    for (const n of nodes) n.unhold();

    const again = await gang('starts');
    const ready = await again.reaches('ready');
    expect(ready.members.map(m => [m.rank, m.state, m.gpus.length])).toEqual([
      [0, 'ready', 1],
      [1, 'ready', 1],
      [2, 'ready', 1],
    ]);
    const ids = ready.members.map(m => m.node);
    expect(await eventually(again.route, r => r !== undefined, 'its route')).toMatchObject({ node: ids[0] });
    expect((await again.handle.describe()).memo).toMatchObject({ node: ids.join(', '), phase: 'ready' });
    expect(await currentDetails(again.handle)).toContain(`- rank 2 on ${ids[2]}: ready, pid`);
    await again.handle.cancel();
    await again.ended();
    for (const n of on) expect(orders(n, ready.fence!)).toEqual(['prepare', 'spawn', 'await_ready', 'stop']);
    expect(await holders('starts')).toEqual([]);
    const summaries = await activitySummaries(again.handle);
    expect(summaries).toContain(`prepare: prepare generation 1, rank 1, on ${ids[1]}, slots 0`);
    expect(summaries).toContain(`stop: stop, rank 2, on ${ids[2]}: cancelled`);
  });

  it.each([0, 1, 2])(
    'of which rank %i is killed, in each phase, stops all and serves again on a new fence',
    async rank => {
      const name = `kill-${rank}`;
      for (const n of nodes) n.hold('spawn');
      const replica = await gang(name);
      const fences: number[] = [];
      for (const phase of ['starting', 'loading', 'ready'] as const) {
        const generation = fences.length + 1;
        const { fence } = await replica.reaches(phase, generation);
        const on = await placed(replica);
        for (const n of nodes) n.unhold();
        if (phase === 'starting') for (const n of nodes) n.hold('await_ready');
        // As its node knows it, whether or not the order to start it was answered.
        on[rank]!.engines.set(fence!, { ...on[rank]!.engines.get(fence!)!, rank });
        const sentence = `killed in ${phase}`;
        await on[rank]!.exit(name, fence!, { sentence, exit: { code: 0, signal: null } });
        const next = await eventually(replica.status, s => s.generation > generation, 'the next generation');
        expect(next.last_failure).toMatchObject({ member: rank, sentence });
        for (const n of on) expect(orders(n, fence!).filter(a => a === 'stop')).toEqual(['stop']);
        fences.push(fence!);
      }
      const { fence } = await replica.reaches('ready', 4);
      expect([...fences, fence!]).toEqual([...fences, fence!].toSorted((a, b) => a - b));
      expect((await holders(name)).map(g => g.fence)).toEqual([fence]);
    },
  );

  it.each(['starting', 'loading', 'ready', 'stopping'] as const)(
    'of which a node is cut off in %s stops the others first, and goes elsewhere without the lost one',
    async phase => {
      const name = `cut-${phase}`;
      if (phase === 'starting') for (const n of nodes) n.hold('spawn');
      if (phase === 'loading') for (const n of nodes) n.hold('await_ready');
      const replica = await gang(name);
      const { fence } = await replica.reaches(phase === 'stopping' ? 'ready' : phase);
      for (const n of nodes) n.unhold();
      const [first, lost, third] = await placed(replica);
      if (phase === 'stopping') {
        const stop = lost!.hold('stop');
        await first!.exit(name, fence!);
        await stop.called;
      }
      await cut(lost!);
      const next = await eventually(replica.status, s => s.generation === 2, 'the next generation');
      expect(next.members.map(m => m.node)).not.toContain(lost!.id);
      for (const n of [first!, third!]) expect(orders(n, fence!).at(-1)).toBe('stop');
      // The lost member's hold is kept, and nothing else of that generation (INV-1).
      const kept = (await holders(name)).find(g => g.fence === fence);
      expect(kept?.members.map(m => m.node)).toEqual([lost!.id]);
      await lost!.start();
      await lost!.hello();
    },
  );

  it('takes another node where one has another version than the others, or does not take the order', async () => {
    const [odd, away] = await placed(await gang('probe').then(r => r.reaches('ready').then(() => r)));
    odd!.version = '0.32.0';
    const replica = await gang('odd');
    const ready = await replica.reaches('ready');
    expect(ready.last_failure?.sentence).toMatch(/has vllm 0.32.0 \(mp\) and n\d has vllm 0.33.0 \(mp\)/);
    expect(ready).toMatchObject({ generation: 2, restarts: { in_window: 0 } });
    expect(ready.members.map(m => m.node)).not.toContain(odd!.id);
    odd!.version = '0.33.0';
    await away!.end();
    const other = await gang('away', {
      nodes: 2,
      tensor_parallel: 2,
      placement: { nodes: nodes.map(n => n.id) },
    });
    const taken = await other.reaches('ready');
    expect(taken.members.map(m => m.node)).not.toContain(away!.id);
    expect((await holders('away')).map(g => g.fence)).toEqual([taken.fence]);
    await away!.start();
  });

  it('asks every node before it is drained for the next generation, and changes its size', async () => {
    const replica = await gang('asks', { tensor_parallel: 6 });
    const { fence } = await replica.reaches('ready');
    const on = await placed(replica);
    on[2]!.refuseCheck = { code: 'MODEL_MISSING', sentence: 'no /models/x' };
    const no = await replica.restart().then(
      () => null,
      err => err,
    );
    expect(no).toBeInstanceOf(WorkflowUpdateFailedError);
    expect(no.cause.message).toContain('the old one serves on');
    expect(on.map(n => n.checks.map(o => [o.fence, o.rank]))).toEqual([0, 1, 2].map(rank => [[fence, rank]]));
    expect(await replica.status()).toMatchObject({ phase: 'ready', fence });
    const spec = { model: 'Qwen/Qwen3-8B', engine: 'vllm', nodes: 2, tensor_parallel: 6 };
    expect((await replica.apply(spec)).result).toBe('accepted');
    on[2]!.refuseCheck = null;
    const smaller = await replica.reaches('ready', 2);
    expect(smaller.members.map(m => [m.rank, m.gpus.length])).toEqual([
      [0, 3],
      [1, 3],
    ]);
    await replica.restart();
    expect((await replica.reaches('ready', 3)).restarts.in_window).toBe(0);
  });

  it.each([
    ['placing', 'prepare'],
    ['loading', 'await_ready'],
  ] as const)('cancelled in %s leaves no member and no hold', async (phase, activity) => {
    for (const n of nodes) n.hold(activity);
    const replica = await gang(`cancel-${phase}`);
    const { fence } = await replica.reaches(phase);
    const on = await placed(replica);
    await replica.handle.cancel();
    expect((await replica.ended()).status).toBe('CANCELLED');
    for (const n of on) expect(orders(n, fence!).at(-1)).toBe('stop');
    expect(await holders(replica.name)).toEqual([]);
  });

  it('shows the member that failed first although it is heard last', async () => {
    const replica = await gang('first');
    const { fence } = await replica.reaches('ready');
    const on = await placed(replica);
    const stops = on.map(n => n.hold('stop'));
    const exits = async (rank: number, at: string, sentence: string) => {
      const event = { ...exitEvent('first', fence!, { sentence }), rank, at };
      await installation.fleet.engineEvent(on[rank]!.id, event);
    };
    await exits(0, '2026-01-01T00:00:09Z', 'the collective timed out');
    await Promise.all(stops.map(s => s.called));
    await exits(2, '2026-01-01T00:00:01Z', 'CUDA error: an illegal memory access');
    const seen = await eventually(replica.status, s => s.last_failure?.member === 2, 'the first is shown');
    expect(seen.reason).toContain('an illegal memory access');
    for (const s of stops) s.answer(strongProof());
    expect((await replica.reaches('ready', 2)).restarts.in_window).toBe(1);
  });

  it('that another run left is claimed whole: every process goes on', async () => {
    const first = await gang('claimed');
    const { fence, members } = await first.reaches('ready');
    const on = await placed(first);
    await first.handle.terminate('by the test');
    const next = await (await gang('claimed')).reaches('ready');
    expect(next).toMatchObject({ fence, generation: 1 });
    expect(next.members.map(m => m.pid)).toEqual(members.map(m => m.pid));
    for (const n of on)
      expect(orders(n, fence!)).toEqual(['prepare', 'spawn', 'await_ready', 'adopt', 'await_ready']);
  });
});

it('continues as new in the middle of a stop, and orders the stop again only where it is open', async () => {
  const apart = await server.install({ times: { ...SHORT, maxSignals: 12 } });
  const [n1, n2, n3] = await rack(apart, 3);
  const replica = await gang('long', {}, apart);
  const { fence } = await replica.reaches('ready');
  const first = await replica.handle.describe();
  await n2!.end();
  await n3!.exit('long', fence!);
  await eventually(replica.status, s => s.reason.includes('n2 has not stopped it yet'), 'one is open');
  for (let i = 0; i < 15; i++)
    await apart.fleet.progress('long', { fence: 1, stage: 'of another time', percent: i });
  const handle = apart.client.workflow.getHandle('replica/long');
  await eventually(
    () => handle.describe(),
    d => d.runId !== first.runId,
    'it has continued as new',
  );
  await n2!.start();
  await eventually(
    () => [n1!, n2!, n3!].map(n => n.countOf('spawn')),
    counts => counts.every(n => n === 2),
    'it is started anew',
  );
  for (const n of [n1!, n2!, n3!]) expect(orders(n, fence!).filter(a => a === 'stop')).toEqual(['stop']);
  expect((await runsOf(handle, first.runId)).runs).toBeGreaterThan(1);
});

it('every history of this file replays', async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThan(15);
});
