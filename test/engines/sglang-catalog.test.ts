// An interpreter's file says nothing of the packages that it has: environments share it, and a package is replaced
// without it.
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { EngineCatalog } from '../../agent/engines/catalog.js';
import { PYTHON } from '../standin/harness.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-venvs-'));
  const base = join(dir, 'python3');
  // Says what its environment has, as a Python does.
  writeFileSync(base, '#!/bin/sh\ncat "$(dirname "$0")/../lib/python3.12/site-packages/version"\n');
  chmodSync(base, 0o755);
});
afterEach(() => rmSync(dir, { recursive: true }));

/** A virtual environment with that SGLang. */
function environment(name: string, version: string): string {
  const python = join(dir, name, 'bin/python3');
  mkdirSync(join(dir, name, 'bin'), { recursive: true });
  symlinkSync(join(dir, 'python3'), python);
  install(name, version, 1);
  return python;
}

function install(name: string, version: string, at: number): void {
  const packages = join(dir, name, 'lib/python3.12/site-packages');
  mkdirSync(packages, { recursive: true });
  writeFileSync(join(packages, 'version'), `${version}\n`);
  // A package that comes or goes is a change of its folder.
  utimesSync(packages, at, at);
}

const versionOf = async (catalog: EngineCatalog, name: string) => (await catalog.get(name)).engine.version;

it('tells the versions of environments apart that share one Python', async () => {
  const catalog = new EngineCatalog({
    old: { type: 'sglang', python: environment('a', '0.5.10') },
    new: { type: 'sglang', python: environment('b', '0.5.23') },
  });
  expect([await versionOf(catalog, 'old'), await versionOf(catalog, 'new')]).toEqual(['0.5.10', '0.5.23']);
});

it('sees that SGLang was replaced, though its Python was not', async () => {
  const catalog = new EngineCatalog({ sglang: { type: 'sglang', python: environment('a', '0.5.10') } });
  expect(await versionOf(catalog, 'sglang')).toBe('0.5.10');
  install('a', '0.5.23', 2);
  expect(await versionOf(catalog, 'sglang')).toBe('0.5.23');
});

it('asks the stand-in, and says that a Python has no SGLang', async () => {
  const catalog = new EngineCatalog({
    sglang: { type: 'sglang', python: PYTHON },
    none: { type: 'sglang', python: '/bin/false' },
  });
  expect(await catalog.get('sglang')).toMatchObject({ engine: { version: '0.5.23' }, problems: [] });
  expect((await catalog.get('none')).problems).toEqual(['asking /bin/false for its version exited with 1']);
});
