// The main job, from `temporal workflow start` to a streamed token and back to free GPUs.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import { isComplete } from './clients.js';
import { GPUS, NODE, ROOT } from './configs.js';
import { type Installation, install } from './harness.js';
import { isRunning, waitFor } from './processes.js';

const example = JSON.parse(readFileSync(path.join(ROOT, 'deploy/examples/replica.json'), 'utf8'));
const MODEL = 'qwen3-8b';

let at: Installation;
beforeAll(async () => {
  at = await install();
});
afterAll(() => at?.close());

const query = async (name: string): Promise<ReplicaStatus> => {
  const args = ['workflow', 'query', '--type', 'status', '--workflow-id', `replica/${name}`];
  const { stdout } = await at.llmgwTemporal(...args, '--output', 'json');
  return JSON.parse(stdout).queryResult[0];
};

it('serves the example, plain and streamed, and gives everything back when it is cancelled', async () => {
  const args = ['--task-queue', 'llmgw', '--workflow-id', 'replica/mine', '--fail-existing'];
  const file = path.join(ROOT, 'deploy/examples/replica.json');
  const start = ['workflow', 'start', '--type', 'replica', ...args, '--input-file', file];
  expect((await at.llmgwTemporal(...start)).code).toBe(0);
  await at.untilPhase('mine', 'ready');
  await at.untilServed(MODEL);

  const plain = await at.chat(MODEL);
  expect(plain.status).toBe(200);
  expect(JSON.parse(plain.text)).toMatchObject({
    model: MODEL,
    choices: [{ message: { role: 'assistant' } }],
  });
  const streamed = await at.stream(MODEL);
  expect(streamed.status).toBe(200);
  expect(streamed.text.split('\n\n').length).toBeGreaterThan(3);
  expect(isComplete(streamed, true)).toBe(true);
  expect(await at.models()).toEqual([MODEL]);

  const first = await query('mine');
  const engine = at.engines('mine').find(p => p.kind === 'engine')!;
  expect(first).toMatchObject({
    name: 'mine',
    phase: 'ready',
    deadline: null,
    generation: 1,
    members: [{ node: NODE, rank: 0, pid: engine.pid, state: 'ready' }],
    restarts: { in_window: 0 },
    last_failure: null,
  });
  expect(first.reason).toContain(first.endpoint);
  expect(first.members[0]!.gpus).toHaveLength(2);
  expect(engine.mark).toBe(`mine/${first.fence}/0`);
  expect((await at.nodes())[0]).toMatchObject({ gpus: { total: GPUS, free: GPUS - 2, held: 2 }, engines: 1 });

  const twice = await at.llmgwTemporal(...start);
  expect([twice.code, twice.stderr]).toEqual([1, expect.stringContaining('already running')]);
  const cancel = ['workflow', 'cancel', '--workflow-id', 'replica/mine'];
  expect((await at.llmgwTemporal(...cancel)).code).toBe(0);
  expect((await at.closed('mine')).status).toBe('CANCELED');
  expect((await at.ctl('replicas')).stdout).toMatch(/mine\s+stopped/);
  expect(isRunning(engine.pid)).toBe(false);
  await waitFor('no process to be left', () => at.engines('mine').length === 0);
  await waitFor('the GPUs to be free', async () => (await at.nodes())[0]?.gpus.free === GPUS);
  expect((await at.routes()).endpoints).toEqual([]);
  await waitFor('the router to have no model', async () => (await at.models()).length === 0);
  await expect(fetch(first.endpoint!)).rejects.toThrow();

  expect((await at.llmgwTemporal(...start)).code).toBe(0);
  const second = await at.untilPhase('mine', 'ready');
  expect(second.generation).toBe(1);
  expect(second.fence).toBeGreaterThan(first.fence!);
  await at.untilServed(MODEL);
  expect((await at.chat(MODEL)).status).toBe(200);
});

it('tells in the history what was done and why', async () => {
  const events = await at.history('mine');
  const text = JSON.stringify(events);
  const summaries = events
    .filter(e => e.eventType === 'EVENT_TYPE_ACTIVITY_TASK_SCHEDULED')
    .map(e =>
      Buffer.from((e.userMetadata as { summary: { data: string } }).summary.data, 'base64').toString(),
    );
  expect(summaries).toEqual([
    `"start generation 1 on ${NODE}, slots 0,1"`,
    `"wait until generation 1 on ${NODE} serves"`,
  ]);
  expect(text).toContain(`node-${NODE}`);
  const described = await at.temporalCli(
    ...['workflow', 'describe', '--workflow-id', 'replica/mine', '--output', 'json'],
  );
  const { memo } = JSON.parse(described.stdout).workflowExecutionInfo;
  expect(memo.fields).toEqual({ model: example.model, node: NODE, phase: 'ready' });
  const namespace = await at.temporalCli(
    'operator',
    'namespace',
    'describe',
    '-n',
    'default',
    '--output',
    'json',
  );
  expect(JSON.parse(namespace.stdout).config.workflowExecutionRetentionTtl).toBe('2592000s');
});

it('says unchanged for the same spec and starts the next generation for another one', async () => {
  const before = (await at.status('mine'))!;
  const update = ['workflow', 'update', 'execute', '--workflow-id', 'replica/mine', '--output', 'json'];
  const apply = (spec: object) =>
    at.temporalCli(...update, '--name', 'apply', '--input-file', at.file('apply.json', spec));
  expect((await apply(example)).stdout).toContain('unchanged');
  expect((await at.status('mine'))!.generation).toBe(1);

  const much = await apply({ ...example, tensor_parallel: 16 });
  expect(much.stdout + much.stderr).toContain('does not fit, the old one serves on');
  expect((await at.status('mine'))!.phase).toBe('ready');

  expect((await apply({ ...example, args: ['--max-model-len', '4096'] })).stdout).toContain('accepted');
  const after = await at.untilPhase('mine', 'ready', 2);
  expect(after.fence).toBeGreaterThan(before.fence!);
  expect(after.restarts.in_window).toBe(0);

  expect((await at.temporalCli(...update, '--name', 'restart')).stdout).toContain('accepted');
  const again = await at.untilPhase('mine', 'ready', 3);
  expect(again.restarts.in_window).toBe(0);
  expect(at.engines('mine').filter(p => p.kind === 'engine')).toHaveLength(1);
});

it('shows the same by ctl, as tables and as JSON', async () => {
  const nodes = await at.ctl('nodes', '--json');
  expect(JSON.parse(nodes.stdout)).toMatchObject([
    { node_id: NODE, state: 'connected', gpus: { total: GPUS } },
  ]);
  expect((await at.ctl('nodes')).stdout).toMatch(/^NODE\s.*\n.*gpu-a-01\s+connected/);
  expect((await at.ctl('node', 'show', NODE)).stdout).toContain('NVIDIA H100 80GB HBM3');
  expect((await at.ctl('replicas')).stdout).toMatch(/mine\s+ready/);
  const shown = JSON.parse((await at.ctl('replica', 'show', 'mine', '--json')).stdout);
  expect(shown).toMatchObject({ phase: 'ready', generation: 3 });
  expect((await at.ctl('replica', 'logs', 'mine')).stdout).toContain('Application startup complete.');
});

it('lets a replica wait for GPUs that are taken, with its reason, and places it when they are given back', async () => {
  const big = (name: string) => ({
    name,
    model: 'm',
    served_model_name: name,
    engine: 'vllm',
    tensor_parallel: 6,
  });
  const first = await at.ctl('deploy', '-f', at.file('first.json', big('first')));
  expect([first.code, first.stdout]).toEqual([0, expect.stringContaining('created')]);
  await at.untilPhase('first', 'ready');
  await at.ctl('deploy', '-f', at.file('second.json', big('second')));
  const waiting = await waitFor('a reason', async () => {
    const seen = await at.status('second');
    return seen?.reason.startsWith('waiting for GPUs') ? seen : null;
  });
  expect(waiting).toMatchObject({ phase: 'pending', generation: 0, deadline: null });
  expect(waiting.reason).toContain(NODE);

  const unchanged = await at.ctl('deploy', '-f', at.file('first.json', big('first')));
  expect([unchanged.code, unchanged.stdout]).toEqual([0, expect.stringContaining('unchanged')]);
  expect((await at.ctl('replica', 'stop', 'first')).code).toBe(0);
  await at.untilPhase('second', 'ready');
  expect((await at.nodes())[0]!.gpus).toMatchObject({ held: 8, free: 0 });

  const changed = await at.ctl(
    'deploy',
    '-f',
    at.file('second.json', { ...big('second'), tensor_parallel: 1 }),
  );
  expect([changed.code, changed.stdout]).toEqual([0, expect.stringContaining('changed')]);
  await at.untilPhase('second', 'ready', 2);
  expect((await at.nodes())[0]!.gpus).toMatchObject({ held: 3, free: 5 });
  expect((await at.ctl('replica', 'stop', 'second')).code).toBe(0);
  expect((await at.closed('second')).status).toBe('CANCELED');
});

it('drains: an answer that is streaming when the replica is stopped arrives whole', async () => {
  const spec = {
    ...{ name: 'slow', model: 'm', served_model_name: 'slow', engine: 'vllm' },
    env: { LLMGW_STANDIN_TOKEN_MS: '20', LLMGW_STANDIN_TOKENS: '40' },
  };
  const deployed = await at.ctl('deploy', '-f', at.file('slow.json', spec));
  expect([deployed.code, deployed.stdout]).toEqual([0, expect.stringContaining('created')]);
  await at.untilPhase('slow', 'ready');
  await at.untilServed('slow');
  const endpoint = (await at.routes()).endpoints.find(e => e.replica === 'slow')!;
  const running = at.stream('slow');
  await waitFor('the engine to be at work', async () => {
    const metrics = await fetch(`${endpoint.url}/metrics`).then(res => res.text());
    return /num_requests_running\S*\s+1/.test(metrics);
  });
  expect((await at.ctl('replica', 'stop', 'slow')).code).toBe(0);
  const answer = await running;
  expect([answer.status, isComplete(answer, true)]).toEqual([200, true]);
  expect((await at.closed('slow')).status).toBe('CANCELED');
});
