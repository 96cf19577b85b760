import { describe, expect, it } from 'vitest';
import { renderer } from '../../agent/engines/index.js';
import { sglang } from '../../agent/engines/sglang.js';
import { readSglangPulse } from '../../agent/engines/sglang-life.js';
import type { RenderInput, ResolvedEngine } from '../../agent/engines/types.js';
import type { Peer } from '../../contracts/activities.js';
import { ownedFlag } from '../../contracts/owned.js';
import { renderText } from './render-text.js';
import { order, renderInput, spec } from './samples.js';

const engine: ResolvedEngine = {
  name: 'sglang',
  type: 'sglang',
  bin: '/opt/sglang/bin/python',
  version: '0.5.23',
  launch_mode: null,
};

const alone = (changes: Partial<RenderInput> = {}): RenderInput =>
  renderInput({
    engine,
    order: order({ engine: 'sglang', tensor_parallel: 2, args: ['--context-length', '8192'] }),
    ports: { http: 20_001, nccl: 20_002, dist: 20_016 },
    runDir: '/var/lib/llmgw-agent/engines/demo',
    ...changes,
  });

/** Of three members, on nodes 10.0.0.11 to .13, with 8 GPUs each. */
function member(rank: number, changes: Partial<RenderInput> = {}): RenderInput {
  const peers = [0, 1, 2].map(
    (r): Peer => ({
      rank: r,
      node: `gpu-a-0${r + 1}`,
      mgmt_addr: `10.0.0.1${r + 1}`,
      ports: r === 0 ? { http: 20_001, nccl: 20_002, dist: 20_016 } : { http: 20_031, nccl: 20_032 },
    }),
  );
  const gang = {
    ...order({ engine: 'sglang', tensor_parallel: 8, pipeline_parallel: 3, nodes: 3 }),
    rank,
    nodes: 3,
  };
  return alone({
    order: { ...gang, fabric: 'ib-a' },
    gpus: Array.from({ length: 8 }, (_, index) => ({ uuid: `GPU-${index}`, index })),
    peers,
    ports: peers[rank]!.ports,
    mgmtAddr: peers[rank]!.mgmt_addr,
    mgmtInterface: 'bond0',
    fabricHcas: ['mlx5_0', 'mlx5_3'],
    ...changes,
  });
}

describe('what is started', () => {
  it.each([
    ['sglang-single', alone()],
    ['sglang-no-key', alone({ engineKey: null })],
    ['sglang-rank-0', member(0)],
    ['sglang-rank-1', member(1)],
    ['sglang-rank-2', member(2)],
  ])('%s', async (name, input) => {
    await expect(renderText(sglang.render(input))).toMatchFileSnapshot(`golden/${name}.txt`);
  });

  it('is rendered by the type of the engine', () => {
    expect(renderer('sglang')).toBe(sglang);
  });

  it('has no secret in argv: the key is in a file that only its user reads (INV-12)', () => {
    const rendered = sglang.render(alone({ secretEnv: { HF_TOKEN: 'hf_secret' } }));
    expect(rendered.argv.join(' ')).not.toMatch(/the-key|hf_secret/);
    expect(Object.values(rendered.env)).not.toContain('the-key');
    expect(rendered.files).toEqual([{ name: 'sglang-key.yaml', text: 'api-key: "the-key"\n', mode: 0o600 }]);
    expect(rendered.secrets).toEqual(['the-key', 'hf_secret']);
    expect(rendered.probe?.bearer).toBe('the-key');
  });

  it('gives followers no key and asks nothing of them: their /health says 200 whatever happens', () => {
    const rendered = sglang.render(member(1));
    expect(rendered.probe).toBeNull();
    expect(rendered.files).toEqual([]);
    expect(rendered.argv).not.toContain('--config');
  });

  it('renders only flags that no spec may say, besides those of the spec and its metrics', () => {
    const flags = sglang.render(member(0)).argv.filter(arg => arg.startsWith('--'));
    expect(flags.filter(flag => ownedFlag(flag) === null)).toEqual(['--enable-metrics']);
  });

  it('writes IPv6 addresses in brackets where a port follows', () => {
    const peers = member(0).peers.map(peer => ({ ...peer, mgmt_addr: 'fd00::1' }));
    const rendered = sglang.render(member(0, { peers, mgmtAddr: 'fd00::1' }));
    expect(rendered.argv.join(' ')).toContain('--host fd00::1 --port 20001');
    expect(rendered.argv.join(' ')).toContain('--dist-init-addr [fd00::1]:20016');
    expect(rendered.probe?.healthUrl).toBe('http://[fd00::1]:20001/health');
  });

  it('lets a spec change defaults but nothing that llmgw owns (INV-13)', () => {
    const input = alone();
    input.order.spec.env = { SGLANG_HOST_IP: '1.1.1.1', CUDA_VISIBLE_DEVICES: '7', NCCL_DEBUG: 'INFO' };
    expect(sglang.render(input).env).toMatchObject({
      SGLANG_HOST_IP: '10.0.0.11',
      CUDA_VISIBLE_DEVICES: '2,5',
      NCCL_DEBUG: 'INFO',
    });
  });

  it('keeps calls between members out of the proxy that the hub is reached by', () => {
    const passEnv = { https_proxy: 'http://proxy:3128', no_proxy: '.corp' };
    expect(sglang.render(member(1, { passEnv })).env).toMatchObject({
      no_proxy: '.corp,10.0.0.12,10.0.0.11,10.0.0.13,127.0.0.1,localhost',
    });
    expect(sglang.render(member(1)).env).not.toHaveProperty('no_proxy');
  });

  it('needs the peers of a gang', () => {
    expect(() => sglang.render(member(1, { peers: [] }))).toThrow('has no peers');
  });
});

describe('ports and times', () => {
  it('reserves what it reckons from its rendezvous port on rank 0, and an HTTP port on every member', () => {
    const http = [
      { name: 'http', count: 1 },
      { name: 'nccl', count: 1 },
    ];
    expect(sglang.ports(member(0).order, engine)).toEqual([...http, { name: 'dist', count: 16 }]);
    expect(sglang.ports(member(1).order, engine)).toEqual(http);
    expect(sglang.ports(alone().order, engine)).toEqual([...http, { name: 'dist', count: 16 }]);
  });

  it('waits for a probe longer than the 20 s that /health takes to find that nothing comes', () => {
    expect(sglang.render(alone()).probe).toMatchObject({ timeoutMs: 25_000, periodMs: 25_000 });
  });

  it('does not wait long for a follower, which ignores SIGTERM', () => {
    expect([0, 1].map(rank => sglang.stopMs?.(member(rank).order))).toEqual([null, 20_000]);
  });
});

describe('what it cannot do', () => {
  const refused = (changes: Record<string, unknown>, version: string | null = '0.5.23') => {
    try {
      sglang.check?.(spec({ engine: 'sglang', ...changes }), { ...engine, version });
    } catch (error) {
      return `${(error as { code: string }).code} ${(error as Error).message}`;
    }
    return null;
  };

  it.each([
    [{ aliases: ['small'] }, 'ENGINE_UNFIT aliases: SGLang serves a model under one name'],
    [{ served_model_name: 'qwen:8b' }, 'ENGINE_UNFIT served_model_name: SGLang takes what follows the ":"'],
    [{ args: ['--context-len-gth', '1'] }, 'did you mean --context-length?'],
    [
      { args: ['--enforce-eager'] },
      'FLAG_UNKNOWN args: SGLang 0.5.23 (engine sglang) has no flag --enforce-eager',
    ],
    [{ args: ['--mem_fraction_static=0.8'] }, 'did you mean --mem-fraction-static?'],
  ])('%j', (changes, words) => {
    expect(refused(changes)).toContain(words);
  });

  it.each([
    ['0.4.6.post1', true],
    ['0.5.2', true],
    ['0.5.3', false],
    ['0.5.23', false],
    ['0.6.0rc1', false],
    ['1.0.0', false],
  ])('version %s: refused %s', (version, old) => {
    const said = refused({}, version);
    if (old) expect(said).toContain('is older than 0.5.3');
    else expect(said).toBeNull();
  });

  it('leaves the flags of versions that it does not know to their own parser', () => {
    expect(refused({ args: ['--enforce-eager'] }, '0.5.10')).toBeNull();
    expect(refused({ args: ['--enforce-eager'] }, null)).toBeNull();
  });

  it.each([
    [3, 3, 2, false],
    [2, 4, 3, false],
    [2, 3, 4, true],
    [2, 4, 2, true],
    [3, 8, 3, true],
    [4, 2, 2, true],
  ])('%i members with %i × %i GPUs', (nodes, tensor_parallel, pipeline_parallel, taken) => {
    const sizes = { ...spec({ engine: 'sglang' }), nodes, tensor_parallel, pipeline_parallel };
    const check = () => sglang.check?.(sizes, engine);
    if (taken) expect(check).not.toThrow();
    else expect(check).toThrow("SGLang can't spread");
  });
});

describe('signs of life', () => {
  const metrics = (running: number, tokens: number) =>
    `# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{model_name="m"} ${running}.0\n` +
    `sglang:num_queue_reqs{model_name="m"} 2.0\nsglang:generation_tokens_total{model_name="m"} ${tokens}.0\n` +
    `sglang:num_requests_total{model_name="m"} ${tokens + running}.0\n`;

  it('counts requests, and moves with tokens', () => {
    const pulse = readSglangPulse(metrics(3, 10));
    expect(pulse?.requests).toBe(5);
    expect(readSglangPulse(metrics(3, 10))).toEqual(pulse);
    expect(readSglangPulse(metrics(3, 11))?.beat).not.toBe(pulse?.beat);
  });

  it('finds none where there are no metrics', () => {
    expect(readSglangPulse('{"detail":"Not Found"}')).toBeNull();
  });

  it('asks rank 0 for one token', () => {
    expect(sglang.lifeSigns(alone().order)?.oneToken.body).toMatchObject({
      model: 'qwen3-8b',
      max_tokens: 1,
    });
    expect(sglang.lifeSigns(member(1).order)).toBeNull();
    expect(sglang.lifeSigns(order({ args: ['--enable-memory-saver'] }))).toBeNull();
  });
});
