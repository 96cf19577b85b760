// What each member of a vLLM gang is started with. golden/ has it as text; `npx vitest run --project parts
// test/engines -u` writes it anew, and the change is reviewed as a diff.
import { describe, expect, it } from 'vitest';
import type { RenderInput } from '../../agent/engines/types.js';
import { vllm } from '../../agent/engines/vllm.js';
import { shutdownSeconds } from '../../agent/engines/vllm-serve.js';
import { type GangOptions, member, portsOf } from './gang.js';
import { renderText } from './render-text.js';
import { order, renderInput } from './samples.js';

const VERSIONS = ['0.11.2', '0.12.0', '0.20.0', '0.24.0', '0.33.0'];

const single = (version: string): RenderInput =>
  renderInput({
    order: order({ tensor_parallel: 2, aliases: ['small'], args: ['--max-model-len', '8192'] }),
    engine: { ...renderInput().engine, version },
  });

/** Before a version that renders otherwise, one file holds for all. */
const text = (input: RenderInput): string =>
  [
    '# ports',
    ...vllm
      .ports(input.order, input.engine)
      .map(({ name, count }) => `${name}: ${input.ports[name]}${count > 1 ? ` and ${count - 1} more` : ''}`),
    renderText(vllm.render(input)),
  ].join('\n');

describe('what is started', () => {
  const cases = VERSIONS.flatMap((version): [string, RenderInput][] => {
    const modes: GangOptions[] = [{ version, launch_mode: 'ray' }];
    if (version !== '0.11.2') modes.unshift({ version, launch_mode: 'mp' });
    return [
      [`vllm-${version}-single`, single(version)],
      ...modes.flatMap(mode =>
        [0, 1].map((rank): [string, RenderInput] => [
          `vllm-${version}-${mode.launch_mode}-rank-${rank}`,
          member(rank, mode),
        ]),
      ),
    ];
  });
  it.each(cases)('%s', async (name, input) => {
    await expect(text(input)).toMatchFileSnapshot(`golden/${name}.txt`);
  });
});

describe('ports', () => {
  it('are one more for rank 0 of mp, and none for the others', () => {
    expect(portsOf(0, {})).toEqual({ http: 20_001, master: 20_002 });
    expect(portsOf(1, {})).toEqual({});
  });

  it.each([0, 1])('of Ray are all pinned, each another one (rank %d)', rank => {
    const input = member(rank, { launch_mode: 'ray' });
    const script = vllm.render(input).files![0]!.text;
    const pinned = [...script.matchAll(/--[\w-]*port=(\d+)/g)].map(([, port]) => Number(port));
    const { http: _, worker, ...others } = input.ports;
    const block = vllm.ports(input.order, input.engine).find(need => need.name === 'worker')!.count;
    expect(pinned.toSorted()).toEqual([...Object.values(others), worker!, worker! + block - 1].toSorted());
    expect(new Set(pinned).size).toBe(pinned.length);
  });

  it('has none for a client that is not installed', () => {
    const options: GangOptions = { launch_mode: 'ray', ray: { client: false } };
    expect(portsOf(0, options)).not.toHaveProperty('client');
    expect(vllm.render(member(0, options)).files![0]!.text).not.toContain('ray-client-server-port');
  });
});

describe('a member', () => {
  it.each(['mp', 'ray'] as const)('that follows serves nothing and has no key (%s)', launch_mode => {
    const rendered = vllm.render(member(1, { launch_mode }));
    expect(rendered.probe).toBeNull();
    expect(rendered.env).not.toHaveProperty('VLLM_API_KEY');
    expect(vllm.render(member(0, { launch_mode })).probe).not.toBeNull();
  });

  it.each(['mp', 'ray'] as const)('has no secret in argv or in a file (INV-12) (%s)', launch_mode => {
    const input = { ...member(0, { launch_mode }), secretEnv: { HF_TOKEN: 'hf_secret' } };
    const { argv, files, env } = vllm.render(input);
    expect(JSON.stringify([argv, files])).not.toMatch(/the-key|hf_secret/);
    expect(env.HF_TOKEN).toBe('hf_secret');
  });

  it('lets a spec change nothing of the network (INV-13)', () => {
    const input = member(1, { launch_mode: 'ray' });
    input.order.spec.env = {
      NCCL_SOCKET_IFNAME: 'eth9',
      GLOO_SOCKET_IFNAME: 'eth9',
      NCCL_IB_HCA: 'mlx5_9',
      VLLM_HOST_IP: '1.1.1.1',
      RAY_AUTH_MODE: 'token',
    };
    expect(vllm.render(input).env).toMatchObject({
      NCCL_SOCKET_IFNAME: '=bond0',
      GLOO_SOCKET_IFNAME: 'bond0',
      NCCL_IB_HCA: '=mlx5_0,mlx5_3:1',
      VLLM_HOST_IP: '10.0.0.12',
      RAY_AUTH_MODE: 'disabled',
    });
  });

  it('meets the others at an IPv6 address in brackets', () => {
    const input = member(1, { launch_mode: 'ray' });
    for (const peer of input.peers) peer.mgmt_addr = `fd00::${peer.rank}`;
    expect(vllm.render(input).files![0]!.text).toContain('--address=[fd00::0]:');
  });

  it('without a server is not told how many servers to have', () => {
    const args = [
      '--max-model-len',
      '8k',
      '--api_server_count=4',
      '-asc',
      '2',
      '--api-server',
      '3',
      '--seed',
      '1',
    ];
    expect(vllm.render(member(1, { spec: { args } })).argv.join(' ')).toMatch(
      /--headless --max-model-len 8k --seed 1$/,
    );
    expect(vllm.render(member(0, { spec: { args } })).argv).toContain('--api_server_count=4');
  });

  it('needs peers and, with Ray, what preflight has found', () => {
    expect(() => vllm.render({ ...member(1), peers: [] })).toThrow('no peers');
    const { engine, ...input } = member(0, { launch_mode: 'ray' });
    const { ray: _, ...bare } = engine;
    expect(() => vllm.render({ ...input, engine: bare })).toThrow('has no Ray');
  });
});

it('does without Ray on one node, whatever the launch mode', () => {
  const input = single('0.33.0');
  const rendered = vllm.render({ ...input, engine: { ...input.engine, launch_mode: 'ray' } });
  expect(rendered).toEqual(vllm.render(input));
});

describe('the time to stop in', () => {
  it.each<[string[], number]>([
    [[], 0],
    [['--shutdown-timeout', '30'], 30],
    [['--shutdown_timeout=5'], 5],
    [['--shutdown', '7', '--seed', '1'], 7],
    [['--shutdown-timeout', 'x'], 0],
    [['--skip-mm-profiling'], 0],
  ])('%j: %d s of its own', (args, seconds) => expect(shutdownSeconds(args)).toBe(seconds));

  it('grows with the time that requests have, and with Ray', () => {
    expect(vllm.stopMs!(order())).toBe(20_000);
    expect(vllm.stopMs!(order({ args: ['--shutdown-timeout=30'] }))).toBe(50_000);
    expect(vllm.stopMs!(order({ nodes: 2, tensor_parallel: 2 }))).toBe(35_000);
  });
});
