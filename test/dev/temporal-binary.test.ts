import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { cacheDir, findTemporal } from '../../dev/temporal-binary.js';
import { buildWithGo, type Installer } from '../../dev/temporal-install.js';
import { script, tempDir } from './support.js';

const FAKE = '#!/bin/sh\necho "temporal version 9.9.9"\n';
const silent = () => {};

/** A home with nothing in it; PATH has only `bin`. */
function emptyMachine() {
  const dir = tempDir();
  const bin = path.join(dir, 'bin');
  mkdirSync(bin);
  const env: NodeJS.ProcessEnv = { HOME: dir, PATH: bin };
  return { dir, bin, env };
}

function inCache(env: NodeJS.ProcessEnv): string {
  mkdirSync(cacheDir(env), { recursive: true });
  return script(path.join(cacheDir(env), 'temporal'), FAKE);
}

const never: Installer = async () => {
  throw new Error('nothing had to be installed');
};
const installs: Installer = async ({ target }) => {
  script(target, FAKE);
  return { done: true, how: 'a fake' };
};
const fails =
  (why: string): Installer =>
  async () => ({ done: false, why });

test('LLMGW_TEMPORAL_BIN comes before PATH, PATH before the cache, the cache before any installation', async () => {
  const { dir, bin, env } = emptyMachine();
  const cached = inCache(env);
  const onPath = script(path.join(bin, 'temporal'), FAKE);
  const named = script(path.join(dir, 'mine'), FAKE);
  const find = (e: NodeJS.ProcessEnv) => findTemporal({ env: e, installers: [never], say: silent });
  expect(await find({ ...env, LLMGW_TEMPORAL_BIN: named })).toEqual({
    path: named,
    source: 'LLMGW_TEMPORAL_BIN',
  });
  expect(await find(env)).toEqual({ path: onPath, source: 'PATH' });
  expect(await find({ ...env, PATH: '' })).toEqual({ path: cached, source: 'cache' });
});

test('a named binary that is none is a fault that names the variable, and nothing else is tried', async () => {
  const { dir, env } = emptyMachine();
  inCache(env);
  const file = path.join(dir, 'not-executable');
  writeFileSync(file, '');
  await expect(findTemporal({ env: { ...env, LLMGW_TEMPORAL_BIN: file }, say: silent })).rejects.toThrow(
    `LLMGW_TEMPORAL_BIN is ${file}, which is not an executable file`,
  );
});

test("another program called temporal on PATH isn't taken", async () => {
  const { bin, env } = emptyMachine();
  script(path.join(bin, 'temporal'), '#!/bin/sh\necho "temporal, a time tracker, version 3"\n');
  const cached = inCache(env);
  expect((await findTemporal({ env, installers: [never], say: silent })).path).toBe(cached);
});

test('the ways to install are tried in order, and what one made is found in the cache afterwards', async () => {
  const { env } = emptyMachine();
  const found = await findTemporal({ env, installers: [fails('no net'), installs], say: silent });
  expect(found).toEqual({ path: path.join(cacheDir(env), 'temporal'), source: 'a fake' });
  expect((await findTemporal({ env, installers: [never], say: silent })).source).toBe('cache');
});

test('no way: one sentence with what was tried and the choices', async () => {
  const { env } = emptyMachine();
  const options = { env, installers: [fails('no net'), fails('there is no Go')], say: silent };
  const error = await findTemporal(options).catch(e => e);
  expect(error.exitCode).toBe(1);
  expect(error.message).toContain('no net; there is no Go');
  expect(error.message).toContain('put the temporal CLI on PATH');
  expect(error.message).toContain('LLMGW_TEMPORAL_BIN');
  expect(error.message).toContain('install Go 1.25 or newer');
  expect(error.message).not.toContain('\n');
});

test('two starts at once install once', async () => {
  const { env } = emptyMachine();
  let count = 0;
  let open: () => void = () => {};
  const gate = new Promise<void>(resolve => {
    open = resolve;
  });
  const slow: Installer = async order => {
    count++;
    await gate;
    return installs(order);
  };
  const waits: string[] = [];
  const first = findTemporal({ env, installers: [slow], say: silent });
  const second = findTemporal({
    env,
    installers: [slow],
    say: line => {
      waits.push(line);
      open();
    },
  });
  const found = await Promise.all([first, second]);
  expect(count).toBe(1);
  expect(found.map(f => f.path)).toEqual([found[0]!.path, found[0]!.path]);
  expect(waits.join()).toContain('waiting for it');
});

/** A `go` that says it is of this version and, asked to install, runs `install`. */
function fakeGo(bin: string, version: string, install: string): void {
  script(
    path.join(bin, 'go'),
    `#!/bin/sh\ncase "$1" in\nenv) echo ${version};;\ninstall) ${install};;\nesac\n`,
  );
}

function order(env: NodeJS.ProcessEnv) {
  const dir = cacheDir(env);
  mkdirSync(dir, { recursive: true });
  return {
    dir,
    target: path.join(dir, 'temporal'),
    version: 'v1.5.1',
    env: { ...env, PATH: `${env.PATH}:/usr/bin:/bin` },
    say: silent,
  };
}

test('go install builds the pinned version into the cache, whole or not at all', async () => {
  const { bin, env } = emptyMachine();
  fakeGo(bin, 'go1.26.1', 'echo "$2" > "$GOBIN/temporal"');
  const built = order(env);
  expect(await buildWithGo(built)).toEqual({ done: true, how: 'built with Go' });
  expect(readdirSync(built.dir)).toEqual(['temporal']);
});

test('a build that fails leaves nothing and says its last words', async () => {
  const { bin, env } = emptyMachine();
  fakeGo(bin, 'go1.26.1', 'touch "$GOBIN/temporal"; echo "no space left" >&2; exit 1');
  const failed = order(env);
  expect(await buildWithGo(failed)).toEqual({ done: false, why: 'go install failed: no space left' });
  expect(readdirSync(failed.dir)).toEqual([]);
});

test('what a killed build has left is cleared by the next one', async () => {
  const { bin, env } = emptyMachine();
  fakeGo(bin, 'go1.26.1', 'echo x > "$GOBIN/temporal"');
  const again = order(env);
  mkdirSync(path.join(again.dir, '.new-killed'));
  await buildWithGo(again);
  expect(existsSync(path.join(again.dir, '.new-killed'))).toBe(false);
});

test('a Go that is too old is not tried', async () => {
  const { bin, env } = emptyMachine();
  fakeGo(bin, 'go1.24.9', 'exit 1');
  expect(await buildWithGo(order(env))).toEqual({ done: false, why: 'go1.24.9 is older than go1.25' });
});
