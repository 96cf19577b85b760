// Engines outlive everything else (INV-5): agent, control plane, router and shim are killed while clients are served,
// and nobody notices.
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import { NODE } from './configs.js';
import { type Installation, install } from './harness.js';
import { type Load, load } from './load.js';
import { isRunning, kill, waitFor } from './processes.js';

const spec = {
  model: 'Qwen/Qwen3-8B',
  served_model_name: 'held',
  engine: 'vllm',
  tensor_parallel: 2,
  env: { LLMGW_STANDIN_TOKENS: '8', LLMGW_STANDIN_TOKEN_MS: '5' },
};

let at: Installation;
let before: ReplicaStatus;
beforeAll(async () => {
  at = await install();
  await at.deploy('held', spec);
  await at.untilPhase('held', 'ready');
  await at.untilServed('held');
});
afterAll(() => at?.close());
beforeEach(async () => {
  before = await at.untilPhase('held', 'ready');
  await at.untilServed('held');
});

const enginePids = (): number[] =>
  at
    .engines('held')
    .filter(p => p.kind === 'engine')
    .map(p => p.pid);

/** Waits for answers to requests that were sent after this moment. */
const moreAnswers = async (running: Load): Promise<void> => {
  const already = running.answered();
  await waitFor('further answers', () => running.answered() > already + 10);
};

/** What holds after any kill that the engine survived: nothing about it has changed. */
async function expectUntouched(running: Load): Promise<void> {
  await moreAnswers(running);
  expect(await running.stop()).toEqual([]);
  const after = await at.untilPhase('held', 'ready');
  expect(after).toMatchObject({
    generation: before.generation,
    fence: before.fence,
    members: before.members,
    restarts: before.restarts,
    last_failure: before.last_failure,
  });
  expect(enginePids()).toEqual([before.members[0]!.pid]);
}

for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
  it(`serves through the end of the agent by ${signal}, and the next agent adopts the engine`, async () => {
    const running = load(at, 'held');
    await moreAnswers(running);
    expect(await at.agent.end(signal)).toBe(signal === 'SIGTERM' ? 0 : 'SIGKILL');
    await waitFor('the node to be seen silent', async () => (await at.nodes())[0]?.state === 'silent');
    await moreAnswers(running);
    await at.agent.start();
    expect(
      at.agent
        .process()
        .records()
        .some(r => r.msg === 'engine adopted'),
    ).toBe(true);
    await expectUntouched(running);
  });
}

it('serves through a kill -9 of the control plane, which finds everything as it was', async () => {
  const running = load(at, 'held');
  await moreAnswers(running);
  await at.server.end('SIGKILL');
  await moreAnswers(running);
  await at.server.start();
  await waitFor('the node to be back', async () => (await at.nodes())[0]?.state === 'connected');
  await expectUntouched(running);
});

it('serves from the table on disk when the router is started without a control plane', async () => {
  await at.server.end('SIGKILL');
  expect(await at.router.end('SIGTERM')).toBe(0);
  await at.router.start();
  expect(await at.models()).toEqual(['held']);
  const running = load(at, 'held');
  await moreAnswers(running);
  await at.server.start();
  await waitFor('the node to be back', async () => (await at.nodes())[0]?.state === 'connected');
  await expectUntouched(running);
});

it('takes the exit that nobody could hear when agent and engine were killed together', async () => {
  const engine = before.members[0]!.pid!;
  const adopted = () =>
    at.agent
      .process()
      .records()
      .filter(r => r.msg === 'engine adopted').length;
  const already = adopted();
  await at.agent.end('SIGKILL');
  kill(engine, 'SIGKILL');
  await waitFor('the engine to be gone', () => !isRunning(engine));
  await at.agent.start();
  expect(adopted()).toBe(already);
  const next = await at.untilPhase('held', 'ready', before.generation + 1);
  expect(next.last_failure!.sentence).toContain('SIGKILL');
  expect(next.fence).toBeGreaterThan(before.fence!);
  expect(enginePids()).toEqual([next.members[0]!.pid]);
});

it('lets an engine go on whose shim was killed, and takes its later end for a failure', async () => {
  const running = load(at, 'held');
  await moreAnswers(running);
  for (const { pid, kind } of at.engines('held')) if (kind === 'shim') kill(pid, 'SIGKILL');
  await waitFor('the shim to be gone', () => at.engines('held').every(p => p.kind !== 'shim'));
  await at.agent.end('SIGKILL');
  await at.agent.start();
  await expectUntouched(running);

  kill(before.members[0]!.pid!, 'SIGTERM');
  const next = await at.untilPhase('held', 'ready', before.generation + 1);
  expect(next.last_failure!.sentence).toContain('its exit status is unknown');
  expect(enginePids()).toEqual([next.members[0]!.pid]);
});

it('goes on watching a load after the agent was killed in the middle of it', async () => {
  const env = { LLMGW_STANDIN_LOAD_MS: '2000' };
  await at.deploy('loading', { model: 'm', served_model_name: 'loading', engine: 'vllm', env });
  const { members } = await at.untilPhase('loading', 'loading');
  await at.agent.end('SIGKILL');
  await at.agent.start();
  const ready = await at.untilPhase('loading', 'ready');
  expect(ready).toMatchObject({ generation: 1, members: [{ pid: members[0]!.pid }], last_failure: null });
  expect((await at.ctl('replica', 'stop', 'loading')).code).toBe(0);
  expect((await at.closed('loading')).status).toBe('CANCELED');
});

it('serves without Temporal, and hears of an exit that happened meanwhile when Temporal is back', async () => {
  const running = load(at, 'held');
  await at.temporal.end('SIGKILL');
  await moreAnswers(running);
  expect(await running.stop()).toEqual([]);
  const engine = before.members[0]!.pid!;
  kill(engine, 'SIGKILL');
  await waitFor('the engine to be gone', () => !isRunning(engine));
  await at.temporal.start();
  const next = await at.untilPhase('held', 'ready', before.generation + 1);
  expect(next.last_failure!.sentence).toContain('SIGKILL');
  expect(enginePids()).toEqual([next.members[0]!.pid]);
});

/** The most engines of the replica that were ever seen at once while `act` ran. */
async function mostEngines(act: () => Promise<void>): Promise<number> {
  let most = 0;
  let looking = true;
  const looker = (async () => {
    while (looking) {
      most = Math.max(most, enginePids().length);
      await new Promise(resolve => setTimeout(resolve, 5));
    }
  })();
  await act().finally(() => {
    looking = false;
  });
  await looker;
  return most;
}

it('comes back from a power cut: everything is killed at once and started again', async () => {
  const parts = [at.temporal, at.server, at.agent, at.router];
  const most = await mostEngines(async () => {
    for (const part of parts) kill(part.pid(), 'SIGKILL');
    for (const { pid } of at.engines('held')) kill(pid, 'SIGKILL');
    await Promise.all(parts.map(part => part.process().ended));
    await at.temporal.start();
    await Promise.all([at.server.start(), at.agent.start(), at.router.start()]);
    await at.untilPhase('held', 'ready', before.generation + 1);
  });
  expect(most).toBe(1);
  await at.untilServed('held');
  expect((await at.chat('held')).status).toBe(200);
});

it('keeps an engine whose workflow was terminated, and a new run claims it: same pid, same fence, no request lost', async () => {
  expect((await at.temporalCli('workflow', 'terminate', '--workflow-id', 'replica/held')).code).toBe(0);
  expect(enginePids()).toEqual([before.members[0]!.pid]);
  expect((await at.chat('held')).status).toBe(200);
  const most = await mostEngines(async () => {
    expect((await at.deploy('held', spec)).code).toBe(0);
    const next = await at.untilPhase('held', 'ready');
    expect(next.fence).toBe(before.fence);
    expect(next.members[0]!.pid).toBe(before.members[0]!.pid);
  });
  expect(most).toBe(1);
  expect((await at.nodes())[0]!.gpus).toMatchObject({ held: 2, leaked: 0 });
});

it('stops its engines at the host’s own stop, and starts them again without counting a failure', async () => {
  const counted = before.restarts.in_window;
  expect(await at.agent.end('SIGTERM')).toBe(0);
  const stopped = await at.llmgw(['agent', '--config', at.files.agent, '--stop-engines']);
  expect([stopped.code, at.engines()]).toEqual([0, []]);
  await at.agent.start();
  const next = await at.untilPhase('held', 'ready', before.generation + 1);
  expect(next.restarts.in_window).toBe(counted);
  expect(next.last_failure!.class).toBe('host_stop');
  await waitFor('its GPUs to be the only ones held', async () => {
    const node = (await at.nodes()).find(n => n.node_id === NODE);
    return node?.gpus.held === 2 && node.gpus.leaked === 0;
  });
});
