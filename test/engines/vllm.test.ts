import { describe, expect, it } from 'vitest';
import { passedEnv } from '../../agent/engines/environment.js';
import { vllm } from '../../agent/engines/vllm.js';
import { order, renderInput } from './samples.js';

describe('the command line', () => {
  it('serves the model under its names with the sizes of the spec, then the args of the spec', () => {
    const input = renderInput({
      order: order({ tensor_parallel: 2, aliases: ['small'], args: ['--max-model-len', '8192'] }),
    });
    expect(vllm.render(input).argv.join(' ')).toBe(
      '/opt/vllm/bin/vllm serve Qwen/Qwen3-8B --served-model-name qwen3-8b small --host 10.0.0.11 --port 20001 ' +
        '--tensor-parallel-size 2 --pipeline-parallel-size 1 --max-model-len 8192',
    );
  });

  it('asks for one port', () => {
    expect(vllm.ports(order(), renderInput().engine)).toEqual([{ name: 'http', count: 1 }]);
  });

  it('has no secret in it (INV-12)', () => {
    const rendered = vllm.render(renderInput({ secretEnv: { HF_TOKEN: 'hf_secret' } }));
    expect(rendered.argv.join(' ')).not.toMatch(/the-key|hf_secret/);
    expect(rendered.env).toMatchObject({ VLLM_API_KEY: 'the-key', HF_TOKEN: 'hf_secret' });
    expect(rendered.secrets).toEqual(['the-key', 'hf_secret']);
  });
});

describe('the environment', () => {
  it.each([
    ['0.33.0', 'GPU-aaaa,GPU-bbbb'],
    ['0.24.0', 'GPU-aaaa,GPU-bbbb'],
    ['0.22.1', '2,5'],
    ['1.0.0', 'GPU-aaaa,GPU-bbbb'],
    [null, '2,5'],
  ])('names the devices as version %s takes them', (version, devices) => {
    const { engine } = renderInput();
    const { env } = vllm.render(renderInput({ engine: { ...engine, version } }));
    expect(env).toMatchObject({ CUDA_VISIBLE_DEVICES: devices, CUDA_DEVICE_ORDER: 'PCI_BUS_ID' });
  });

  it('lets a spec change defaults but nothing that llmgw owns (INV-13)', () => {
    const changed = order();
    changed.spec.env = {
      VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS: '9',
      CUDA_VISIBLE_DEVICES: '0',
      SPT_NOENV: '0',
      VLLM_HOST_IP: '1.1.1.1',
    };
    const { env } = vllm.render(renderInput({ order: changed }));
    expect(env).toMatchObject({
      VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS: '9',
      CUDA_VISIBLE_DEVICES: 'GPU-aaaa,GPU-bbbb',
      SPT_NOENV: '1',
      VLLM_HOST_IP: '10.0.0.11',
    });
  });

  it('takes from the agent only what is passed by name', () => {
    const agent = {
      HOME: '/root',
      HF_HOME: '/models',
      LLMGW_STANDIN_LOAD_MS: '5',
      VLLM_PORT: 'tcp://10.0.0.1:8000',
      CUDA_VISIBLE_DEVICES: '0',
      HF_TOKEN: 'hf_secret',
      LD_PRELOAD: '/tmp/x.so',
    };
    expect(passedEnv(agent)).toEqual({ HOME: '/root', HF_HOME: '/models', LLMGW_STANDIN_LOAD_MS: '5' });
  });

  it('finds the programs beside the engine first', () => {
    expect(vllm.render(renderInput()).env.PATH).toMatch(/^\/opt\/vllm\/bin:\/usr\/local\/sbin:/);
  });

  it('runs open without a key', () => {
    const rendered = vllm.render(renderInput({ engineKey: null }));
    expect(rendered.env).not.toHaveProperty('VLLM_API_KEY');
    expect(rendered.probe?.bearer).toBeNull();
  });
});

it('names a GPU that has no UUID by its index', () => {
  const rendered = vllm.render(renderInput({ gpus: [{ uuid: 'unknown-0', index: 0 }] }));
  expect(rendered.env.CUDA_VISIBLE_DEVICES).toBe('0');
});

it('probes IPv6 addresses in brackets', () => {
  expect(vllm.render(renderInput({ mgmtAddr: 'fd00::1' })).probe).toEqual({
    healthUrl: 'http://[fd00::1]:20001/health',
    modelsUrl: 'http://[fd00::1]:20001/v1/models',
    bearer: 'the-key',
  });
});
