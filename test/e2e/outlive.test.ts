// Engines outlive everything else (INV-5): agent, control plane, router and shim are killed while clients are served,
// and nobody notices.
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import { type Installation, install, NODE } from './harness.js';
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
    expect(at.agent.process().records().some(r => r.msg === 'engine adopted')).toBe(true);
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
  await at.agent.end('SIGKILL');
  kill(engine, 'SIGKILL');
  await waitFor('the engine to be gone', () => !isRunning(engine));
  await at.agent.start();
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

it('has a second engine for no moment, whatever is killed in whatever order', async () => {
  let most = 0;
  let looking = true;
  const looker = (async () => {
    while (looking) {
      most = Math.max(most, enginePids().length);
      await new Promise(resolve => setImmediate(resolve));
    }
  })();
  await at.agent.end('SIGKILL');
  for (const { pid } of at.engines('held')) kill(pid, 'SIGKILL');
  await at.server.end('SIGKILL');
  await Promise.all([at.agent.start(), at.server.start()]);
  const next = await at.untilPhase('held', 'ready', before.generation + 1);
  looking = false;
  await looker;
  expect(most).toBe(1);
  expect(enginePids()).toEqual([next.members[0]!.pid]);
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
