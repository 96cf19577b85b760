import {
  appendFileSync,
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { EngineConfig } from '../../agent/config.js';
import { EngineCatalog } from '../../agent/engines/catalog.js';
import { STANDIN } from '../standin/harness.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-catalog-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const entry = (bin: string, ray_bin: string | null = null): EngineConfig => ({
  type: 'vllm',
  bin,
  launch_mode: 'ray',
  ray_bin,
});

function program(name: string, script: string): string {
  const path = join(dir, name);
  writeFileSync(path, `#!/bin/sh\n${script}\n`);
  chmodSync(path, 0o755);
  return path;
}

describe('looking at an engine', () => {
  it('tells where it is and which version it says', async () => {
    const catalog = new EngineCatalog({ vllm: entry(STANDIN) });
    expect(await catalog.get('vllm')).toEqual({
      engine: { name: 'vllm', type: 'vllm', bin: STANDIN, version: '0.33.0', launch_mode: 'ray' },
      problems: [],
    });
  });

  it('looks for a bare name on PATH', async () => {
    const path = program('vllm', 'echo 0.30.1+cpu');
    const catalog = new EngineCatalog({ vllm: entry('vllm') }, { env: { PATH: `/nowhere:${dir}` } });
    expect((await catalog.get('vllm')).engine).toMatchObject({ bin: path, version: '0.30.1+cpu' });
  });

  it('asks a program once, and again when it was replaced', async () => {
    const count = join(dir, 'count');
    const path = program('vllm', `echo x >> ${count}; echo 0.33.0`);
    const catalog = new EngineCatalog({ vllm: entry(path) });
    await Promise.all([catalog.get('vllm'), catalog.get('vllm')]);
    await catalog.get('vllm');
    expect(readFileSync(count, 'utf8')).toBe('x\n');
    appendFileSync(path, 'true\n');
    utimesSync(path, 1, 1);
    await catalog.get('vllm');
    expect(readFileSync(count, 'utf8')).toBe('x\nx\n');
  });

  it('does not wait for a slow version in a list', async () => {
    const path = program('vllm', 'exec sleep 60');
    const catalog = new EngineCatalog({ vllm: entry(path) }, { deadlineMs: 500 });
    const [engine] = await catalog.list(1);
    expect(engine).toEqual({ name: 'vllm', type: 'vllm', version: null, launch_mode: 'ray', problems: [] });
    expect((await catalog.get('vllm')).problems[0]).toContain('did not answer within');
  });
});

it('keeps several versions apart by name', async () => {
  const catalog = new EngineCatalog({
    old: entry(program('vllm-old', 'echo 0.11.2')),
    new: entry(program('vllm-new', 'echo 0.33.0')),
    sglang: { type: 'sglang', python: program('python', 'echo 0.5.23') },
  });
  expect((await catalog.list(60_000)).map(e => [e.name, e.version])).toEqual([
    ['old', '0.11.2'],
    ['new', '0.33.0'],
    ['sglang', '0.5.23'],
  ]);
});

describe('the Ray of a vLLM', () => {
  const resolved = async (catalog: EngineCatalog) => catalog.ray((await catalog.get('vllm')).engine);
  const vllm = () => program('vllm', 'echo 0.33.0');
  const say = "echo 'ray, version 2.60.0'";

  it('is the one beside vLLM before one on PATH', async () => {
    const bin = vllm();
    const beside = program('ray', say);
    program('python3', 'echo none');
    const catalog = new EngineCatalog({ vllm: entry(bin) }, { env: { PATH: '/nowhere' } });
    expect(await resolved(catalog)).toEqual({ bin: beside, version: '2.60.0', client: false });
  });

  it('is the one that ray_bin names', async () => {
    const bin = vllm();
    program('ray', 'exit 1');
    const named = program('other-ray', say);
    program('python3', 'echo none');
    expect(await resolved(new EngineCatalog({ vllm: entry(bin, named) }))).toMatchObject({ bin: named });
  });

  it.each([
    ['plain', (python: string) => `#!${python}`],
    ['a long path', (python: string) => `#!/bin/sh\n'''exec' "${python}" "$0" "$@"\n' '''`],
  ])('is asked for its client by its own Python (%s)', async (_, head) => {
    const bin = vllm();
    mkdirSync(join(dir, 'lib'));
    // The interpreter of the script answers for it, too.
    const python = join(dir, 'lib', 'python3.11');
    writeFileSync(python, '#!/usr/bin/env node\nconsole.log(process.argv[2] === "-c" ? "1.0" : "2.60.0");\n');
    chmodSync(python, 0o755);
    writeFileSync(join(dir, 'ray'), `${head(python)}\nimport sys\n`);
    chmodSync(join(dir, 'ray'), 0o755);
    const catalog = new EngineCatalog({ vllm: entry(bin) });
    expect(await resolved(catalog)).toMatchObject({ version: '2.60.0', client: true });
  });

  it('is missed in one sentence', async () => {
    const catalog = new EngineCatalog({ vllm: entry(vllm(), '/nowhere/ray') });
    await expect(resolved(catalog)).rejects.toMatchObject({
      code: 'ENGINE_BROKEN',
      message: expect.stringMatching(
        /has launch_mode ray, and Ray can't be used: \/nowhere\/ray does not exist/,
      ),
    });
    program('ray', 'echo broken >&2; exit 3');
    const broken = new EngineCatalog({ vllm: entry(vllm()) }, { env: { PATH: '' } });
    await expect(resolved(broken)).rejects.toThrow('exited with 3: broken');
  });
});

describe('problems are sentences', () => {
  it.each<[string, () => EngineConfig, RegExp]>([
    ['no such file', () => entry('/nowhere/vllm'), /^\/nowhere\/vllm does not exist$/],
    ['a name not on PATH', () => entry('no-such-vllm'), /no program no-such-vllm on the agent's PATH/],
    ['a failing program', () => entry(program('bad', 'echo broken >&2; exit 3')), /exited with 3: broken$/],
    [
      'a missing interpreter',
      () => {
        const path = program('gone', '');
        writeFileSync(path, '#!/nowhere/python\n');
        return entry(path);
      },
      /could not be run \(ENOENT\)/,
    ],
    ['no version', () => entry(program('mute', 'echo hello')), /printed no version/],
    [
      'a Python without SGLang',
      () => ({ type: 'sglang', python: program('python', 'echo no sglang >&2; exit 1') }),
      /^asking \S+\/python for its version exited with 1: no sglang$/,
    ],
  ])('%s', async (_, config, words) => {
    const { problems } = await new EngineCatalog({ e: config() }).get('e');
    expect(problems).toHaveLength(1);
    expect(problems[0]).toMatch(words);
  });

  it('names the nearest engine for one that is not there', async () => {
    const catalog = new EngineCatalog({ 'vllm-0.33': entry(STANDIN) });
    await expect(catalog.get('vllm-0.32')).rejects.toMatchObject({
      code: 'ENGINE_MISSING',
      message: expect.stringContaining('did you mean vllm-0.33?'),
    });
  });
});
