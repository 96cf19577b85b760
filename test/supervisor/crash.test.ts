// The agent dies at every line of a start: there is never a second engine, and none that nobody knows (INV-6).
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { tailLines } from '../../agent/supervisor/logs.js';
import { isListening, readStat } from '../../agent/supervisor/proc.js';
import { installShim, shimArgs } from '../../agent/supervisor/shim.js';
import type { FaultPoint } from '../../agent/supervisor/types.js';
import type { AdoptOrder, MemberOrder } from '../../contracts/activities.js';
import { reservedPort } from '../fakes/ports.js';
import {
  cleanUp,
  handleFile,
  makeNode,
  type Node,
  never,
  orderFor,
  treePids,
  uniqueName,
  until,
} from './harness.js';

const root = path.resolve(import.meta.dirname, '../..');
let out: string;

// A real process needs JavaScript: compiled under node_modules, where its imports are found.
beforeAll(() => {
  const cache = path.join(root, 'node_modules/.cache');
  mkdirSync(cache, { recursive: true });
  out = mkdtempSync(path.join(cache, 'supervisor-test-'));
  execFileSync(
    path.join(root, 'node_modules/.bin/tsc'),
    [
      ...['--ignoreConfig', '--outDir', out, '--rootDir', root, '--module', 'nodenext', '--target', 'es2023'],
      ...[
        '--types',
        'node',
        '--noCheck',
        '--skipLibCheck',
        path.join(root, 'test/fakes/supervisor-child.ts'),
      ],
    ],
    { cwd: root, stdio: 'inherit' },
  );
  writeFileSync(path.join(out, 'package.json'), '{"type":"module"}');
});
afterAll(() => rmSync(out, { recursive: true, force: true }));
afterEach(cleanUp);

function dieAt(point: FaultPoint, node: Node, order: MemberOrder | AdoptOrder) {
  return spawnSync(
    process.execPath,
    [
      path.join(out, 'test/fakes/supervisor-child.js'),
      node.workDir,
      JSON.stringify(order),
      point,
      JSON.stringify(node.gpus),
    ],
    {
      env: { ...process.env, TEST_FAKE_ENGINE: path.join(root, 'test/fakes/engine.mjs') },
      encoding: 'utf8',
      timeout: 20_000,
    },
  );
}

const engines = (node: Node): number[] =>
  treePids(node.workDir).filter(pid => /^(node|MainThread)/.test(readStat(pid)?.comm ?? ''));

/** Its pid is on disk before the shell that has it becomes the engine. */
const oneEngine = (node: Node): Promise<number[]> =>
  until(() => {
    const found = engines(node);
    return found.length === 1 && found;
  });

describe('an agent killed', () => {
  for (const point of ['before_handle', 'after_spawning_handle', 'after_fork', 'after_pid'] as const) {
    it(`${point.replaceAll('_', ' ')} leaves one engine at most, and the next agent ends up with exactly one`, async () => {
      const node = makeNode();
      const order = orderFor(uniqueName());
      const died = dieAt(point, node, order);
      expect(died.signal, died.stderr).toBe('SIGKILL');
      const s = await node.supervisor();
      const before = engines(node);
      expect(before.length).toBe(point === 'after_fork' || point === 'after_pid' ? 1 : 0);
      const launched = await s.launch(order);
      expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid: launched.pid });
      if (before.length > 0) expect(launched).toMatchObject({ pid: before[0], adopted: true });
      expect(engines(node)).toEqual([launched.pid]);
      expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
      expect(treePids(node.workDir)).toEqual([]);
    });
  }

  it('after the fork is known to a stop, which proves the end of what nobody had adopted', async () => {
    const node = makeNode();
    const order = orderFor(uniqueName());
    dieAt('after_fork', node, order);
    const s = await node.supervisor();
    await oneEngine(node);
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
    expect(treePids(node.workDir)).toEqual([]);
  });

  it('while an exit is being recorded tells of that exit once, after its restart', async () => {
    const node = makeNode();
    const order = orderFor(uniqueName(), { env: { FAKE_EXIT: '3' } });
    expect(dieAt('after_exit_seen', node, order).signal).toBe('SIGKILL');
    const s = await node.supervisor();
    expect(s.pending()).toMatchObject([{ seq: 1, failure: { exit: { code: 3 } } }]);
    expect((await node.supervisor()).pending()).toHaveLength(1);
  });
});

describe('an agent killed while it adopts', () => {
  it('an engine whose start broke off leaves it to the claim of a later run', async () => {
    const node = makeNode();
    const first = orderFor(uniqueName());
    dieAt('after_fork', node, first);
    const [pid] = await oneEngine(node);
    const order = { ...first, generation: 7 };
    const s = await node.supervisor();
    expect(await s.adopt({ ...order, process: null })).toMatchObject({ pid, adopted: true });
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
  });

  it('between handle and fence has adopted: the new order holds, the old one is refused', async () => {
    const node = makeNode();
    const first = orderFor(uniqueName());
    const agent = await node.supervisor();
    const { pid } = await agent.launch(first);
    agent.close();
    const order = { ...first, generation: 7 };
    expect(dieAt('after_claim_handle', node, { ...order, process: null }).signal).toBe('SIGKILL');
    const s = await node.supervisor();
    await expect(s.launch(first)).rejects.toMatchObject({ code: 'FENCE_CONFLICT' });
    expect(await s.launch(order)).toMatchObject({ pid, adopted: true });
    expect(await s.adopt({ ...order, process: null })).toMatchObject({ pid, adopted: true });
    expect(engines(node)).toEqual([pid]);
  });

  it('a process of an operator knows it as its engine, and stops it by the same order', async () => {
    const node = makeNode();
    const port = await reservedPort();
    const env = { PATH: process.env.PATH, FAKE_PORT: String(port) };
    const child = spawn(process.execPath, [path.join(root, 'test/fakes/engine.mjs')], {
      env,
      stdio: 'ignore',
    });
    const pid = child.pid!;
    await until(() => isListening(port));
    node.gpus[0]!.processes = [{ pid, used_mib: 9_000 }];
    const order = { ...orderFor(uniqueName()), process: { pid, port } };
    expect(dieAt('after_adopt_handle', node, order).signal).toBe('SIGKILL');
    const s = await node.supervisor();
    expect(s.reports()).toMatchObject([{ pid, state: 'loading', ports: { http: port } }]);
    expect(await s.adopt(order)).toMatchObject({ pid, adopted: true });
    const { process: _, ...plain } = order;
    expect(await s.awaitReady(plain, () => {}, never)).toMatchObject({ ready: true, pid });
    node.gpus[0]!.processes = [];
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
    expect(readStat(pid)?.state ?? 'Z').toBe('Z');
  });
});

describe('a shim', () => {
  it('that comes second for the same engine exits without starting it', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    await s.launch(order);
    const runDir = path.join(node.workDir, 'engines', order.replica, '1000-0');
    const second = (dir: string) =>
      spawnSync('/bin/sh', shimArgs(installShim(node.workDir), dir, 1e6, ['/bin/echo', 'second engine']), {
        encoding: 'utf8',
      });
    expect(second(runDir)).toMatchObject({ status: 75, stdout: '' });
    await s.stop({ ...order, reason: 'test' });
    expect(second(runDir)).toMatchObject({ status: 75, stdout: '' });
  });

  it('that comes after the proof of a stop starts nothing', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    await s.prepare(order);
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'never_started' });
    const runDir = path.join(node.workDir, 'engines', order.replica, '1000-0');
    const late = spawnSync(
      '/bin/sh',
      shimArgs(installShim(node.workDir), runDir, 1e6, ['/bin/echo', 'late']),
      {
        encoding: 'utf8',
      },
    );
    expect(late).toMatchObject({ status: 76, stdout: '' });
  });

  it('without flock still starts an engine once', () => {
    const node = makeNode();
    const bin = path.join(node.workDir, 'bin');
    const runDir = path.join(node.workDir, 'engines', uniqueName(), '1-0');
    mkdirSync(bin);
    mkdirSync(runDir, { recursive: true });
    for (const tool of ['mkdir', 'mv', 'sleep', 'wc', 'rm'])
      symlinkSync(`/bin/${tool}`, path.join(bin, tool));
    const script = installShim(node.workDir);
    const bare = path.join(node.workDir, 'bare.sh');
    const text = execFileSync('sed', ['s|^PATH=/usr/local.*|PATH=$LLMGW_TEST_BIN|', script], {
      encoding: 'utf8',
    });
    writeFileSync(bare, text);
    const run = () =>
      spawnSync('/bin/sh', shimArgs(bare, runDir, 1e6, ['/bin/echo', 'engine']), {
        encoding: 'utf8',
        env: { PATH: bin, LLMGW_TEST_BIN: bin },
      });
    expect(run()).toMatchObject({ status: 0, stdout: 'engine\n' });
    expect(run()).toMatchObject({ status: 75, stdout: '' });
  });

  it('that is killed leaves the engine running, adopted, and its end a failure of unknown status', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    await s.awaitReady(order, () => {}, never);
    process.kill(readStat(pid)!.ppid, 'SIGKILL');
    s.close();
    const again = await node.supervisor();
    expect(again.reports()).toMatchObject([{ pid, state: 'ready' }]);
    expect(await again.launch(order)).toMatchObject({ pid, adopted: true });
    process.kill(pid, 'SIGKILL');
    await until(() => again.pending().length > 0);
    expect(again.pending()).toMatchObject([{ failure: { exit: { code: null, signal: null } } }]);
  });

  it('keeps the lock through the engine when it is killed, so that no second one can start', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    const shim = readStat(pid)!.ppid;
    process.kill(shim, 'SIGKILL');
    await until(() => (readStat(shim)?.state ?? 'Z') === 'Z');
    const lock = path.join(node.workDir, 'engines', order.replica, '1000-0', 'lock');
    expect(spawnSync('flock', ['-n', lock, 'true']).status).toBe(1);
  });

  it('outlives SIGTERM to its whole group but for the engine, and records the signal', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_NO_SERVER: '1' } });
    const { pid } = await s.launch(order);
    process.kill(-readStat(pid)!.session, 'SIGTERM');
    await until(() => s.pending().length > 0);
    expect(s.pending()).toMatchObject([{ failure: { exit: { code: null, signal: 'SIGTERM' } } }]);
  });
});

it('an agent that is killed takes no engine with it', async () => {
  const node = makeNode();
  const order = orderFor(uniqueName());
  const child = spawn(
    process.execPath,
    [path.join(out, 'test/fakes/supervisor-child.js'), node.workDir, JSON.stringify(order), 'never'],
    { env: { ...process.env, TEST_FAKE_ENGINE: path.join(root, 'test/fakes/engine.mjs') }, detached: true },
  );
  const [pid] = await oneEngine(node);
  const gone = new Promise(resolve => child.once('exit', resolve));
  process.kill(-child.pid!, 'SIGKILL');
  await gone;
  const s = await node.supervisor();
  expect(s.reports()).toMatchObject([{ pid }]);
  expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
});

it('supervision-05: an agent that is killed takes no line of a log with it, nor the engine that writes on', async () => {
  const c = parse(
    readFileSync(path.join(root, 'test/cases/supervision-05-log-pipe-epipe-after-restart.yaml'), 'utf8'),
  );
  expect(c.input.fake_engine).toContain('exits 3 on write error');
  const node = makeNode();
  const engine = path.join(node.workDir, 'talks.mjs');
  writeFileSync(
    engine,
    `import { writeSync } from 'node:fs';
     import http from 'node:http';
     http.createServer((req, res) => res.end('{"data":[{"id":"fake-model"}]}')).listen(Number(process.env.FAKE_PORT), '127.0.0.1');
     let n = 0;
     setInterval(() => { try { writeSync(1, 'LINE ' + n++ + '.\\n') } catch { process.exit(3) } }, 20);`,
  );
  const order = orderFor(uniqueName());
  const child = spawn(
    process.execPath,
    [path.join(out, 'test/fakes/supervisor-child.js'), node.workDir, JSON.stringify(order), 'never'],
    { env: { ...process.env, TEST_FAKE_ENGINE: engine }, detached: true },
  );
  const runDir = path.dirname(handleFile(node, order));
  const [pid] = await oneEngine(node);
  const lines = () => tailLines(runDir, 10_000).flatMap(line => /^LINE (\d+)\.$/.exec(line)?.[1] ?? []);
  await until(() => lines().length > 3);
  const gone = new Promise(resolve => child.once('exit', resolve));
  process.kill(-child.pid!, 'SIGKILL');
  await gone;
  const atKill = lines().length;
  await until(() => lines().length > atKill + 10);
  const s = await node.supervisor();
  expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
  const adopted = lines().length;
  await until(() => lines().length > adopted + 10);
  const shown = (await s.tail(order.replica, { lines: 10_000 })).filter(line => line.startsWith('LINE'));
  expect(shown).toEqual(shown.map((_, i) => `LINE ${i}.`));
  expect(shown.length).toBeGreaterThan(adopted);
  expect(s.pending()).toEqual([]);
  expect(s.reports()).toMatchObject([{ pid, state: 'ready' }]);
});
