import { WorkflowUpdateFailedError } from '@temporalio/client';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually, type Installation, TestServer } from './harness.js';
import { activitySummaries, currentDetails } from './history.js';

let server: TestServer;
let installation: Installation;

beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install();
});
afterAll(() => server?.stop());

/** A replica that serves on a node of its own. */
async function serving(name: string, spec: Record<string, unknown> = {}) {
  const node = await installation.node(`node-${name}`);
  const replica = await installation.startReplica(name, { placement: { nodes: [node.id] }, ...spec });
  const status = await replica.reaches('ready');
  return { node, replica, fence: status.fence! };
}

const refusal = async (update: Promise<unknown>): Promise<{ type: string; message: string }> => {
  const error = await update.then(
    () => new Error('the update was accepted'),
    err => err,
  );
  if (!(error instanceof WorkflowUpdateFailedError)) throw error;
  return { type: (error.cause as { type?: string }).type ?? '', message: error.cause?.message ?? '' };
};

describe('a replica that is started', () => {
  it('goes from pending over placing and loading to ready, and only then is in the route table', async () => {
    const replica = await installation.startReplica('starts', {
      tensor_parallel: 2,
      placement: { nodes: ['n-starts'] },
      aliases: ['chat'],
    });
    const pending = await replica.reaches('pending');
    expect(pending).toMatchObject({ generation: 0, fence: null, deadline: null });
    const node = installation.silentNode('n-starts');
    const launch = node.hold('launch');
    const loading = node.hold('await_ready');
    await (await node.start()).hello();

    const order = await launch.called;
    expect(order).toMatchObject({ replica: 'starts', rank: 0, generation: 1, nodes: 1, slots: [0, 1] });
    expect(await replica.status()).toMatchObject({ phase: 'placing', generation: 1, fence: order.fence });
    launch.answer({
      gpus: ['GPU-a', 'GPU-b'],
      ports: { http: 20_007 },
      mgmt_addr: '10.0.0.11',
      key_id: 'k1',
      pid: 77,
      adopted: false,
    });
    await loading.called;
    expect(await replica.status()).toMatchObject({
      phase: 'loading',
      members: [{ node: 'n-starts', rank: 0, gpus: ['GPU-a', 'GPU-b'], pid: 77, ports: { http: 20_007 } }],
    });
    await installation.fleet.progress('starts', {
      fence: order.fence,
      stage: 'loading weights',
      percent: 40,
      eta_ms: 71_400,
    });
    expect((await replica.status()).progress).toMatchObject({
      stage: 'loading weights',
      percent: 40,
      eta_s: 71,
    });
    expect(await replica.route()).toBeUndefined();

    loading.answer({ ready: true, pid: 78, model_ids: ['Qwen/Qwen3-8B'] });
    expect(await replica.reaches('ready')).toMatchObject({
      endpoint: 'http://10.0.0.11:20007',
      deadline: null,
      members: [{ pid: 78, state: 'ready' }],
    });
    const route = await eventually(replica.route, r => r !== undefined, 'the endpoint is in the table');
    expect(route).toMatchObject({
      model: 'Qwen/Qwen3-8B',
      aliases: ['chat'],
      node: 'n-starts',
      fence: order.fence,
      url: 'http://10.0.0.11:20007',
      key_id: 'k1',
      auth: 'derived',
      state: 'ready',
    });
  });

  it('with a bad spec fails at once, not retryable, naming every path', async () => {
    const replica = await installation.startReplica('bad', {
      tensor_parallel: 0,
      tensor_paralel: 2,
      args: ['--port', '1'],
      env: { HF_TOKEN: 'x' },
      drain_timeout: 'soon',
    });
    const ended = await replica.ended();
    expect(ended).toMatchObject({ status: 'FAILED', type: 'SPEC_INVALID' });
    for (const path of ['tensor_parallel', 'tensor_paralel', 'args[0]', 'env.HF_TOKEN', 'drain_timeout'])
      expect(ended.message).toContain(path);
    expect((ended.details as { path: unknown[] }[]).map(f => f.path.join('.')).toSorted()).toEqual([
      'args.0',
      'drain_timeout',
      'env.HF_TOKEN',
      'tensor_paralel',
      'tensor_parallel',
    ]);
    expect((await activitySummaries(replica.handle)).length).toBe(0);
  });

  it('on an id that is taken is refused, and the running one is left alone', async () => {
    const { fence, replica } = await serving('taken');
    await expect(installation.startReplica('taken')).rejects.toThrow(/already started/i);
    expect(await replica.status()).toMatchObject({ phase: 'ready', fence });
  });

  it('fails when no node can ever host it, with the reason and the nearest engine name', async () => {
    await installation.node('n-hopeless');
    const replica = await installation.startReplica('hopeless', {
      engine: 'vlm',
      placement: { nodes: ['n-hopeless'] },
    });
    const ended = await replica.ended();
    expect(ended).toMatchObject({ status: 'FAILED', type: 'DOES_NOT_FIT' });
    expect(ended.message).toMatch(/no engine "vlm".*did you mean "vllm"/);
  });

  it('tries every node that may lack the model, then fails with what each said', async () => {
    const nodes = [await installation.node('n-lacks-1'), await installation.node('n-lacks-2')];
    for (const node of nodes)
      node.refuseAll.launch = { code: 'MODEL_MISSING', sentence: `no /models/x on ${node.id}` };
    const replica = await installation.startReplica('lacks', {
      model: '/models/x',
      placement: { nodes: nodes.map(n => n.id) },
    });
    const ended = await replica.ended();
    expect(ended).toMatchObject({ status: 'FAILED', type: 'DOES_NOT_FIT' });
    for (const node of nodes) {
      expect(ended.message).toContain(`no /models/x on ${node.id}`);
      expect(node.countOf('launch')).toBe(1);
      await installation.row(node.id, r => r.gpus.free === 8, 'has its GPUs back');
    }
  });

  it('waits without a limit for GPUs that are in use, unless placement.timeout is set', async () => {
    const { node } = await serving('holds-all', { tensor_parallel: 8 });
    const patient = await installation.startReplica('patient', { placement: { nodes: [node.id] } });
    const hasty = await installation.startReplica('hasty', {
      placement: { nodes: [node.id], timeout: '1s' },
    });
    const ended = await hasty.ended();
    expect(ended).toMatchObject({ status: 'FAILED', type: 'DOES_NOT_FIT' });
    expect(ended.message).toMatch(/placement.timeout reached.*0 of 8 are free/);
    const waiting = await patient.reaches('pending');
    expect(waiting.reason).toContain('0 of 8 are free');
    expect(waiting.deadline).toBeNull();
    await patient.handle.cancel();
    expect((await patient.ended()).status).toBe('CANCELLED');
  });
});

describe('a replica whose engine fails', () => {
  it('after a crash is stopped with proof, and the next generation serves on a higher fence', async () => {
    const { node, replica, fence } = await serving('crashes');
    const stop = node.hold('stop');
    await node.exit('crashes', fence, { sentence: 'the engine was killed by signal SIGKILL' });
    await stop.called;
    const stopping = await replica.status();
    expect(stopping).toMatchObject({ phase: 'stopping', generation: 1, fence });
    expect(stopping.last_failure?.sentence).toContain('SIGKILL');
    // Out of the table before the stop is proven, and no second launch until it is.
    await eventually(replica.route, r => r === undefined, 'the endpoint left the table');
    expect(node.countOf('launch')).toBe(1);

    stop.answer({ proof: 'strong', at: '2026-01-01T00:00:00Z', leaked: [] });
    const next = await replica.reaches('ready', 2);
    expect(next.fence).toBeGreaterThan(fence);
    expect(next.restarts.in_window).toBe(1);
    expect(node.calls.map(c => c.activity)).toEqual([
      'launch',
      'await_ready',
      'stop',
      'launch',
      'await_ready',
    ]);
    expect(await eventually(replica.route, r => r !== undefined, 'it is back')).toMatchObject({
      fence: next.fence,
    });
    const grants = Object.values((await installation.fleet.ledger()).grants);
    expect(grants.filter(g => g.replica === 'crashes').map(g => g.fence)).toEqual([next.fence]);
  });

  it('and never gets ready fails after restart.max_failures with the sentence, and gives its GPUs back', async () => {
    const node = await installation.node('n-never');
    const failure = {
      code: 'ENGINE_FAILED',
      class: 'retry' as const,
      sentence: 'CUDA out of memory',
      exit: { code: 1, signal: null },
      tail: ['torch.OutOfMemoryError'],
      evidence: '/e',
    };
    for (let i = 0; i < 2; i++) node.hold('await_ready').answer({ ready: false, failure });
    const replica = await installation.startReplica('never', {
      placement: { nodes: [node.id] },
      restart: { max_failures: 2, backoff_base: '300ms' },
    });
    const backingOff = await replica.reaches('backing_off');
    expect(backingOff).toMatchObject({ generation: 1, restarts: { in_window: 1, left: 0 } });
    expect(backingOff.reason).toContain('CUDA out of memory');
    const ended = await replica.ended();
    expect(ended).toMatchObject({ status: 'FAILED', type: 'REPLICA_FAILED' });
    expect(ended.message).toMatch(/failed 2 times .*CUDA out of memory/);
    expect(ended.details).toMatchObject({ sentence: 'CUDA out of memory', tail: ['torch.OutOfMemoryError'] });
    expect(await replica.status()).toMatchObject({ phase: 'failed', generation: 2 });
    await installation.row(node.id, r => r.gpus.free === 8, 'has its GPUs back');
  });

  it('for good fails at once, without a second generation', async () => {
    const node = await installation.node('n-permanent');
    node.hold('await_ready').answer({
      ready: false,
      failure: {
        code: 'ENGINE_FAILED',
        class: 'permanent',
        sentence: 'unrecognized arguments: --nope',
        exit: { code: 2, signal: null },
        tail: [],
        evidence: null,
      },
    });
    const replica = await installation.startReplica('permanent', { placement: { nodes: [node.id] } });
    expect(await replica.ended()).toMatchObject({
      status: 'FAILED',
      type: 'REPLICA_FAILED',
      message: 'unrecognized arguments: --nope',
    });
    expect(node.countOf('launch')).toBe(1);
  });
});

describe('a replica that is cancelled', () => {
  it('drains, stops and gives its GPUs back, and the run is cancelled; the id can be started again on a higher fence', async () => {
    const { node, replica, fence } = await serving('cancelled', { drain_timeout: '7s' });
    let drained!: (answer: { drained: boolean; outstanding: number }) => void;
    installation.onDrain = () =>
      new Promise(resolve => {
        drained = resolve;
      });
    await replica.handle.cancel();
    const input = await eventually(
      () => installation.drains.find(d => d.replica === 'cancelled'),
      d => d !== undefined,
      'the instance is asked to drain',
    );
    expect(input).toMatchObject({
      fence,
      timeout_ms: 7_000,
      version: (await installation.fleet.routes()).version,
    });
    expect((await replica.status()).phase).toBe('draining');
    expect(await replica.route()).toMatchObject({ state: 'draining', fence });
    expect(node.countOf('stop')).toBe(0);
    drained({ drained: true, outstanding: 0 });
    installation.onDrain = async () => ({ drained: true, outstanding: 0 });

    const ended = await replica.ended();
    expect(ended.status).toBe('CANCELLED');
    expect(await replica.status()).toMatchObject({ phase: 'stopped', fence: null, endpoint: null });
    expect(node.calls.at(-1)).toMatchObject({ activity: 'stop', fence });
    expect(await replica.route()).toBeUndefined();
    expect(await installation.row(node.id, r => r.gpus.free === 8, 'is free')).toMatchObject({
      gpus: { held: 0, leaked: 0 },
    });

    const again = await installation.startReplica('cancelled', { placement: { nodes: [node.id] } });
    const status = await again.reaches('ready');
    expect(status.generation).toBe(1);
    expect(status.fence).toBeGreaterThan(fence);
  });

  it.each([
    ['pending', async () => installation.silentNode('n-cancel-pending')],
    ['placing', async () => installation.node('n-cancel-placing')],
    ['loading', async () => installation.node('n-cancel-loading')],
    ['backing_off', async () => installation.node('n-cancel-backing_off')],
  ] as const)('in %s ends cancelled and holds no GPU', async (phase, makeNode) => {
    const node = await makeNode();
    if (phase === 'placing') node.hold('launch');
    if (phase === 'loading') node.hold('await_ready');
    if (phase === 'backing_off') {
      node.hold('launch').refuse('SPAWN_FAILED', 'fork: Resource temporarily unavailable');
    }
    const replica = await installation.startReplica(`cancel-${phase.replace('_', '-')}`, {
      placement: { nodes: [node.id] },
    });
    await replica.reaches(phase);
    await replica.handle.cancel();
    expect((await replica.ended()).status).toBe('CANCELLED');
    const { grants, waiting } = await installation.fleet.ledger();
    expect(Object.values(grants).filter(g => g.replica === replica.name)).toEqual([]);
    expect(waiting.filter(w => w.replica === replica.name)).toEqual([]);
  });

  it('takes no further orders while it ends', async () => {
    const { node, replica } = await serving('ending');
    const stop = node.hold('stop');
    await replica.handle.cancel();
    await stop.called;
    expect(await refusal(replica.restart())).toMatchObject({ type: 'REPLICA_ENDING' });
    expect(await refusal(replica.apply({ model: 'other', engine: 'vllm' }))).toMatchObject({
      type: 'REPLICA_ENDING',
      message: expect.stringContaining('replica/ending is ending (stopping)'),
    });
    stop.answer({ proof: 'strong', at: '2026-01-01T00:00:00Z', leaked: [] });
    expect((await replica.ended()).status).toBe('CANCELLED');
  });
});

describe('an update of a serving replica', () => {
  const spec = (node: string, over: object = {}) => ({
    model: 'Qwen/Qwen3-8B',
    engine: 'vllm',
    placement: { nodes: [node] },
    ...over,
  });

  it('apply with the same spec says unchanged and touches nothing', async () => {
    const { node, replica, fence } = await serving('same');
    expect((await replica.apply(spec(node.id, { nodes: 1 }))).result).toBe('unchanged');
    expect(await replica.status()).toMatchObject({ phase: 'ready', fence });
    expect(node.countOf('stop')).toBe(0);
  });

  it('apply with a faulty spec is refused by its path', async () => {
    const { node, replica, fence } = await serving('faulty');
    expect(await refusal(replica.apply(spec(node.id, { args: ['--host=0.0.0.0'] })))).toMatchObject({
      type: 'SPEC_INVALID',
      message: expect.stringContaining('args[0]'),
    });
    expect(await replica.status()).toMatchObject({ phase: 'ready', fence });
  });

  it('apply with one that does not fit is refused, and the old one serves on', async () => {
    const { node, replica, fence } = await serving('too-big');
    const no = await refusal(replica.apply(spec(node.id, { tensor_parallel: 16 })));
    expect(no).toMatchObject({ type: 'DOES_NOT_FIT' });
    expect(no.message).toContain('the old one serves on');
    expect(await replica.status()).toMatchObject({ phase: 'ready', fence });
    expect(await replica.route()).toMatchObject({ fence, state: 'ready' });
    expect(node.countOf('stop')).toBe(0);
  });

  it('apply with one that its node would refuse is refused, and the old one serves on', async () => {
    const { node, replica, fence } = await serving('typo');
    node.refuseCheck = { code: 'MODEL_MISSING', sentence: 'no /models/none on the node' };
    const no = await refusal(replica.apply(spec(node.id, { model: '/models/none' })));
    expect(no).toMatchObject({ type: 'MODEL_MISSING' });
    expect(no.message).toContain('the old one serves on');
    expect(await refusal(replica.restart())).toMatchObject({ type: 'MODEL_MISSING' });
    expect(await replica.status()).toMatchObject({ phase: 'ready', generation: 1, fence });
    expect(node.countOf('stop')).toBe(0);
  });

  it('apply with a changed one counts its own GPUs as free, drains, and serves the new spec', async () => {
    const { node, replica, fence } = await serving('grows', { tensor_parallel: 8 });
    const before = (await replica.status()).spec_hash;
    const changed = spec(node.id, { tensor_parallel: 8, args: ['--max-model-len', '4096'] });
    expect((await replica.apply(changed)).result).toBe('accepted');
    const next = await replica.reaches('ready', 2);
    expect(next.fence).toBeGreaterThan(fence);
    expect(next.spec_hash).not.toBe(before);
    expect(next.restarts.in_window).toBe(0);
    expect(installation.drains.some(d => d.replica === 'grows' && d.fence === fence)).toBe(true);
    expect((await replica.apply(changed)).result).toBe('unchanged');
  });

  it('restart drains and serves in a new generation that counts as no failure', async () => {
    const { node, replica, fence } = await serving('restarted');
    expect((await replica.restart()).result).toBe('accepted');
    const next = await replica.reaches('ready', 2);
    expect(next.fence).toBeGreaterThan(fence);
    expect(next.restarts.in_window).toBe(0);
    expect(installation.drains.some(d => d.replica === 'restarted' && d.fence === fence)).toBe(true);
    expect(node.calls.map(c => c.activity)).toEqual([
      'launch',
      'await_ready',
      'stop',
      'launch',
      'await_ready',
    ]);
  });
});

describe('the Temporal UI', () => {
  it('reads like a log book: a summary for each activity, the current details and the memo', async () => {
    const { node, replica, fence } = await serving('logbook');
    await node.exit('logbook', fence, { sentence: 'the engine was killed by signal SIGKILL' });
    await replica.reaches('ready', 2);
    const details = await currentDetails(replica.handle);
    expect(details).toMatch(/^\*\*ready\*\* since \d{4}-.*serving Qwen\/Qwen3-8B/);
    expect(details).toContain('generation 2');
    expect(details).toContain('last failure (retry): the engine was killed by signal SIGKILL');
    expect((await replica.handle.describe()).memo).toEqual({
      model: 'Qwen/Qwen3-8B',
      node: node.id,
      phase: 'ready',
    });
    await replica.handle.cancel();
    await replica.ended();
    expect(await activitySummaries(replica.handle)).toEqual([
      `launch: start generation 1 on ${node.id}, slots 0`,
      `await_ready: wait until generation 1 on ${node.id} serves`,
      `stop: stop on ${node.id}: the engine was killed by signal SIGKILL`,
      `launch: start generation 2 on ${node.id}, slots 0`,
      `await_ready: wait until generation 2 on ${node.id} serves`,
      expect.stringMatching(/^await_drained: drain logbook: routers acknowledge table \d+$/),
      `stop: stop on ${node.id}: cancelled`,
    ]);
    expect((await replica.handle.describe()).memo).toMatchObject({ phase: 'stopped' });
  });
});

it('every history of this file replays', async () => {
  const { replayed, faults } = await server.replayAll();
  expect(faults).toEqual([]);
  expect(replayed).toBeGreaterThan(25);
});
