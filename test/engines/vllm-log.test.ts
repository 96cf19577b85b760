import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe, expect, it } from 'vitest';
import { vllm } from '../../agent/engines/vllm.js';
import type { FailureClass } from '../../contracts/engine.js';
import { STANDIN } from '../standin/harness.js';

type Input = Parameters<typeof vllm.explain>[0];

const explain = (lines: string[], changes: Partial<Input> = {}) =>
  vllm.explain({ exit: { code: 1, signal: null }, wasReady: false, gpuWasDirty: false, lines, ...changes });

/** The whole log of a stand-in that fails so. */
async function failingLog(FAIL: string): Promise<{ lines: string[]; code: number }> {
  const env = { PATH: process.env.PATH, LLMGW_STANDIN_FAIL: FAIL };
  const child = spawn(STANDIN, ['serve', 'm', '--host', '127.0.0.1', '--port', '1'], {
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', part => (text += part));
  const [code] = await once(child, 'close');
  return { lines: text.split('\n'), code };
}

describe('why an engine did not get ready', () => {
  it.each<[string, FailureClass, string, string]>([
    ['oom', 'permanent', 'ENGINE_FAILED', 'Tried to allocate 1.16 GiB'],
    ['kv_cache', 'permanent', 'ENGINE_FAILED', 'No available memory for the cache blocks'],
    ['gpu_busy', 'permanent', 'ENGINE_FAILED', 'Free memory on device cuda:0'],
    ['max_len', 'permanent', 'ENGINE_FAILED', 'User-specified max_model_len (1000000)'],
    ['gated', 'permanent', 'ENGINE_FAILED', 'env_from_files'],
    ['model', 'permanent', 'MODEL_MISSING', '/models/absent'],
    ['port', 'port_conflict', 'ENGINE_FAILED', 'Address already in use'],
    ['refused_flag', 'permanent', 'FLAG_UNKNOWN', '--refused-by-knob'],
    ['nccl', 'retry', 'ENGINE_FAILED', 'NCCL error'],
    ['ecc', 'node_fault', 'ENGINE_FAILED', 'uncorrectable ECC'],
    ['traceback', 'retry', 'ENGINE_FAILED', "KeyError: 'model.layers.0.mlp.gate_up_proj.weight'"],
    ['exit0', 'retry', 'ENGINE_FAILED', 'exited with code 0 before it was ready without being asked to'],
  ])('%s: class %s', async (name, wanted, errorCode, words) => {
    const { lines, code } = await failingLog(name);
    const explained = explain(lines, { exit: { code, signal: null } });
    expect(explained).toMatchObject({ class: wanted, code: errorCode });
    expect(explained.sentence).toContain(words);
    expect(explained.sentence).not.toMatch(/pid=|See root cause above/);
    expect(explained.sentence.length).toBeLessThanOrEqual(600);
  });

  it('wants the GPU clean first where it was dirty', () => {
    const line = 'torch.OutOfMemoryError: CUDA out of memory.';
    expect(explain([line], { gpuWasDirty: true }).class).toBe('gpu_cleanup');
  });

  it('tries again when the hub, not the name, is at fault', () => {
    const lines = [
      "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443)",
      "ValueError: Invalid repository ID or local directory specified: 'Qwen/X'.",
    ];
    expect(explain(lines).class).toBe('retry');
  });

  it('does not take a survived hiccup for the cause', () => {
    const lines = ['WARNING Read timed out, retrying', 'KeyError: some.weight'];
    expect(explain(lines).sentence).toContain('KeyError: some.weight');
  });

  it('names the last line of a load without progress', () => {
    const lines = ['(EngineCore pid=7) INFO 11-30 12:00:00 [shm_broadcast.py:681] waiting', ''];
    expect(explain(lines, { exit: null, noProgressMs: 900_000 })).toMatchObject({
      class: 'retry',
      sentence: 'vLLM made no progress for 15m while loading. Its log says: waiting',
    });
  });

  it('says so when the log is empty', () => {
    expect(explain([]).sentence).toBe('vLLM exited with code 1 before it was ready; its log is empty');
  });

  it('bounds the sentence however long the line', () => {
    expect(explain([`ValueError: ${'x'.repeat(100_000)}`]).sentence.length).toBeLessThanOrEqual(600);
  });
});

describe('why an engine that served ended', () => {
  const killed = { exit: { code: null, signal: 'SIGKILL' }, wasReady: true };

  it('does not look for the cause before it was ready', () => {
    const lines = [
      'WARNING: [Errno 98] Address already in use',
      'INFO: Application startup complete.',
      'INFO: bye',
      'INFO:     127.0.0.1:35006 - "GET /health HTTP/1.1" 200',
    ];
    const explained = explain(lines, killed);
    expect(explained.class).toBe('retry');
    expect(explained.sentence).toMatch(
      /^vLLM was ended by SIGKILL after it had served, and its log gives no reason/,
    );
  });

  it('retries memory trouble of a model that had fitted', () => {
    const lines = ['Application startup complete.', 'torch.OutOfMemoryError: CUDA out of memory.'];
    expect(explain(lines, { wasReady: true }).class).toBe('retry');
  });

  it('calls an unknown exit status by its name', () => {
    const exit = { code: null, signal: null };
    expect(explain(['x'], { exit, wasReady: true }).sentence).toContain('its exit status is unknown');
  });
});

describe('progress', () => {
  it('only grows over a real load', async () => {
    const { lines } = await failingLog('exit0');
    const percents = lines.flatMap(line => vllm.stage(line)?.percent ?? []);
    expect(percents.length).toBeGreaterThan(5);
    expect(percents).toEqual([...percents].sort((a, b) => a - b));
  });

  it.each([
    [
      'Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:13<00:11,  2.87s/it]',
      'loading weights',
      35,
    ],
    [
      'INFO 11-30 12:00:00 [gpu_worker.py:436] Available KV cache memory: 54.61 GiB',
      'allocating KV cache',
      75,
    ],
    ['Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%| 51/51', 'capturing CUDA graphs', 92],
  ])('reads %s', (line, stage, percent) => {
    expect(vllm.stage(line)).toMatchObject({ stage, percent });
  });

  it.each([
    ['Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:13<00:11,  2.87s/it]', 11_000],
    ['Downloading shards:  25%|██▌       | 1/4 [20:00<1:00:30, 1200s/it]', 3_630_000],
    ['Capturing CUDA graphs (decode, FULL):   3%|▎         | 1/35 [00:00<00:28,  1.20it/s]', 28_000],
    ['Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]', undefined],
    ['INFO 11-30 12:00:00 [default_loader.py:267] Loading weights took 3.04 seconds', undefined],
  ])('estimates by %s', (line, eta) => {
    expect(vllm.stage(line)?.eta_ms).toBe(eta);
  });

  it('finds nothing in other lines', () => {
    expect(
      vllm.stage('INFO 11-30 12:00:00 [model.py:581] Resolved architecture: Qwen3ForCausalLM'),
    ).toBeNull();
  });

  it.each([
    'No available shared memory broadcast block found in 60 seconds.',
    '(EngineCore pid=9) INFO 11-30 12:00:10 [ray_utils.py:231] Waiting for creating a placement group of specs for 20 seconds.',
    "(autoscaler +1m40s) Error: No available node types can fulfill resource request {'GPU': 1.0}. Add suitable node types.",
    '[W1130 12:00:00.123 socket.cpp:764] [c10d] The client socket has failed to connect to [gpu-a-01]:20002 (errno: 111 - Connection refused).',
    'llmgw: waiting for the Ray head at 10.0.0.11:20003',
    'INFO:     10.0.0.9:35006 - "GET /health HTTP/1.1" 503',
  ])('is none when it only repeats (INV-9): %s', line => {
    expect(vllm.isStall(line)).toBe(true);
  });

  it.each([
    'Loading weights took 3.04 seconds',
    'llmgw: joining the Ray head at 10.0.0.11:20003',
    '2026-11-30 21:31:31,656\tSUCC scripts.py:1251 -- Ray runtime started.',
  ])('is one at: %s', line => {
    expect(vllm.isStall(line)).toBe(false);
  });
});
