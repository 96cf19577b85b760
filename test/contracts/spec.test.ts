import { describe, expect, it } from 'vitest';
import { parseReplicaSpec, specFaultText, specHash } from '../../contracts/spec.js';

const base = { model: 'Qwen/Qwen3-8B', engine: 'vllm' };
const faultsOf = (over: Record<string, unknown>, name = 'demo'): string => {
  const parsed = parseReplicaSpec({ ...base, ...over }, name);
  return parsed.ok ? '' : specFaultText(parsed.faults);
};

describe('a replica spec', () => {
  it('needs model and engine alone and fills the documented defaults', () => {
    const parsed = parseReplicaSpec(base, 'demo');
    expect(parsed).toMatchObject({
      ok: true,
      spec: {
        name: 'demo',
        served_model_name: 'Qwen/Qwen3-8B',
        tensor_parallel: 1,
        pipeline_parallel: 1,
        nodes: 1,
        restart: { max_failures: 5, window: 1_800_000, backoff_base: 5_000, backoff_max: 300_000 },
        on_node_loss: { replace_after: 300_000 },
        no_progress_timeout: 900_000,
        drain_timeout: 30_000,
        placement: { allow_pcie: false },
      },
    });
  });

  it('names every fault at once, by path', () => {
    const text = faultsOf({
      tensor_paralel: 4,
      drain_timeout: '5',
      args: ['--port', '80'],
      env: { HF_TOKEN: 'x' },
      restart: { windw: '1m' },
    });
    for (const part of [
      'tensor_paralel: unknown key, did you mean "tensor_parallel"?',
      'drain_timeout:',
      'args[0]: --port belongs to llmgw',
      'env.HF_TOKEN: looks like a secret',
      'env_from_files',
      'restart.windw',
    ]) {
      expect(text).toContain(part);
    }
  });

  it.each([
    ['--tensor-parallel-size=4', 'tensor_parallel'],
    ['--tensor_parallel_size', 'tensor_parallel'],
    ['--tensor-par', 'tensor_parallel'],
    ['-tp', 'tensor_parallel'],
    ['-tp4', 'tensor_parallel'],
    ['-tp=4', 'tensor_parallel'],
    ['--served-model-name', 'served_model_name'],
    ['--api-key', 'its own key'],
    ['--config', 'args'],
    ['--host', 'llmgw sets it'],
    ['--device-ids', 'the grant'],
    ['-dp', 'several replicas'],
  ])('refuses the owned flag %s and says what to use', (flag, use) => {
    expect(faultsOf({ args: [flag] })).toContain(use);
  });

  it.each([
    '--max-model-len',
    '--max-num-seqs',
    '--seed',
    '--enforce-eager',
    '--hf-overrides',
    '--dtype',
    '8192',
    '-1',
    '--model-impl',
    '--download-dir',
    '--no-enable-prefix-caching',
  ])('lets %s through', arg => {
    expect(faultsOf({ args: [arg] })).toBe('');
  });

  it.each([
    'CUDA_VISIBLE_DEVICES',
    'NCCL_SOCKET_IFNAME',
    'NCCL_IB_HCA',
    'VLLM_HOST_IP',
    'VLLM_API_KEY',
    'RAY_ADDRESS',
    'LLMGW_ENGINE',
    'VLLM_PORT',
  ])('refuses the owned variable %s', name => {
    expect(faultsOf({ env: { [name]: '1' } })).toContain('belongs to llmgw');
  });

  it('refuses secrets by name and by shape without repeating them', () => {
    const secret = 'hf_abcdefghijklmnopqrstuvwxyz';
    for (const text of [
      faultsOf({ env: { NOTE: secret } }),
      faultsOf({ args: [`--x=${secret}`] }),
      faultsOf({ args: ['--hf-token', secret] }),
    ]) {
      expect(text).toContain('env_from_files');
      expect(text).not.toContain(secret);
    }
    expect(faultsOf({ env: { TOKENIZERS_PARALLELISM: 'false', VLLM_LOGGING_LEVEL: 'INFO' } })).toBe('');
  });

  it.each(['model', 'served_model_name', 'aliases'])('lets no flag, secret or novel into %s', field => {
    const secret = 'hf_abcdefghijklmnopqrstuvwxyz';
    const path = field === 'aliases' ? 'aliases[0]' : field;
    const given = (text: string) => faultsOf({ [field]: field === 'aliases' ? [text] : text });
    expect(given('--api-key=x')).toContain(`${path}: begins with "-"`);
    expect(given('a\u0000b')).toContain(`${path}: holds a control character`);
    expect(given('a\nb')).toContain(`${path}: holds a control character`);
    expect(given(secret)).toMatch(/looks like a secret.*env_from_files/);
    expect(given(secret)).not.toContain(secret);
    expect(given('m'.repeat(513))).toContain(`${path}: is 513 characters long, at most 512`);
    expect(given('m'.repeat(512))).toBe('');
    expect(given('s3://bucket/Qwen3-8B: größer')).toBe('');
    // Beside a fault of shape, too.
    const both = { [field]: field === 'aliases' ? ['-x'] : '-x', priorty: 1 };
    expect(faultsOf(both)).toContain(`${path}: begins with "-"`);
  });

  it('is bounded as a whole, counted in bytes of JSON', () => {
    const spec = (text: string) => ({ env: { NOTE: text } });
    expect(faultsOf(spec('x'.repeat(32_000)))).toBe('');
    expect(faultsOf(spec('x'.repeat(32_768)))).toMatch(/the spec is \d+ bytes of JSON, and at most 32768/);
    expect(faultsOf(spec('ü'.repeat(20_000)))).toContain('at most 32768');
    const nested = JSON.parse(`${'['.repeat(200_000)}${']'.repeat(200_000)}`);
    expect(faultsOf({ args: nested })).toMatch(/bytes of JSON|nested too deep/);
  });

  it('keeps secrets files below secrets_dir', () => {
    expect(faultsOf({ env_from_files: { HF_TOKEN: '../shadow' } })).toContain('secrets_dir');
    expect(faultsOf({ env_from_files: { HF_TOKEN: 'hf-token' } })).toBe('');
  });

  it('takes several nodes whose members have as many GPUs, whole ones, and any engine of agent.yaml', () => {
    expect(faultsOf({ nodes: 2, tensor_parallel: 16 })).toBe('');
    expect(faultsOf({ nodes: 3, tensor_parallel: 8, pipeline_parallel: 3, engine: 'sglang' })).toBe('');
    expect(faultsOf({ nodes: 2 })).toContain(
      'nodes: tensor_parallel × pipeline_parallel = 1 does not divide',
    );
    expect(faultsOf({ nodes: 3, tensor_parallel: 8 })).toContain('= 8 does not divide by nodes = 3');
    expect(faultsOf({ nodes: 128, tensor_parallel: 128 })).toContain('nodes: is 128, at most 64');
  });

  it('refuses a name that is not the workflow id', () => {
    expect(faultsOf({ name: 'other' })).toContain('replica/demo');
    expect(faultsOf({}, 'Not_A_Name')).toContain('upper-case');
  });

  it.each([null, undefined, 'text', 7, [], {}])('answers %j with a sentence, not an exception', raw => {
    expect(parseReplicaSpec(raw, 'demo')).toMatchObject({ ok: false });
  });

  it('has one hash whatever the order of the keys', () => {
    const a = parseReplicaSpec({ ...base, env: { A: '1', B: '2' } }, 'demo');
    const b = parseReplicaSpec({ engine: 'vllm', env: { B: '2', A: '1' }, model: 'Qwen/Qwen3-8B' }, 'demo');
    expect(a.ok && b.ok && specHash(a.spec) === specHash(b.spec)).toBe(true);
  });
});
