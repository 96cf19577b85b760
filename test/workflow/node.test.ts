import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SilentVerdict } from '../../contracts/activities.js';
import { nodeWorkflowId } from '../../contracts/ids.js';
import type { NodeRow } from '../../contracts/status.js';
import { survey } from '../../server/survey.js';
import { eventually, type Installation, TestServer } from './harness.js';
import { activitySummaries, currentDetails } from './history.js';
import { gpuId, inventory, type SimNode } from './sim-node.js';

let server: TestServer;
let installation: Installation;

beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install();
});
afterAll(() => server?.stop());

const gone = (node: SimNode, session: number, reason = 'the connection closed') =>
  installation.fleet.gone(node.id, { session, instance: 'cp', reason });
const digest = (node: SimNode, session: number) =>
  installation.fleet.digest(node.id, { session, instance: 'cp', heartbeats: 3 });
const slotsOf = async (node: SimNode) =>
  (await installation.fleet.query<{ slots: Record<string, string> }>(nodeWorkflowId(node.id), 'welcome'))
    .slots;

describe('a node', () => {
  it('that says hello is in the ledger with what it has, and its slots are numbered', async () => {
    const node = await installation
      .silentNode('n-hello', 2)
      .hello({ proven: false, inventory: inventory('n-hello', 2, { labels: { rack: 'r12' } }) });
    // A ledger that has just begun blocks every node for a moment.
    const settled = (r: NodeRow) => r.state === 'connected' && r.conditions.every(c => c.code !== 'blocked');
    const row = await installation.row(node.id, settled, 'is connected');
    expect(row).toMatchObject({
      labels: { rack: 'r12' },
      gpus: { total: 2, free: 2, held: 0, foreign: 0, unusable: 0 },
      conditions: [{ code: 'unproven' }],
    });
    expect(await slotsOf(node)).toEqual({ 0: gpuId(node.id, 0), 1: gpuId(node.id, 1) });
    const handle = installation.client.workflow.getHandle(nodeWorkflowId(node.id));
    expect(await currentDetails(handle)).toMatch(/^\*\*connected\*\* since .*held by cp, session 1/s);
  });

  it('whose stream ended is silent after three intervals, gets no new replica, and is taken again at its next hello', async () => {
    const node = await installation.silentNode('n-silent').start();
    await node.hello({ heartbeat_interval_ms: 100 });
    await gone(node, 1, 'no heartbeat arrived');
    const row = await installation.row(node.id, r => r.state === 'silent', 'is silent');
    expect(row.reason).toBe('no heartbeat for 3 intervals: stream ended: no heartbeat arrived');
    const replica = await installation.startReplica('waits', { placement: { nodes: [node.id] } });
    await eventually(replica.status, s => s.reason.includes('is silent'), 'it says why it waits');
    await node.hello();
    expect((await replica.reaches('ready')).members).toMatchObject([{ node: node.id }]);
    await installation.row(node.id, r => r.state === 'connected', 'is connected again');
  });

  it('whose stream ended and came back within three intervals was never silent', async () => {
    const node = await installation.silentNode('n-blink').hello({ heartbeat_interval_ms: 60_000 });
    await gone(node, 1);
    await node.hello();
    const { state, journal } = await installation.fleet.node(node.id);
    expect(state).toBe('connected');
    expect(journal.map(j => j.text).join()).not.toContain('silent');
  });

  it('that is silent and heard again is connected without a new hello', async () => {
    const node = await installation.silentNode('n-heard').hello({ heartbeat_interval_ms: 50 });
    await gone(node, 1);
    await installation.row(node.id, r => r.state === 'silent', 'is silent');
    await digest(node, 1);
    expect((await installation.row(node.id, r => r.state === 'connected', 'is back')).reason).toBe(
      'heartbeats arrive',
    );
  });

  it('is not moved by anything that an older session says', async () => {
    const node = await installation.silentNode('n-older').hello({ session: 7, heartbeat_interval_ms: 50 });
    await gone(node, 6);
    await digest(node, 6);
    await installation.fleet.inventory(node.id, { session: 6, inventory: inventory(node.id, 1) });
    await node.hello({ session: 5, inventory: inventory(node.id, 1), instance: 'cp-old' });
    expect(await installation.fleet.node(node.id)).toMatchObject({
      session: 7,
      highest_session: 7,
      instance: 'cp',
      state: 'connected',
      silent_at: null,
    });
    expect(Object.keys(await slotsOf(node))).toHaveLength(8);
    await installation.row(node.id, r => r.gpus.free === 8, 'has its eight GPUs');
  });

  it('never gives a slot to another GPU: one that vanished keeps its own, a new one takes the next', async () => {
    const node = await installation.silentNode('n-slots', 3).hello();
    const two = inventory(node.id, 3);
    two.gpus = [two.gpus[2]!, two.gpus[1]!, { ...two.gpus[0]!, uuid: 'GPU-new' }];
    two.gpus[1] = { ...two.gpus[1]!, usable: false, reason: 'fell off the bus' };
    await installation.fleet.inventory(node.id, { session: 1, inventory: two });
    expect(await slotsOf(node)).toEqual({
      0: gpuId(node.id, 0),
      1: gpuId(node.id, 1),
      2: gpuId(node.id, 2),
      3: 'GPU-new',
    });
    // Slot 0 has vanished and slot 1 is sick.
    expect(await installation.row(node.id, r => r.gpus.total === 4, 'has four slots')).toMatchObject({
      gpus: { total: 4, free: 2, unusable: 2 },
    });
    const replica = await installation.startReplica('on-what-is-left', {
      tensor_parallel: 2,
      placement: { nodes: [node.id], allow_pcie: true },
    });
    const launch = node.hold('launch');
    await node.start();
    expect((await launch.called).slots).toEqual([2, 3]);
    await replica.handle.terminate();
  });
});

interface Watch {
  node_id: string;
  believed: string;
  /** Aborts when the workflow wants no verdict any more. */
  signal: AbortSignal;
  answer(verdict: SilentVerdict['verdict']): void;
  fail(why: string): void;
}

/** The watches of the nodes as they come; each waits for the test. */
function watches(): Watch[] {
  const seen: Watch[] = [];
  installation.onSilent = ({ node_id, believed }, signal) =>
    new Promise((resolve, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason));
      seen.push({
        node_id,
        believed,
        signal,
        answer: verdict => resolve({ verdict, evidence: `the test says ${verdict}` }),
        fail: why => reject(new Error(why)),
      });
    });
  return seen;
}

/** A node that said hello and whose stream then ended. */
async function fallenSilent(id: string): Promise<SimNode> {
  const node = await installation.silentNode(id).hello({ heartbeat_interval_ms: 50 });
  await gone(node, 1);
  return node;
}

describe('a node that is silent', () => {
  const handleOf = (node: SimNode) => installation.client.workflow.getHandle(nodeWorkflowId(node.id));
  const nth = async (seen: Watch[], node: SimNode, n: number): Promise<Watch> =>
    (
      await eventually(
        () => seen.filter(w => w.node_id === node.id),
        of => of.length >= n,
        `watch ${n} of ${node.id} has begun`,
      )
    )[n - 1]!;

  it('is unsupervised while it serves, lost when nothing answers any more, and watched all the time', async () => {
    const seen = watches();
    const node = await fallenSilent('n-unsupervised');
    const first = await nth(seen, node, 1);
    expect(first.believed).toBe('silent');
    first.answer('serving');
    const row = await installation.row(node.id, r => r.state === 'unsupervised', 'is unsupervised');
    expect(row.reason).toContain('serve on without one: the test says serving');
    const second = await nth(seen, node, 2);
    expect(second.believed).toBe('unsupervised');
    second.answer('unchanged');
    const third = await nth(seen, node, 3);
    expect(third.believed).toBe('unsupervised');
    third.answer('dark');
    await installation.row(node.id, r => r.state === 'lost', 'is lost');
    expect((await nth(seen, node, 4)).believed).toBe('lost');
    expect((await activitySummaries(handleOf(node)))[0]).toBe(
      'watch_silent: does anything of n-unsupervised serve? It is believed to be silent',
    );
    await node.hello();
    await installation.row(node.id, r => r.state === 'connected', 'is connected');
  });

  it('is watched no more once it says hello', async () => {
    const seen = watches();
    const node = await fallenSilent('n-came-back');
    const watch = await nth(seen, node, 1);
    await node.hello();
    await eventually(() => watch.signal.aborted, Boolean, 'the watch is cancelled');
    expect(await installation.fleet.node(node.id)).toMatchObject({ state: 'connected', session: 2 });
    expect(seen.filter(w => w.node_id === node.id)).toHaveLength(1);
  });

  it('is watched again when an attempt fails, which costs its history nothing', async () => {
    const seen = watches();
    const node = await fallenSilent('n-retried');
    (await nth(seen, node, 1)).fail('this instance cannot judge');
    (await nth(seen, node, 2)).answer('dark');
    await installation.row(node.id, r => r.state === 'lost', 'is lost');
    expect(await activitySummaries(handleOf(node))).toHaveLength(2);
  });

  it('is forgotten on an operator’s word: its workflow ends, and its next hello numbers its slots anew', async () => {
    watches();
    const node = await fallenSilent('n-burnt');
    await installation.row(node.id, r => r.state === 'silent', 'is silent');
    const handle = handleOf(node);
    const { runId } = await handle.describe();
    await handle.signal('forget', { by: 'ann' });
    expect(await installation.client.workflow.getHandle(handle.workflowId, runId).result()).toBe(
      'forgotten by ann',
    );
    await node.hello({ session: 1, inventory: inventory('n-other-machine', 1) });
    expect(await slotsOf(node)).toEqual({ 0: gpuId('n-other-machine', 0) });
    expect((await handle.describe()).runId).not.toBe(runId);
  });

  it('is not forgotten when its hello comes with the operator’s word', async () => {
    const node = await fallenSilent('n-at-once');
    await installation.row(node.id, r => r.state === 'silent', 'is silent');
    await Promise.all([handleOf(node).signal('forget', { by: 'ann' }), node.hello()]);
    expect(await installation.fleet.node(node.id)).toMatchObject({ state: 'connected', session: 2 });
    await installation.row(node.id, r => r.state === 'connected', 'is connected');
  });
});

it('a GPU that can not go on costs its replica one stop and no counted failure, and is not offered again', async () => {
  const node = await installation.node('n-sick', 2);
  const replica = await installation.startReplica('sick', { placement: { nodes: [node.id] } });
  const { fence, members } = await replica.reaches('ready');
  const sick = inventory(node.id, 2);
  const lost = sick.gpus.find(g => g.uuid === members[0]!.gpus[0])!;
  Object.assign(lost, { usable: false, reason: 'GPU is lost', fatal: true });
  await installation.fleet.inventory(node.id, { session: 1, inventory: sick });
  const next = await replica.reaches('ready', 2);
  expect(next.members[0]!.gpus).not.toContain(lost.uuid);
  expect(next.restarts.in_window).toBe(0);
  expect(next.last_failure).toMatchObject({ class: 'node_fault' });
  expect(next.last_failure?.sentence).toContain('GPU is lost');
  expect(node.calls.filter(c => c.activity === 'stop').map(c => c.fence)).toEqual([fence]);
  expect(installation.drains.filter(d => d.fence === fence)).toEqual([]);
  // Told once: the same inventory again moves nobody.
  await installation.fleet.inventory(node.id, { session: 1, inventory: { ...sick, driver_version: '1' } });
  await installation.row(node.id, r => r.gpus.unusable === 1, 'has one GPU less');
  expect((await replica.status()).generation).toBe(2);
});

it('a GPU that was left in use is shown with who has it, proven when asked again, or free by an operator’s word', async () => {
  const node = await installation.node('n-left', 3);
  const replica = await installation.startReplica('left', { placement: { nodes: [node.id] } });
  const { fence, members } = await replica.reaches('ready');
  const [gpu] = members[0]!.gpus;
  const at = '2026-01-01T00:00:00Z';
  const leaked = { proof: 'strong' as const, at, leaked: [{ gpu: gpu!, pids: [4711], used_mib: 70_000 }] };
  node.hold('stop').answer(leaked);
  await node.exit('left', fence!);
  await replica.reaches('ready', 2);
  await installation.row(node.id, r => r.gpus.leaked === 1, 'shows the leak');
  const slot = Number(Object.entries(await slotsOf(node)).find(([, uuid]) => uuid === gpu)![0]);
  expect(await installation.fleet.left(node.id)).toEqual([
    expect.objectContaining({ replica: 'left', fence, slots: [slot], since: at, gpus: leaked.leaked }),
  ]);
  const ask = (over: object = {}) =>
    installation.fleet.proveLeft({ node: node.id, slots: null, gpus: null, by: 'ada', word: false, ...over });
  node.hold('stop').answer(leaked);
  expect(await ask()).toMatchObject({ holds: [{ outcome: 'left', gpus: leaked.leaked }] });
  // A word for another GPU of the same hold is none for this one.
  node.hold('stop').answer(leaked);
  expect(await ask({ slots: [slot], gpus: ['GPU-other'], word: true })).toMatchObject({
    holds: [{ outcome: 'left', why: expect.stringContaining('too, which were not named') }],
  });
  node.hold('stop').answer(leaked);
  const word = node.hold('stop');
  const cleared = ask({ slots: [slot], gpus: [gpu!], word: true });
  expect(await word.called).toMatchObject({ fence, by_word: 'ada' });
  word.answer({ proof: 'operator', at, leaked: [] });
  expect(await cleared).toMatchObject({ holds: [{ outcome: 'cleared', fence }] });
  await installation.row(node.id, r => r.gpus.leaked === 0 && r.gpus.free === 2, 'has the GPU back');
  expect(await installation.fleet.left(node.id)).toEqual([]);
  expect((await installation.fleet.ledger()).journal.map(j => j.text)).toContainEqual(
    expect.stringContaining('by the word of ada'),
  );
  expect(await ask()).toEqual({ holds: [] });
  await expect(ask({ slots: [slot === 0 ? 1 : 0] })).rejects.toMatchObject({
    code: expect.stringMatching(/GPU_HELD|BAD_REQUEST/),
  });
  await installation.fleet.noteNode(node.id, { text: 'slot 0 is free by the word of ada' });
  expect((await installation.fleet.node(node.id)).journal.at(-1)?.text).toBe(
    'slot 0 is free by the word of ada',
  );
  await node.end();
});

it('a survey names the open replicas, with the node that they are on, and the open nodes', async () => {
  const node = await installation.node('n-surveyed');
  const replica = await installation.startReplica('surveyed', { placement: { nodes: [node.id] } });
  const { runId } = await replica.handle.describe();
  const seen = await eventually(
    () => survey(installation.client),
    s => s.replicas.some(r => r.name === 'surveyed' && r.node !== null) && s.nodes.includes(node.id),
    'visibility has both',
    25_000,
  );
  expect(seen.replicas).toContainEqual({ name: 'surveyed', run_id: runId, node: node.id });
  await replica.reaches('ready');
  await replica.handle.terminate();
  await eventually(
    () => survey(installation.client),
    s => s.replicas.every(r => r.name !== 'surveyed'),
    'visibility knows that it is closed',
  );
});

describe('the ledger hears of a node', () => {
  it('again when it asks, and of each hello, although nothing has changed', async () => {
    const node = await installation.silentNode('n-told').hello();
    const facts = async () => (await installation.fleet.ledger()).nodes[node.id]?.facts;
    const first = await eventually(facts, f => f !== undefined, 'the ledger knows it');
    await installation.client.workflow.getHandle(nodeWorkflowId(node.id)).signal('report', {});
    const asked = await eventually(facts, f => f!.seq > first!.seq, 'it was told again');
    expect(asked).toMatchObject({ hello_at: first!.hello_at, boot_id: 'boot-1' });
    await node.hello({ session: node.session });
    await eventually(facts, f => f!.hello_at > asked!.hello_at, 'it was told of the hello');
  });
});

it('every history of this file replays', async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThanOrEqual(15);
});
