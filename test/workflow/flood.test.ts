// Floods over several continue-as-new: of signals to all three workflow types at once, of replicas that want GPUs, of
// updates; with the ledger's own survey, orders and pushes under way. The limits are the real ones in miniature.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { nodeWorkflowId, replicaWorkflowId } from '../../contracts/ids.js';
import { facts } from '../domain/fixtures.js';
import { eventually, type Installation, SHORT, TestServer } from './harness.js';
import { runsOf } from './history.js';
import { exitEvent, inventory, type SimNode, strongProof } from './sim-node.js';

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server?.stop());

const SHORT_RUNS = { ...SHORT, maxSignals: 40, maxEvents: 250 };

async function flood(count: number, send: (i: number) => Promise<unknown>): Promise<void> {
  let next = 0;
  const one = async () => {
    while (next < count) await send(next++);
  };
  await Promise.all(Array.from({ length: 20 }, one));
}

/** An operator whose update isn't answered in time on a busy machine asks again. */
const asked = async <T>(ask: () => Promise<T>): Promise<T> => {
  for (let tries = 1; ; tries++) {
    try {
      return await ask();
    } catch (err) {
      if (tries === 5) throw err;
    }
  }
};

const runs = async (installation: Installation, workflowId: string, first: string) =>
  (await runsOf(installation.client.workflow.getHandle(workflowId), first)).runs;
const runIdOf = async (installation: Installation, workflowId: string) =>
  (await installation.client.workflow.getHandle(workflowId).describe()).runId;

describe('a flood over several continue-as-new', () => {
  it('of replicas, reports, hellos, garbage and updates loses none, and books no GPU twice', {
    timeout: 60_000,
  }, async () => {
    const installation = await server.install({ times: SHORT_RUNS });
    const nodes: SimNode[] = [];
    for (const id of ['n0', 'n1']) nodes.push(await installation.node(id));
    const ids = ['fleet', nodeWorkflowId('n0')];
    const first = await Promise.all(ids.map(id => runIdOf(installation, id)));
    const names = Array.from({ length: 16 }, (_, i) => `r-${i}`);
    const ledger = installation.ledgerHandle();
    const n0 = installation.client.workflow.getHandle(nodeWorkflowId('n0'));
    const [gpu] = inventory('n0', 1).gpus;
    const extra = Array.from({ length: 25 }, (_, i) => `GPU-extra-${i}`);
    const own = inventory('n0', 8);
    const brakes: boolean[] = [];
    await Promise.all([
      flood(16, i => installation.startReplica(names[i]!)),
      flood(100, i =>
        i % 5 === 0
          ? ledger.signal('reserve', { garbage: i })
          : ledger.signal('node', facts({ node_id: `other-${i}`, state: 'silent', usable: 0 })),
      ),
      // Each tells of one GPU more than the node has: none of them may be forgotten.
      flood(50, i =>
        i % 2 === 0
          ? installation.fleet.inventory('n0', {
              session: 1,
              inventory: { ...own, gpus: [...own.gpus, { ...gpu!, uuid: extra[i / 2]! }] },
            })
          : n0.signal('hello', { garbage: i }),
      ),
      (async () => {
        for (let i = 0; i < 4; i++)
          brakes.push((await asked(() => installation.fleet.brake(i % 2 === 0, 'ada'))).on);
      })(),
    ]);
    expect(brakes).toEqual([true, false, true, false]);
    const whole = await eventually(
      () => installation.fleet.ledger().catch(() => null),
      s => Object.keys(s?.endpoints ?? {}).length === 16,
      'all 16 serve',
      50_000,
    );
    const state = whole!;
    expect(Object.keys(state.nodes).filter(n => n.startsWith('other-'))).toHaveLength(80);
    expect(
      Object.values(state.grants)
        .map(g => g.replica)
        .toSorted(),
    ).toEqual(names.toSorted());
    const held = Object.values(state.grants).flatMap(g =>
      g.members.flatMap(m => m.slots.map(s => `${m.node}/${s}`)),
    );
    expect(new Set(held).size).toBe(16);
    expect(nodes.reduce((n, node) => n + node.countOf('launch'), 0)).toBe(16);
    expect(state.journal).toHaveLength(50);
    expect(Object.values((await asked(() => installation.fleet.node('n0'))).slots)).toEqual(
      expect.arrayContaining(extra),
    );
    for (const [i, id] of ids.entries()) expect(await runs(installation, id, first[i]!)).toBeGreaterThan(1);
  });

  it('of a replica keeps its journal of the last 50, its exits and the operators’ updates', {
    timeout: 60_000,
  }, async () => {
    const installation = await server.install({ times: { ...SHORT_RUNS, maxSignals: 12 } });
    const node = await installation.node('n1');
    const replica = await installation.startReplica('busy');
    const { fence } = await replica.reaches('ready');
    const first = await runIdOf(installation, replicaWorkflowId('busy'));
    const noise = (i: number) => replica.handle.signal('progress', { garbage: i });
    const [, , restarted] = await Promise.all([
      flood(80, noise),
      node.exit('busy', fence!),
      replica.reaches('ready', 2).then(() => replica.restart()),
    ]);
    expect(restarted.result).toBe('accepted');
    const last = await replica.reaches('ready', 3);
    await flood(30, noise);
    // Told again in a later run: known by its fence.
    await installation.fleet.engineEvent('n1', exitEvent('busy', fence!));
    const { journal } = await replica.status();
    expect(journal).toHaveLength(50);
    expect(await replica.status()).toMatchObject({ phase: 'ready', generation: 3, fence: last.fence });
    expect(node.countOf('launch')).toBe(3);
    expect(await runs(installation, replicaWorkflowId('busy'), first)).toBeGreaterThan(2);
  });
});

describe('what the ledger has under way when it continues as new', () => {
  it('is begun again: the survey of all pages, the stop of what was given up', async () => {
    const installation = await server.install({ times: SHORT_RUNS, ledger: false });
    const asked: (string | null)[] = [];
    let answer: (() => void) | null = null;
    installation.onSurvey = async ({ page }) => {
      asked.push(page);
      if (page === null) return { replicas: [], nodes: ['n1'], next: 'second' };
      if (answer === null && asked.length < 3)
        await new Promise<void>(resolve => {
          answer = resolve;
        });
      return { replicas: [{ name: 'silent-one', run_id: 'r', node: null }], nodes: ['n2'], next: null };
    };
    await installation.startLedger();
    await eventually(
      () => answer,
      a => a !== null,
      'the second page is asked for',
    );
    const ledger = installation.ledgerHandle();
    const first = await runIdOf(installation, 'fleet');
    await flood(60, i => ledger.signal('node', facts({ node_id: `other-${i}`, state: 'silent' })));
    await eventually(
      () => asked,
      a => a.length >= 4,
      'the next run asks again from the first page',
    );
    answer!();
    const state = await eventually(
      installation.fleet.ledger,
      s => s.rebuilding === null,
      'it is whole: the replica of the second page turned out to be closed',
    );
    expect(state.expected.toSorted()).toEqual(['n1', 'n2']);
    expect(Object.keys(state.nodes)).toHaveLength(60);
    expect(await runs(installation, 'fleet', first)).toBeGreaterThan(1);
  });

  it('is told to the node once more, and counted once: a stop that is under way', async () => {
    const installation = await server.install({ times: SHORT_RUNS });
    const node = await installation.node('n1');
    const replica = await installation.startReplica('left');
    const { fence } = await replica.reaches('ready');
    const stop = node.hold('stop');
    await replica.handle.terminate('by the test');
    const { raw, closeTime } = await replica.handle.describe();
    await installation.fleet.closed({
      closed: [
        {
          replica: 'left',
          first_run_id: raw.workflowExecutionInfo!.firstRunId!,
          status: 'TERMINATED',
          closed_at: closeTime!.getTime() + 999,
        },
      ],
    });
    await stop.called;
    const ledger = installation.ledgerHandle();
    const first = await runIdOf(installation, 'fleet');
    await flood(90, i => ledger.signal('node', facts({ node_id: `other-${i}`, state: 'silent' })));
    stop.answer(strongProof());
    await installation.row('n1', r => r.gpus.free === 8, 'is free');
    expect(await runs(installation, 'fleet', first)).toBeGreaterThan(1);
    expect(node.calls.filter(c => c.activity === 'stop').every(c => c.fence === fence)).toBe(true);
    expect((await installation.fleet.routes()).endpoints).toEqual([]);
  });
});

it('every history of this file replays', { timeout: 60_000 }, async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThan(20);
});
