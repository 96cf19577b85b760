// Cases from the field about engines and disks that misbehave, read from test/cases.
import { spawnSync } from 'node:child_process';
import {
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { headLines } from '../../agent/supervisor/logs.js';
import { isListening, readStat } from '../../agent/supervisor/proc.js';
import { writeFiles } from '../../agent/supervisor/rendered-files.js';
import {
  cleanUp,
  GPU_A,
  handleFile,
  makeNode,
  never,
  orderFor,
  pretendReboot,
  treePids,
  uniqueName,
  until,
} from './harness.js';
import { SERVES, scripted } from './scripted.js';

const load = (name: string) =>
  parse(readFileSync(path.resolve(import.meta.dirname, `../cases/${name}.yaml`), 'utf8'));

const mounted: string[] = [];
afterEach(() => {
  for (const dir of mounted.splice(0)) {
    for (const pid of treePids(dir)) process.kill(pid, 'SIGKILL');
    spawnSync('umount', ['--lazy', dir]);
  }
  cleanUp();
});

const lives = (pid: number): boolean => !['Z', undefined].includes(readStat(pid)?.state);

describe('supervision-03: an API server that is killed leaves its workers, which hold GPU memory without a port', () => {
  const c = load('supervision-03-engine-killed-workers-hold-gpu');
  const title = 'VLLM::Worker_TP';

  /** Parent and two children as the case has them. The children hold GPU_A as long as they live. */
  async function scene() {
    expect(c.input.fake_engine).toContain('2 children in the same group that ignore SIGTERM');
    const node = makeNode();
    const marker = path.join(node.workDir, 'marker');
    writeFileSync(marker, '');
    const child = (i: number) =>
      `process.title = '${title}${i}'; require('node:fs').openSync(${JSON.stringify(marker)}); process.on('SIGTERM', () => {}); console.log('up'); setInterval(() => {}, 1e6)`;
    const parent = `let left = 2; for (const code of ${JSON.stringify([child(0), child(1)])}) {
      const c = require('node:child_process').spawn(process.execPath, ['-e', code], { stdio: ['ignore', 'pipe', 'inherit'] });
      c.stdout.once('data', () => { console.log('WORKER ' + c.pid + '.'); if (--left === 0) { ${SERVES} } });
    }`;
    /** For each look at the GPUs: how many of the workers lived. */
    const looks: number[] = [];
    let workers: number[] = [];
    /** The driver goes on listing them when they have gone. */
    const driver = { stuck: false };
    const s = await node.supervisor({
      engines: scripted(() => [process.execPath, '-e', parent]),
      gpus: {
        snapshot: async () => {
          const held = workers.filter(lives);
          looks.push(held.length);
          if (driver.stuck) held.splice(0, 2, ...workers);
          const used = node.gpus[0]!.memory_used_mib! + (held.length > 0 ? 60_000 : 0);
          const processes = held.map(pid => ({ pid, used_mib: 30_000 }));
          return { gpus: [{ ...node.gpus[0]!, memory_used_mib: used, processes }, node.gpus[1]!] };
        },
      },
    });
    const order = orderFor(uniqueName());
    const { pid, ports } = await s.launch(order);
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    const log = await s.tail(order.replica);
    workers = log.flatMap(line => /^WORKER (\d+)\./.exec(line)?.[1] ?? []).map(Number);
    expect(workers.map(w => readStat(w)!.session)).toEqual([readStat(pid)!.session, readStat(pid)!.session]);
    process.kill(pid, 'SIGKILL');
    await until(() => s.pending().length > 0);
    // The trap: its port is free, and nothing has stopped.
    expect(isListening(ports.http!)).toBe(false);
    expect(workers.every(lives)).toBe(true);
    return { node, s, order, workers, looks, driver };
  }

  it('are ended before the GPUs are looked at, and only then is anything free', async () => {
    const { node, s, order, workers, looks } = await scene();
    expect(await s.launch(orderFor(uniqueName())).catch(e => e.code)).toBe('GPU_HELD');
    looks.splice(0);
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong', leaked: [] });
    expect(workers.filter(lives)).toHaveLength(c.expect.surviving_processes);
    expect(looks.length).toBeGreaterThan(0);
    expect(looks.every(alive => alive === 0)).toBe(true);
    expect(treePids(node.workDir)).toEqual([]);
    expect(await s.launch(orderFor(uniqueName()))).toMatchObject({ gpus: [GPU_A] });
  });

  it('whose memory stays all the same are named by pid, and the GPU is given to nobody', async () => {
    expect(c.expect.if_memory_not_freed).toContain('GPUs not handed to others');
    const { s, order, workers, driver } = await scene();
    driver.stuck = true;
    const { leaked } = await s.stop({ ...order, reason: 'test' });
    expect(leaked).toEqual([{ gpu: GPU_A, pids: workers, used_mib: 60_004 }]);
    expect(await s.launch(orderFor(uniqueName())).catch(e => e.code)).toBe('GPU_LEAKED');
  });
});

describe('supervision-10: a start command that forks away and exits 0', () => {
  const c = load('supervision-10-engine-daemonises');

  it('is a failure at once, its stray is found by its mark and ended, and no second one runs beside it', async () => {
    const node = makeNode();
    expect(c.input.fake_engine).toContain('setsid fake-server --port P & exit 0');
    const stray = `console.log('STRAY ' + process.pid + '.'); ${SERVES}`;
    const command = `setsid ${process.execPath} -e '${stray.replaceAll("'", `'\\''`)}' & exit 0`;
    const s = await node.supervisor({ engines: scripted(() => ['/bin/sh', '-c', command]) });
    const order = orderFor(uniqueName());
    const { ports } = await s.launch(order);
    const result = await s.awaitReady(order, () => {}, never);
    expect(result).toMatchObject({ ready: false, failure: { class: 'retry', exit: { code: 0 } } });
    expect(result.ready === false && result.failure.sentence).toContain(
      'exited with code 0 before it was ready',
    );
    await until(() => isListening(ports.http!));
    const log = await s.tail(order.replica);
    const pid = Number(log.map(line => /^STRAY (\d+)\./.exec(line)?.[1]).find(found => found !== undefined));
    // Not in its group and not its child any more: only the mark tells.
    expect(readStat(pid)!.session).toBe(pid);
    // The workflow's next generation clears it first.
    const second = orderFor(order.replica, { fence: 2_000, generation: 2 });
    await s.launch(second);
    expect(lives(pid)).toBe(false);
    await s.stop({ ...second, reason: 'test' });
    expect(treePids(node.workDir)).toEqual([]);
  });
});

describe('supervision-11: output that is hard to read', () => {
  const c = load('supervision-11-nasty-output');

  /** The case's notation, as JavaScript that writes it. */
  function writes(part: string): string {
    const bar = /^"(.*)" x (\d+) then "\\n"$/s.exec(part);
    if (bar !== null) return `await put("${bar[1]}".repeat(${bar[2]}) + "\\n");`;
    const long = /^(\d+) MiB of "(.)" then "\\n"$/.exec(part);
    if (long !== null) {
      return `for (let i = 0; i < ${long[1]}; i++) await put("${long[2]}".repeat(1048576)); await put("\\n");`;
    }
    const writes = part.split('|').map(hex => `await put(Buffer.from("${hex.replaceAll(' ', '')}", "hex"));`);
    return writes.join('');
  }

  it('is shown line by line, cut, escaped and whole in its characters, without growing the agent', async () => {
    const parts = (c.input.stdout_hex_parts as string[]).map(writes);
    const code = `const put = what => new Promise(done => process.stdout.write(what, done)); (async () => { ${parts.join(' ')} ${SERVES} })();`;
    const node = makeNode();
    const s = await node.supervisor({
      engines: scripted(() => [process.execPath, '-e', code]),
      logMaxBytes: 2 ** 30,
    });
    const order = orderFor(uniqueName());
    const before = process.memoryUsage().rss;
    await s.launch(order);
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    const [long, ...rest] = await s.tail(order.replica);
    const grown = process.memoryUsage().rss - before;
    expect(long).toMatch(/^a{65536} \[truncated \d+ bytes\]$/);
    expect(rest).toEqual(['\ufffd\ufffd\ufffd', '日', 'ERR\\x00']);
    const runDir = path.dirname(handleFile(node, order));
    expect(new Set(headLines(runDir, 65_536))).toEqual(new Set(['Loading:  10%|#  | 1/10']));
    expect(c.expect.agent_rss_growth).toBe('< 32 MiB');
    expect(grown).toBeLessThan(32 * 1_048_576);
  });
});

describe.runIf(process.getuid?.() === 0)('supervision-08: work_dir is full', () => {
  const c = load('supervision-08-disk-full-work-dir');

  it('leaves agent, engines and their state whole, says so, starts nothing, and recovers by itself', async ctx => {
    const node = makeNode();
    const { workDir } = node;
    const tmpfs = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'none', workDir]);
    ctx.skip(tmpfs.status !== 0, 'this machine lets nobody mount a file system');
    mounted.push(workDir);
    // As Python's logging does, a line that can't be written is dropped: the log is the engine's own to write.
    const code = `setInterval(() => { try { require('node:fs').writeSync(1, 'a line of its log\\n') } catch {} }, 20); ${SERVES}`;
    const conditions = new Map<string, string | null>();
    const s = await node.supervisor({
      engines: scripted(() => [process.execPath, '-e', code]),
      healthIntervalMs: 50,
      condition: (name, sentence) => conditions.set(name, sentence),
    });
    const orders = [orderFor(uniqueName(), { slots: [] }), orderFor(uniqueName(), { slots: [] })];
    const pids: number[] = [];
    for (const order of orders) {
      pids.push((await s.launch(order)).pid);
      expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    }
    const ballast = path.join(workDir, 'ballast');
    fill(ballast);
    await until(() => conditions.get('disk_full'));
    // What they log meanwhile takes the last of it.
    fill(ballast);
    const refused = await s.launch(orderFor(uniqueName(), { slots: [] })).catch(e => e);
    expect(refused).toMatchObject({
      code: 'NO_SPACE',
      message: expect.stringContaining('no space in work_dir'),
    });
    process.kill(pids[1]!, 'SIGKILL');
    await until(() => !lives(pids[1]!));
    expect(lives(pids[0]!)).toBe(true);
    for (const order of orders) {
      expect(JSON.parse(readFileSync(handleFile(node, order), 'utf8'))).toMatchObject({ fence: order.fence });
    }
    const files = readdirSync(workDir, { recursive: true, encoding: 'utf8' });
    expect(files.filter(f => f.endsWith('.tmp') && !f.endsWith('exit.tmp'))).toEqual([]);

    expect(c.input.setup).toContain('then free 100 KiB');
    truncateSync(ballast, statSync(ballast).size - 100 * 1024);
    const [event] = await until(() => s.pending().length > 0 && s.pending());
    expect(event).toMatchObject({ replica: orders[1]!.replica });
    await until(() => conditions.get('disk_full') === null);
    expect(await s.launch(orderFor(uniqueName(), { slots: [] }))).toMatchObject({ adopted: false });
    expect(lives(pids[0]!)).toBe(c.expect.agent_alive);
    s.close();
  });

  it('or read-only when an agent starts: what runs is watched, nothing starts, and the rest is made good by itself', async ctx => {
    const node = makeNode();
    const { workDir } = node;
    const mount = (...args: string[]) => spawnSync('mount', [...args, 'none', workDir]).status;
    ctx.skip(mount('-t', 'tmpfs') !== 0, 'this machine lets nobody mount a file system');
    mounted.push(workDir);
    const [runs, ended, booted] = [0, 1, 2].map(() => orderFor(uniqueName(), { slots: [] }));
    const first = await node.supervisor();
    const { pid } = await first.launch(runs!);
    expect(await first.awaitReady(runs!, () => {}, never)).toMatchObject({ ready: true });
    const { pid: other } = await first.launch(ended!);
    await first.prepare(booted!);
    first.close();
    process.kill(other, 'SIGKILL');
    await until(() => existsSync(path.join(path.dirname(handleFile(node, ended!)), 'exit')));
    pretendReboot(node, booted!);
    // The shim of an older agent, and a fence that a loss of power took.
    for (const file of readdirSync(workDir).filter(f => f.startsWith('shim-')))
      rmSync(path.join(workDir, file));
    rmSync(path.join(workDir, 'fences', `${runs!.replica}.json`));
    // Over itself: what is open for writing, as the log of the engine, goes on below.
    mounted.push(workDir);
    for (const args of [
      ['--bind', workDir],
      ['-o', 'remount,bind,ro'],
    ]) {
      expect(spawnSync('mount', [...args, workDir]).status).toBe(0);
    }
    const conditions = new Map<string, string | null>();
    const s = await node.supervisor({
      healthIntervalMs: 50,
      condition: (name, sentence) => conditions.set(name, sentence),
    });
    expect(conditions.get('work_dir_unwritable')).toContain('EROFS');
    expect(s.reports()).toContainEqual(expect.objectContaining({ pid, state: 'ready' }));
    await expect(s.launch(orderFor(uniqueName(), { slots: [] }))).rejects.toMatchObject({ code: 'NO_SPACE' });
    spawnSync('umount', [workDir]);
    await until(() => conditions.get('work_dir_unwritable') === null);
    await until(() => s.pending().length === 1);
    expect(s.pending()).toMatchObject([
      { replica: ended!.replica, failure: { exit: { signal: 'SIGKILL' } } },
    ]);
    expect(await s.stop({ ...booted!, reason: 'test' })).toMatchObject({ proof: 'rebooted' });
    expect(await s.launch(orderFor(uniqueName(), { slots: [] }))).toMatchObject({ adopted: false });
    s.close();
  });

  it('so that the files of an engine have no room: one clear error, and no half of a file', async ctx => {
    const { workDir } = makeNode();
    const small = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'none', workDir]);
    ctx.skip(small.status !== 0, 'this machine lets nobody mount a file system');
    mounted.push(workDir);
    const file = (name: string, bytes: number) => [{ name, text: 'x'.repeat(bytes), mode: 0o700 }];
    writeFiles(workDir, file('start.sh', 10), null);
    expect(() => writeFiles(workDir, file('start.sh', 1e6), null)).toThrow(
      expect.objectContaining({ code: 'NO_SPACE', message: expect.stringContaining('no space in work_dir') }),
    );
    expect(readdirSync(workDir)).toEqual([]);
    for (const name of ['../start.sh', 'a/b', '..'])
      expect(() => writeFiles(workDir, file(name, 1), null)).toThrow("must lie in the engine's folder");
  });

  /** To the last byte. */
  function fill(file: string): void {
    for (const size of [65_536, 4_096, 1]) {
      try {
        for (;;) writeFileSync(file, Buffer.alloc(size), { flag: 'a' });
      } catch (e) {
        expect((e as NodeJS.ErrnoException).code).toBe('ENOSPC');
      }
    }
    expect(existsSync(file)).toBe(true);
  }
});
