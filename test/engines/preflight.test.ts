import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { EngineCatalog } from '../../agent/engines/catalog.js';
import { checkFlags } from '../../agent/engines/vllm-check.js';
import { preflight, readSecretEnv } from '../../agent/preflight.js';
import { STANDIN } from '../standin/harness.js';
import { spec } from './samples.js';

let dir: string;
let secrets: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-preflight-'));
  secrets = join(dir, 'secrets');
  mkdirSync(secrets);
});
afterEach(() => rmSync(dir, { recursive: true }));

const catalog = new EngineCatalog({
  vllm: { type: 'vllm', bin: STANDIN, launch_mode: 'mp', ray_bin: null },
});

it('gives the engine and the secrets of a spec that can be started', async () => {
  writeFileSync(join(secrets, 'hf-token'), 'hf_value\n');
  mkdirSync(join(dir, 'model'));
  writeFileSync(join(dir, 'model', 'config.json'), '{}');
  const wanted = spec({
    model: join(dir, 'model'),
    env_from_files: { HF_TOKEN: 'hf-token' },
    args: ['--enforce-eager'],
  });
  expect(await preflight(wanted, catalog, secrets)).toMatchObject({
    engine: { version: '0.33.0' },
    secretEnv: { HF_TOKEN: 'hf_value' },
  });
});

it('says what is wrong with the engine', async () => {
  const broken = new EngineCatalog({
    vllm: { type: 'vllm', bin: '/nowhere', launch_mode: 'mp', ray_bin: null },
  });
  await expect(preflight(spec(), broken, secrets)).rejects.toMatchObject({
    code: 'ENGINE_BROKEN',
    message: "engine vllm can't be started: /nowhere does not exist",
  });
});

describe('flags', () => {
  const engine = { name: 'vllm', type: 'vllm', bin: '/x', launch_mode: 'mp' } as const;

  it('refuses one that the version does not have and names the nearest', () => {
    expect(() => checkFlags(['--max-model-length', '8'], { ...engine, version: '0.33.0' })).toThrow(
      'args: vLLM 0.33.0 (engine vllm) has no flag --max-model-length; did you mean --max-model-len?',
    );
  });

  it.each([
    '--max_model_len=8k',
    '--max-model',
    '--no-enable-prefix-caching',
    '--compilation-config.level',
    '-O3',
    '-q',
  ])('takes the spelling %s', flag => checkFlags([flag], { ...engine, version: '0.33.0' }));

  it.each([
    ['0.17.1', '--shutdown-timeout', 'has no flag --shutdown-timeout, which came with 0.18'],
    ['0.33.0', '--swap-space=4', 'has no flag --swap-space: 0.18 removed it'],
    ['0.12.0', '--enable_elastic_ep', 'has no flag --enable-elastic-ep, which came with 0.17'],
    ['0.11.2+cu129', '--no-kv-cache-metrics', 'has no flag --no-kv-cache-metrics, which came with 0.12'],
  ])('knows since when: %s %s', (version, flag, words) => {
    expect(() => checkFlags([flag], { ...engine, version })).toThrow(words);
  });

  it.each([
    ['0.11.0', '--task'],
    ['0.17.1', '--swap-space=4'],
    ['0.18.0', '--shutdown-timeout'],
    ['0.33.0', '--disable-prefix-caching'],
    ['0.20.2', '--numa-bind'],
  ])('takes what that version has: %s %s', (version, flag) => checkFlags([flag], { ...engine, version }));

  it('leaves versions that it does not know to vLLM', () => {
    checkFlags(['--brand-new'], { ...engine, version: '0.1.dev1+g0123456' });
    checkFlags(['--brand-new'], { ...engine, version: '0.40.0' });
    checkFlags(['--brand-new'], { ...engine, version: null });
  });
});

describe('several nodes', () => {
  const gang = () => spec({ tensor_parallel: 2, nodes: 2 });
  const program = (name: string, script: string): string => {
    const path = join(dir, name);
    writeFileSync(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    return path;
  };
  const having = (launch_mode: 'mp' | 'ray', version: string) => {
    const bin = program('vllm', `echo ${version}`);
    const engines = { vllm: { type: 'vllm', bin, launch_mode, ray_bin: null } } as const;
    return new EngineCatalog(engines, { env: { PATH: '/nowhere' } });
  };

  it('need 0.12 without Ray', async () => {
    await expect(preflight(gang(), having('mp', '0.11.2'), secrets)).rejects.toMatchObject({
      code: 'ENGINE_UNFIT',
      message: expect.stringMatching(
        /can't join several nodes with launch_mode mp, which needs vLLM 0\.12 or newer/,
      ),
    });
    await preflight(spec(), having('mp', '0.11.2'), secrets);
    await preflight(gang(), having('mp', '0.12.0'), secrets);
  });

  it('need a Ray that is new enough with it, and one node needs none', async () => {
    const catalog = having('ray', '0.11.2');
    await preflight(spec(), catalog, secrets);
    await expect(preflight(gang(), catalog, secrets)).rejects.toMatchObject({ code: 'ENGINE_BROKEN' });
    program('python3', 'echo none');
    program('ray', "echo 'ray, version 2.54.1'");
    await expect(preflight(gang(), catalog, secrets)).rejects.toMatchObject({
      code: 'ENGINE_UNFIT',
      message: expect.stringContaining('which needs Ray 2.55 or newer'),
    });
    program('ray', "echo 'ray, version 2.55.1, a newer one'");
    expect((await preflight(gang(), catalog, secrets)).engine.ray).toMatchObject({
      bin: join(dir, 'ray'),
      client: false,
    });
  });
});

describe('the model', () => {
  it('must exist where it is a path', async () => {
    await expect(preflight(spec({ model: '/nowhere/model' }), catalog, secrets)).rejects.toMatchObject({
      code: 'MODEL_MISSING',
      message: 'model: /nowhere/model does not exist on this node',
    });
  });

  it('must be a model folder or a file', async () => {
    await expect(preflight(spec({ model: dir }), catalog, secrets)).rejects.toThrow('it has no config.json');
    const file = join(dir, 'model.gguf');
    writeFileSync(file, '');
    await preflight(spec({ model: file }), catalog, secrets);
  });
});

describe('secrets', () => {
  const read = (file: string) => readSecretEnv({ env_from_files: { TOKEN: file } }, secrets);

  it.each<[string, () => void, string]>([
    ['absent', () => {}, 'does not exist on this node'],
    ['empty', () => writeFileSync(join(secrets, 'empty'), '\n'), 'is empty'],
    ['folder', () => mkdirSync(join(secrets, 'folder')), 'is not a file'],
    ['nul', () => writeFileSync(join(secrets, 'nul'), 'a\0b'), 'holds a NUL byte'],
    ['big', () => writeFileSync(join(secrets, 'big'), 'x'.repeat(70_000)), 'is larger than 64 KiB'],
    [
      'link',
      () => {
        writeFileSync(join(dir, 'outside'), 'private');
        symlinkSync(join(dir, 'outside'), join(secrets, 'link'));
      },
      'leads out of secrets_dir',
    ],
    ['../outside', () => writeFileSync(join(dir, 'outside'), 'private'), 'leads out of secrets_dir'],
  ])('refuses %s', async (file, make, words) => {
    make();
    await expect(read(file)).rejects.toMatchObject({
      code: 'SECRET_MISSING',
      message: expect.stringContaining(words),
    });
  });

  it('follows links that stay inside', async () => {
    writeFileSync(join(secrets, 'v1'), 'value');
    symlinkSync('v1', join(secrets, 'current'));
    expect(await read('current')).toEqual({ TOKEN: 'value' });
  });
});
