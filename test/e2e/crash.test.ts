// Engines that die and engines that never get ready: what follows, and what is told of it.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import { isComplete } from './clients.js';
import { GPUS } from './configs.js';
import { type Installation, install } from './harness.js';
import { load } from './load.js';
import { isRunning, kill, waitFor } from './processes.js';

const base = { model: 'Qwen/Qwen3-8B', engine: 'vllm' };

interface Signaled {
  signalName: string;
  input: { payloads: { data: string }[] };
}

let at: Installation;
beforeAll(async () => {
  at = await install();
});
afterAll(() => at?.close());

const enginePids = (name: string): number[] =>
  at
    .engines(name)
    .filter(p => p.kind === 'engine')
    .map(p => p.pid);

describe('a ready engine that is killed', () => {
  let first: ReplicaStatus;
  let next: ReplicaStatus;

  it('is followed by the next generation at once, and no request is lost between them', async () => {
    const env = { LLMGW_STANDIN_LOAD_MS: '300' };
    await at.deploy('frail', { ...base, served_model_name: 'frail', tensor_parallel: 2, env });
    first = await at.untilPhase('frail', 'ready');
    await at.untilServed('frail');
    const pid = first.members[0]!.pid!;
    kill(pid, 'SIGKILL');
    await waitFor('the engine to be gone', () => !isRunning(pid));
    const running = load(at, 'frail', 4);
    next = await at.untilPhase('frail', 'ready', 2);
    await waitFor('answers of the next generation', () => running.answered() >= 8);
    expect(await running.stop()).toEqual([]);
    expect(next.fence).toBeGreaterThan(first.fence!);
    expect(next.members[0]!.pid).not.toBe(pid);
    expect(next.restarts.in_window).toBe(1);
    expect(enginePids('frail')).toEqual([next.members[0]!.pid]);
  });

  it('leaves its evidence: the sentence, its log, and every step in the history', async () => {
    expect(next.last_failure).toMatchObject({ member: 0, sentence: expect.stringContaining('SIGKILL') });
    const logOf = async (generation: number) => {
      const { code, stdout } = await at.ctl('replica', 'logs', 'frail', '--generation', String(generation));
      return [code, stdout] as const;
    };
    const [old, oldLog] = await logOf(1);
    const [code, log] = await logOf(2);
    expect([old, code]).toEqual([0, 0]);
    expect(oldLog).toContain(`pid=${first.members[0]!.pid}`);
    expect(log).toContain(`pid=${next.members[0]!.pid}`);
    expect(oldLog).not.toContain(`pid=${next.members[0]!.pid}`);
    const exits = (await at.history('frail'))
      .map(e => e.workflowExecutionSignaledEventAttributes as Signaled | undefined)
      .filter(signal => signal?.signalName === 'engine_event')
      .map(signal => JSON.parse(Buffer.from(signal!.input.payloads[0]!.data, 'base64').toString()));
    expect(exits).toEqual([
      expect.objectContaining({
        replica: 'frail',
        fence: first.fence,
        requested: false,
        failure: expect.objectContaining({
          exit: { code: null, signal: 'SIGKILL' },
          tail: expect.arrayContaining([expect.stringContaining('Application startup complete.')]),
        }),
      }),
    ]);
    expect((await at.ctl('replica', 'show', 'frail')).stdout).toContain('SIGKILL');
    expect((await at.temporalCli('workflow', 'cancel', '--workflow-id', 'replica/frail')).code).toBe(0);
    expect((await at.closed('frail')).status).toBe('CANCELED');
  });

  it('breaks off a stream that has begun, and only that', async () => {
    const env = { LLMGW_STANDIN_TOKEN_MS: '20', LLMGW_STANDIN_TOKENS: '1000' };
    await at.deploy('cut', { ...base, served_model_name: 'cut', env });
    const { members } = await at.untilPhase('cut', 'ready');
    await at.untilServed('cut');
    const res = await fetch(`http://127.0.0.1:${at.ports.router}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'cut', stream: true, messages: [{ role: 'user', content: 'Hi' }] }),
    });
    const reader = res.body!.getReader();
    expect((await reader.read()).done).toBe(false);
    kill(members[0]!.pid!, 'SIGKILL');
    let text = '';
    const rest = (async () => {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return 'ended';
        text += Buffer.from(value).toString();
      }
    })().catch(() => 'broken');
    await rest;
    expect(isComplete({ status: 200, text }, true)).toBe(false);
    await at.untilPhase('cut', 'ready', 2);
    expect((await at.ctl('replica', 'stop', 'cut')).code).toBe(0);
    expect((await at.closed('cut')).status).toBe('CANCELED');
  });
});

describe('an engine that never gets ready', () => {
  const restart = { max_failures: 2, backoff_base: '50ms', backoff_max: '100ms' };
  const deploy = (name: string, env: Record<string, string>, more: object = {}) =>
    at.deploy(name, { ...base, env: { LLMGW_STANDIN_LOAD_MS: '40', ...env }, restart, ...more });

  /** The failed workflow's status, with the sentence that Temporal has for it. */
  const failed = async (name: string): Promise<string> => {
    const { status, failure } = await at.closed(name);
    expect(status).toBe('FAILED');
    expect(at.engines(name)).toEqual([]);
    return failure!;
  };

  it('fails its workflow after restart.max_failures with the line of its log that explains it', async () => {
    await deploy('boom', { LLMGW_STANDIN_FAIL: 'traceback' });
    const sentence = await failed('boom');
    expect(sentence).toContain('failed 2 times within restart.window');
    expect(sentence).toContain("KeyError: 'model.layers.0.mlp.gate_up_proj.weight'");
    const shown = (await at.status('boom'))!;
    expect(shown.phase).toBe('failed');
    expect(shown.generation).toBe(2);
    expect(shown.last_failure!.sentence).toContain('KeyError');
    const logs = await at.ctl('replica', 'logs', 'boom', '--generation', '1');
    expect(logs.stdout).toContain('KeyError');
  });

  it('takes an exit with code 0 for the failure that it is', async () => {
    await deploy('zero', { LLMGW_STANDIN_FAIL: 'exit0' });
    const sentence = await failed('zero');
    expect(sentence).toContain('exited with code 0 before it was ready without being asked to');
    expect(sentence).toContain('engine core exited unexpectedly');
  });

  it('is stopped when it makes no progress, and the last line before is told', async () => {
    await deploy('hang', { LLMGW_STANDIN_HANG_LOAD: '100' }, { no_progress_timeout: '1s' });
    const sentence = await failed('hang');
    expect(sentence).toMatch(/made no progress for \S+ while loading\. Its log says: \S/);
  });

  for (const [name, env, more, words] of [
    ['oom', { LLMGW_STANDIN_FAIL: 'oom' }, {}, 'CUDA out of memory'],
    ['gated', { LLMGW_STANDIN_FAIL: 'gated' }, {}, 'env_from_files (HF_TOKEN)'],
    ['flag', { LLMGW_STANDIN_FAIL: 'refused_flag' }, {}, 'unrecognized arguments: --refused-by-knob'],
    ['typo', {}, { args: ['--max-model-length', '1'] }, 'did you mean --max-model-len?'],
  ] as const) {
    it(`fails at once when trying again can't help (${name})`, async () => {
      await deploy(name, env, more);
      expect(await failed(name)).toContain(words);
      expect((await at.status(name))!.generation).toBeLessThanOrEqual(1);
    });
  }

  it('is stopped by a cancel while it loads, while it ignores SIGTERM, and while it waits to be tried again', async () => {
    const canceled = async (name: string): Promise<void> => {
      expect((await at.temporalCli('workflow', 'cancel', '--workflow-id', `replica/${name}`)).code).toBe(0);
      expect((await at.closed(name)).status).toBe('CANCELED');
      expect(at.engines(name)).toEqual([]);
    };
    await deploy('slow', { LLMGW_STANDIN_LOAD_MS: '600000' });
    await deploy('stubborn', {
      LLMGW_STANDIN_NEVER_END_ON_TERM: 'always',
      LLMGW_STANDIN_CHILDREN: '2',
      LLMGW_STANDIN_CHILDREN_SETSID: '1',
    });
    const again = { ...restart, backoff_base: '1h', backoff_max: '1h' };
    await deploy('waiting', { LLMGW_STANDIN_FAIL: 'nccl' }, { restart: again });
    await at.untilPhase('slow', 'loading');
    await at.untilPhase('stubborn', 'ready');
    const waiting = await at.untilPhase('waiting', 'backing_off');
    expect(waiting.reason).toMatch(/next try in \d+ s; .*NCCL/);
    expect(Date.parse(waiting.deadline!)).toBeGreaterThan(Date.now());
    await Promise.all(['slow', 'stubborn', 'waiting'].map(canceled));
  });

  it('leaves nothing held', async () => {
    await waitFor('all GPUs to be free', async () => (await at.nodes())[0]?.gpus.free === GPUS);
    expect(at.engines()).toEqual([]);
    expect((await at.routes()).endpoints).toEqual([]);
  });
});
