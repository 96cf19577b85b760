// Silence judged with suspicion: what a control plane that stood still may not conclude, what happens to a node whose
// agent is dead, whose engine is dead too, and that comes back; the brake; an operator's word that a node is gone
// (INV-1, INV-2, INV-5).
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import { NODE } from '../e2e/configs.js';
import { isRunning, kill, waitFor } from '../e2e/processes.js';
import { LONG } from './seed.js';
import {
  deployed,
  enginesOf,
  expectCalm,
  expectOneHolder,
  expectUntouched,
  moreAnswers,
  pidOf,
  served,
  stopped,
  type World,
  world,
} from './world.js';

const B = 'gpu-b-01';
const C = 'gpu-c-01';
const D = 'gpu-d-01';

describe.runIf(LONG)('a node that is silent', () => {
  let w: World;
  beforeAll(async () => {
    w = await world({ nodes: { [B]: 1, [C]: 1, [D]: 1 }, server: { liveness: { lost_after: '2s' } } });
  });
  afterAll(() => w?.close());

  /** Placed on that node, whose one GPU it fills; NODE is where it may be replaced. */
  async function on(node: string, name: string, more: object = {}): Promise<ReplicaStatus> {
    const placement = { nodes: [node, NODE] };
    const status = await deployed(w, name, { placement, on_node_loss: { replace_after: '1s' }, ...more });
    expect(status.members[0]!.node).toBe(node);
    return status;
  }

  /** Ready on NODE under a newer fence. */
  const replaced = (name: string, before: ReplicaStatus): Promise<ReplicaStatus> =>
    waitFor(
      `replica/${name} to be replaced on ${NODE}`,
      async () => {
        const status = await w.at.status(name);
        const there = status?.phase === 'ready' && status.members[0]!.node === NODE;
        return there && status.fence! > before.fence! ? status : null;
      },
      async () => JSON.stringify(await w.at.status(name)),
    );

  const killAgent = (node: string) => w.agents[node]!.end('SIGKILL');

  /** By the journal of its workflow. */
  const wasLost = async (node: string): Promise<boolean> => /"text":"lost: /.test(await w.journalOf(node));

  it('concludes nothing from its own standstill (SIGSTOP)', { timeout: 180_000 }, async () => {
    const before = await on(B, 'still');
    const running = w.load(['still']);
    const server = w.at.server.pid();
    kill(server, 'SIGSTOP');
    await moreAnswers(running, 50 * 20);
    kill(server, 'SIGCONT');
    await moreAnswers(running, 50 * 8);
    await expectCalm(w);
    expect(await running.stop()).toEqual([]);
    await expectUntouched(w, 'still', before);
    for (const node of [NODE, B, C, D]) expect(await wasLost(node)).toBe(false);
    await stopped(w, 'still');
  });

  it('keeps and routes what serves on a node whose agent is dead, whatever becomes of the control plane', async () => {
    const before = await on(B, 'kept');
    const running = w.load(['kept']);
    await killAgent(B);
    await w.untilNode(B, 'unsupervised');
    await w.at.server.end('SIGKILL');
    await w.at.server.start();
    await w.untilNode(NODE, 'connected');
    // Several times lost_after, by the client's own clock.
    await moreAnswers(running, 50 * 6);
    expect((await w.node(B))!.state).toBe('unsupervised');
    expect(await wasLost(B)).toBe(false);
    expect(await running.stop()).toEqual([]);
    await expectUntouched(w, 'kept', before);
  });

  it('replaces it once its engine is dead too, and frees the GPU when the node is back', async () => {
    const before = await w.at.untilPhase('kept', 'ready');
    kill(pidOf(before), 'SIGKILL');
    await w.untilNode(B, 'lost');
    const next = await replaced('kept', before);
    expect(next.restarts.in_window).toBe(0);
    // Nobody has proven that it is free.
    expect((await w.node(B))!.gpus.free).toBe(0);
    await served(w, 'kept');
    expect((await w.at.chat('kept')).status).toBe(200);
    await w.agents[B]!.start();
    await waitFor('its GPU to be free', async () => (await w.node(B))!.gpus.free === 1);
    await expectUntouched(w, 'kept', next);
    await stopped(w, 'kept');
  });

  it('lets a replica that was reset wait for its engine that serves on, and take it over when the agent is back', async () => {
    const before = await on(B, 'again');
    const running = w.load(['again']);
    await killAgent(B);
    await w.untilNode(B, 'unsupervised');
    await w.workflow(
      'reset',
      'replica/again',
      '--type',
      'FirstWorkflowTask',
      '--reason',
      'somebody tries it',
    );
    await waitFor('it to wait', async () => (await w.at.status('again'))?.reason.includes(`serves on ${B}`));
    await moreAnswers(running);
    await w.agents[B]!.start();
    const after = await w.at.untilPhase('again', 'ready');
    expect([after.fence, pidOf(after)]).toEqual([before.fence, pidOf(before)]);
    await moreAnswers(running);
    expect(await running.stop()).toEqual([]);
    await stopped(w, 'again');
  });

  it('stops an engine that was replaced while nobody could reach it, when its node comes back', async () => {
    // SIGTERM closes its port and leaves the process, as a network that is cut does.
    const env = {
      LLMGW_STANDIN_NEVER_END_ON_TERM: '1',
      LLMGW_STANDIN_TOKENS: '100000',
      LLMGW_STANDIN_TOKEN_MS: '100',
    };
    const before = await on(B, 'cut', { env });
    const old = pidOf(before);
    const leave = new AbortController();
    const open = await fetch(`${w.routers[0]!.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'cut', stream: true, messages: [{ role: 'user', content: 'Hi' }] }),
      signal: leave.signal,
    });
    await open.body!.getReader().read();
    await killAgent(B);
    kill(old, 'SIGTERM');
    await w.untilNode(B, 'lost');
    const next = await replaced('cut', before);
    expect(
      enginesOf(w, 'cut')
        .map(p => p.pid)
        .toSorted(),
    ).toEqual([old, pidOf(next)].toSorted());
    expect((await w.node(B))!.gpus.free).toBe(0);
    await expectOneHolder(w);
    await w.agents[B]!.start();
    await waitFor(
      'the old engine to be gone',
      () => !isRunning(old),
      () => w.agents[B]!.process().output().slice(-3000),
    );
    await waitFor('its GPU to be free', async () => (await w.node(B))!.gpus.free === 1);
    await expectUntouched(w, 'cut', next);
    leave.abort();
    await stopped(w, 'cut');
  });

  it('replaces nothing while most nodes are silent at once, until the brake is released', async () => {
    const names = { [B]: 'one', [C]: 'two', [D]: 'three' };
    const before: Record<string, ReplicaStatus> = {};
    for (const [node, name] of Object.entries(names)) before[name] = await on(node, name);
    await Promise.all(Object.keys(names).map(killAgent));
    for (const status of Object.values(before)) kill(pidOf(status), 'SIGKILL');
    for (const node of Object.keys(names)) await w.untilNode(node, 'lost');
    const fleet = await w.fleet();
    expect(fleet.brake).toMatchObject({ on: true, by: 'fleet' });
    expect((await w.at.ctl('nodes')).stdout).toContain('release-brake');
    for (const [name, status] of Object.entries(before))
      expect((await w.at.status(name))!.fence).toBe(status.fence);

    expect(await w.at.ctl('fleet', 'release-brake')).toMatchObject({ code: 0 });
    for (const [name, status] of Object.entries(before)) await replaced(name, status);
    await expectOneHolder(w);
  });

  it('takes an operator’s word that a node is gone, and not of one that is there', async () => {
    const refused = await w.at.ctl('node', 'forget', NODE, '--confirm', NODE);
    expect(refused.code).toBe(1);
    expect((await w.at.ctl('node', 'forget', D)).code).toBe(2);
    expect(await w.at.ctl('node', 'forget', D, '--confirm', D)).toMatchObject({ code: 0 });
    await waitFor('it to be gone', async () => (await w.node(D)) === undefined);
    await expectOneHolder(w);
    for (const node of [B, C, D]) await w.agents[node]!.start();
    await waitFor('all their GPUs to be free', async () =>
      (await w.at.nodes()).every(n => n.node_id === NODE || n.gpus.free === 1),
    );
    await expectCalm(w);
    await waitFor('the brake to be off', async () => !(await w.fleet()).brake.on);
    for (const name of ['one', 'two', 'three']) await stopped(w, name);
    expect(w.at.engines()).toEqual([]);
    expect((await w.ledger()).grants).toEqual({});
  });
});
