import {
  appendFileSync,
  chmodSync,
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

const entry = (bin: string): EngineConfig => ({ type: 'vllm', bin, launch_mode: 'mp', ray_bin: 'ray' });

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
      engine: { name: 'vllm', type: 'vllm', bin: STANDIN, version: '0.33.0', launch_mode: 'mp' },
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
    expect(engine).toEqual({ name: 'vllm', type: 'vllm', version: null, launch_mode: 'mp', problems: [] });
    expect((await catalog.get('vllm')).problems[0]).toContain('did not answer within');
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
    ['sglang', () => ({ type: 'sglang', python: 'python3' }), /type sglang are not run by this release/],
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
