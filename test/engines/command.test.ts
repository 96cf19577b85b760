import { describe, expect, it } from 'vitest';
import { loadAgentConfigText } from '../../agent/config.js';
import { command } from '../../agent/engines/command.js';
import { fill, PLACEHOLDERS, templateFault, type Values } from '../../agent/engines/command-template.js';
import { renderer } from '../../agent/engines/index.js';
import type { CommandTemplate, RenderInput, ResolvedEngine } from '../../agent/engines/types.js';
import type { Peer } from '../../contracts/activities.js';
import { renderText } from './render-text.js';
import { order, renderInput, spec } from './samples.js';

const TEMPLATE: CommandTemplate = {
  argv: [
    '/opt/other/serve',
    '--model={model}',
    '--names',
    '{served_model_name}',
    '{aliases}',
    '--at',
    '{host}:{port}',
  ],
  probe: '/ready',
  env: { OTHER_WORLD: '{tp}x{pp}', OTHER_CACHE: '{run_dir}/cache' },
  api_key_env: 'OTHER_KEY',
};

const GANG: CommandTemplate = {
  argv: [
    '/opt/other/serve',
    '{model}',
    '--port={port}',
    '--rank={rank}/{nodes}',
    '--meet={leader_addr}:{leader_port}',
    '--gpus={gpu_count}',
    '--key-file={api_key_file}',
    '--literal={{rank}}',
  ],
  probe: '/health',
  env: {},
  api_key_env: null,
};

const engine = (template: CommandTemplate): ResolvedEngine => ({
  name: 'other',
  type: 'command',
  bin: '/opt/other/serve',
  version: null,
  launch_mode: null,
  command: template,
});

const alone = (changes: Partial<RenderInput> = {}): RenderInput =>
  renderInput({
    engine: engine(TEMPLATE),
    order: order({ engine: 'other', tensor_parallel: 2, aliases: ['small', 'tiny'], args: ['--quick'] }),
    ...changes,
  });

function member(rank: number): RenderInput {
  const peers = [0, 1].map(
    (r): Peer => ({
      rank: r,
      node: `gpu-a-0${r + 1}`,
      mgmt_addr: `10.0.0.1${r + 1}`,
      ports: r === 0 ? { http: 20_001, leader: 20_016 } : { http: 20_031 },
    }),
  );
  return alone({
    engine: engine(GANG),
    order: { ...order({ engine: 'other', tensor_parallel: 4, nodes: 2 }), rank, nodes: 2, fabric: 'ib-a' },
    peers,
    ports: peers[rank]!.ports,
    mgmtAddr: peers[rank]!.mgmt_addr,
    mgmtInterface: 'bond0',
    fabricHcas: ['mlx5_0'],
  });
}

describe('what is started', () => {
  it.each([
    ['command-single', alone()],
    ['command-rank-0', member(0)],
    ['command-rank-1', member(1)],
  ])('%s', async (name, input) => {
    await expect(renderText(command.render(input))).toMatchFileSnapshot(`golden/${name}.txt`);
  });

  it('is rendered by the type of the engine', () => {
    expect(renderer('command')).toBe(command);
  });

  it('has the key in the variable or the file that agent.yaml names, never in argv (INV-12)', () => {
    const byVariable = command.render(alone());
    expect(byVariable.env.OTHER_KEY).toBe('the-key');
    expect(byVariable.files).toEqual([]);
    const byFile = command.render(member(0));
    expect(byFile.files).toEqual([{ name: 'api-key', text: 'the-key', mode: 0o600 }]);
    expect(Object.values(byFile.env)).not.toContain('the-key');
    for (const { argv, secrets } of [byVariable, byFile]) {
      expect(argv.join(' ')).not.toContain('the-key');
      expect(secrets).toContain('the-key');
    }
  });

  it('gives a follower no key, and asks nothing of it', () => {
    const rendered = command.render(member(1));
    expect(rendered.probe).toBeNull();
    expect(rendered.files).toEqual([{ name: 'api-key', text: '', mode: 0o600 }]);
  });

  it('lets a spec change what agent.yaml gives, but nothing that llmgw owns (INV-13)', () => {
    const input = alone();
    input.order.spec.env = { OTHER_CACHE: '/fast', CUDA_VISIBLE_DEVICES: '7' };
    expect(command.render(input).env).toMatchObject({ OTHER_CACHE: '/fast', CUDA_VISIBLE_DEVICES: '2,5' });
  });
});

describe('ports', () => {
  it('reserves a block to meet at on rank 0 of a gang', () => {
    const http = { name: 'http', count: 1 };
    expect(command.ports(alone().order, engine(TEMPLATE))).toEqual([http]);
    expect(command.ports(member(0).order, engine(GANG))).toEqual([http, { name: 'leader', count: 16 }]);
    expect(command.ports(member(1).order, engine(GANG))).toEqual([http]);
  });
});

describe('what it cannot do', () => {
  it.each([
    [
      TEMPLATE,
      { nodes: 2 },
      'its argv and env in agent.yaml have no {rank}, no {leader_addr}, no {leader_port}',
    ],
    [GANG, { aliases: ['small'] }, 'has no {aliases}: it would serve the model under one name'],
  ])('%#', (template, changes, words) => {
    const wanted = { ...spec({ engine: 'other' }), ...changes };
    expect(() => command.check?.(wanted, engine(template))).toThrow(words);
  });

  it('takes what the template has a place for', () => {
    expect(() => command.check?.({ ...spec(), aliases: ['a'] }, engine(TEMPLATE))).not.toThrow();
    expect(() => command.check?.({ ...spec(), nodes: 2 }, engine(GANG))).not.toThrow();
  });
});

describe('why it ended', () => {
  it.each([
    ['other: error: unrecognized arguments: --quick', 'permanent', 'FLAG_UNKNOWN'],
    ['torch.OutOfMemoryError: CUDA out of memory.', 'permanent', 'ENGINE_FAILED'],
    ['Error: listen EADDRINUSE: address already in use 10.0.0.11:20001', 'port_conflict', 'ENGINE_FAILED'],
    ['something else', 'retry', 'ENGINE_FAILED'],
  ])('%s', (line, wanted, code) => {
    const exit = { code: 1, signal: null };
    const explained = command.explain({ exit, wasReady: false, gpuWasDirty: false, lines: [line] });
    expect(explained).toMatchObject({ class: wanted, code });
    expect(explained.sentence).toContain(line);
  });
});

describe('placeholders', () => {
  it('are each filled in', () => {
    const values = Object.fromEntries(PLACEHOLDERS.map(name => [name, `<${name}>`])) as Values;
    for (const name of PLACEHOLDERS) expect(fill(`-{${name}}-`, values)).toBe(`-<${name}>-`);
  });

  it.each([
    ['{"a": {"b": 1}}', null],
    ['{{HOME}}/x', null],
    ['{aliases}', null],
    ['{prot}', '{prot} is no placeholder; did you mean {port}?; write {{prot}} for that text itself'],
    ['{Model}', 'did you mean {model}?'],
    ['{HOME}/x', '{HOME} is no placeholder'],
    ['--names={aliases}', '{aliases} must be an argument of its own'],
  ])('%s', (text, words) => {
    if (words === null) expect(templateFault(text)).toBeNull();
    else expect(templateFault(text)).toContain(words);
  });

  it('leave the text of doubled braces', () => {
    expect(fill('{{HOME}} {"a": 1}', {} as Values)).toBe('{HOME} {"a": 1}');
  });
});

describe('agent.yaml', () => {
  const faults = (engines: string): string[] => {
    const result = loadAgentConfigText(
      `server: http://127.0.0.1:7443\nengines:\n${engines}`,
      'agent.yaml',
      () => 'n',
    );
    return result.errors.map(error => `${error.key}: ${error.message}`);
  };

  it('takes a whole entry', () => {
    expect(
      faults(
        '  x: {type: command, argv: [/o/serve, --port, "{port}", "{aliases}"], probe: /ready, env: {A: "{tp}"}, api_key_env: KEY, version_argv: [/o/serve, -v]}',
      ),
    ).toEqual([]);
    expect(faults('  x: {type: command, argv: [/o/serve], env: {PORT: "{port}"}}')).toEqual([]);
  });

  it.each([
    [
      'argv: [/o/serve, "{prot}", "{port}"]',
      'engines.x.argv[1]: {prot} is no placeholder; did you mean {port}?',
    ],
    ['argv: [/o/serve]', 'engines.x.argv: neither argv nor env has {port}'],
    [
      'argv: [/o, "{port}"], env: {A: "{modle}"}',
      'engines.x.env.A: {modle} is no placeholder; did you mean {model}?',
    ],
    [
      'argv: [/o, "{port}"], env: {CUDA_VISIBLE_DEVICES: "0"}',
      'engines.x.env.CUDA_VISIBLE_DEVICES: belongs to llmgw',
    ],
    ['argv: [/o, "{port}"], env: {A: "{aliases}"}', 'engines.x.env.A: {aliases} is for argv'],
    ['argv: [/o, "{port}"], api_key_evn: K', 'engines.x.api_key_evn: unknown key'],
    ['argv: [/o, "{port}"], api_key_env: "a b"', 'engines.x.api_key_env: expected an environment name'],
  ])('%s', (entry, words) => {
    expect(faults(`  x: {type: command, ${entry}}`).join('\n')).toContain(words);
  });
});
