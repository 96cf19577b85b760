import { existsSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { isAlive, readStat } from '../../agent/supervisor/proc.js';
import type { EngineEvent } from '../../contracts/engine.js';
import { LlmgwError } from '../../contracts/errors.js';
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

afterEach(cleanUp);

const stopOf = (o: { replica: string; fence: number; rank: number }) => ({
  replica: o.replica,
  fence: o.fence,
  rank: o.rank,
  reason: 'test',
});
const codeOf = async (p: Promise<unknown>) =>
  p.then(
    () => 'no error',
    (e: unknown) => (e instanceof LlmgwError ? e.code : String(e)),
  );

describe('starting', () => {
  it('launches an engine, sees it ready, stops it with proof', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    const launched = await s.launch(order);
    expect(launched).toMatchObject({ gpus: [GPU_A], adopted: false, mgmt_addr: null, key_id: null });
    expect(await s.awaitReady(order, () => {}, never)).toEqual({
      ready: true,
      pid: launched.pid,
      model_ids: ['fake-model'],
    });
    expect(s.reports()).toMatchObject([{ state: 'ready', pid: launched.pid, ports: launched.ports }]);
    expect(await s.stop(stopOf(order))).toMatchObject({ proof: 'strong', leaked: [] });
    expect(treePids(node.workDir)).toEqual([]);
    expect(s.reports()).toEqual([]);
  });

  it('runs once when every order comes twice, at the same time or later', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    const [a, b] = await Promise.all([s.launch(order), s.launch(order)]);
    expect(b).toEqual({ ...a, adopted: true });
    expect(await s.prepare(order)).toMatchObject({ gpus: a.gpus, ports: a.ports });
    expect(await s.spawn(order)).toEqual({ pid: a.pid, adopted: true });
    const [x, y] = await Promise.all([s.stop(stopOf(order)), s.stop(stopOf(order))]);
    expect(y).toEqual(x);
  });

  it('gives the engine its mark and none of the agent environment', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    process.env.LLMGW_TEST_LEAK = '1';
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    delete process.env.LLMGW_TEST_LEAK;
    const env = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
    expect(env).toContain(`LLMGW_ENGINE=${order.replica}/${order.fence}/0`);
    expect(env).toContain('SPT_NOENV=1');
    expect(env.some(e => e.startsWith('LLMGW_TEST_LEAK'))).toBe(false);
  });

  it('starts the engine in a session of its own, with SIGINT as the system gives it', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const { pid } = await s.launch(orderFor(uniqueName()));
    const stat = readStat(pid)!;
    expect(stat.session).toBe(stat.ppid);
    const ignored = BigInt(`0x${/^SigIgn:\s+(\w+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]}`);
    expect(ignored & 0b11n).toBe(0n);
  });

  it.runIf(process.getuid?.() === 0)(
    'runs the engine as another user, who can write its own folder and nothing of ours',
    async () => {
      const node = makeNode();
      const s = await node.supervisor({ user: { uid: 65534, gid: 65534 } });
      const order = orderFor(uniqueName());
      const { pid } = await s.launch(order);
      expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
      expect(readFileSync(`/proc/${pid}/status`, 'utf8')).toMatch(/^Uid:\t65534\t65534/m);
      const runDir = path.join(node.workDir, 'engines', order.replica, '1000-0');
      expect(statSync(path.join(runDir, 'home')).uid).toBe(65534);
      for (const ours of ['', 'handle.json', 'pid', 'logs']) {
        expect(statSync(path.join(runDir, ours)).uid).toBe(0);
        expect(statSync(path.join(runDir, ours)).mode & 0o022).toBe(0);
      }
      expect(await s.stop(stopOf(order))).toMatchObject({ proof: 'strong' });
    },
  );

  it('hands the engine key to the probe and keeps it out of the handle and the log', async () => {
    const node = makeNode();
    const secrets = {
      engineKey: async () => ({ key: 'k'.repeat(64), key_id: 'abcd1234' }),
      envFromFiles: async () => ({}),
    };
    const s = await node.supervisor({ secrets });
    const order = orderFor(uniqueName(), { env: { FAKE_SECRET_LINE: 'k'.repeat(64) } });
    expect(await s.launch(order)).toMatchObject({ key_id: 'abcd1234' });
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    const text = readFileSync(
      path.join(node.workDir, 'engines', order.replica, '1000-0', 'handle.json'),
      'utf8',
    );
    expect(JSON.parse(text)).toMatchObject({ key_id: 'abcd1234' });
    expect((await s.tail(order.replica)).join('\n')).toContain('token is [redacted]');
    s.close();
    const again = await node.supervisor({ secrets });
    expect((await again.tail(order.replica)).join('\n')).toContain('token is [redacted]');
  });
});

describe('failing', () => {
  it('tells an exit before anything else, keeps evidence, and forgets the event only when acknowledged', async () => {
    const node = makeNode();
    const told: EngineEvent[] = [];
    const s = await node.supervisor();
    s.onEvent(e => told.push(e));
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    await s.awaitReady(order, () => {}, never);
    process.kill(pid, 'SIGKILL');
    const event = await until(() => told[0]);
    expect(event).toMatchObject({ replica: order.replica, fence: 1000, seq: 1, requested: false });
    expect(event.failure.exit).toEqual({ code: null, signal: 'SIGKILL' });
    // The shell says "Killed" of its child: that is no line of the engine's and explains nothing.
    expect(JSON.stringify(event.failure)).not.toContain('Killed');
    expect(event.failure.tail.join()).toContain('starting pid');
    expect(existsSync(path.join(event.failure.evidence!, 'log-tail'))).toBe(true);
    await until(() => existsSync(path.join(event.failure.evidence!, 'gpus.json')));
    expect(s.pending()).toEqual([event]);
    s.close();
    const again = await node.supervisor();
    expect(again.pending()).toEqual([event]);
    again.ack({ ...order, seq: 2 });
    expect(again.pending()).toEqual([event]);
    again.ack({ ...order, seq: 1 });
    expect(again.pending()).toEqual([]);
    expect((await node.supervisor()).pending()).toEqual([]);
  });

  it('takes exit code 0 that nobody asked for as a failure', async () => {
    const s = await makeNode().supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_EXIT: '0' } });
    await s.launch(order);
    const result = await s.awaitReady(order, () => {}, never);
    expect(result).toMatchObject({ ready: false, failure: { exit: { code: 0, signal: null } } });
    expect(s.pending()).toHaveLength(1);
  });

  it('says which line of the log explains an engine that refuses a flag', async () => {
    const s = await makeNode().supervisor();
    const words = 'vllm: error: unrecognized arguments: --no-such';
    const order = orderFor(uniqueName(), { env: { FAKE_EXIT: '2', FAKE_LAST_WORDS: words } });
    await s.launch(order);
    const result = await s.awaitReady(order, () => {}, never);
    expect(result).toMatchObject({ ready: false, failure: { code: 'FLAG_UNKNOWN', class: 'permanent' } });
    expect(result.ready === false && result.failure.sentence).toContain('--no-such');
  });

  it('fails an engine that only repeats its stall line, and leaves it to its order', async () => {
    const s = await makeNode().supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_STALL: '1' }, noProgress: '1s' });
    const { pid } = await s.launch(order);
    const result = await s.awaitReady(order, () => {}, never);
    expect(result).toMatchObject({ ready: false, failure: { exit: null, class: 'retry' } });
    expect(s.inspect(stopOf(order))).toMatchObject({ alive: true, pid });
  });

  it('tells of an engine that says 503 for long after it was ready, without killing it', async () => {
    const node = makeNode();
    const dead = path.join(node.workDir, 'dead');
    const s = await node.supervisor({ healthIntervalMs: 30, deadAfterMs: 100 });
    const order = orderFor(uniqueName(), { env: { FAKE_DEAD_FILE: dead } });
    const { pid } = await s.launch(order);
    await s.awaitReady(order, () => {}, never);
    writeFileSync(dead, '');
    const [event] = await until(() => s.pending().length > 0 && s.pending());
    expect(event!.failure.sentence).toContain('503');
    expect(s.inspect(stopOf(order))).toMatchObject({ alive: true, pid });
    await s.stop(stopOf(order));
    expect(s.pending()).toEqual([event]);
  });

  it('does not start again what has run: a repeated launch of a dead engine answers with its failure', async () => {
    const s = await makeNode().supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_EXIT: '1' } });
    const { pid } = await s.launch(order);
    await until(() => s.pending().length > 0);
    expect(await s.launch(order)).toMatchObject({ pid, adopted: true });
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: false });
  });
});

describe('a reboot', () => {
  it('while an engine loads is no failure of it, also when its event has been acknowledged', async () => {
    const node = makeNode();
    const order = orderFor(uniqueName(), { env: { FAKE_NO_SERVER: '1' } });
    const first = await node.supervisor();
    const { pid } = await first.launch(order);
    first.close();
    process.kill(pid, 'SIGKILL');
    pretendReboot(node, order);
    const s = await node.supervisor();
    const [event] = s.pending();
    s.ack({ ...order, seq: event!.seq });
    for (const supervisor of [s, await node.supervisor()]) {
      const result = await supervisor.awaitReady(order, () => {}, never);
      expect(result).toEqual({ ready: false, failure: event!.failure });
      expect(event!.failure.class).toBe('host_stop');
    }
  });

  it('before an engine was started is the host stopping it too', async () => {
    const node = makeNode();
    const order = orderFor(uniqueName());
    const first = await node.supervisor();
    await first.prepare(order);
    first.close();
    pretendReboot(node, order);
    const s = await node.supervisor();
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({
      ready: false,
      failure: { class: 'host_stop' },
    });
  });

  it('answers no order that has the fence and another content', async () => {
    const node = makeNode();
    const order = orderFor(uniqueName());
    const first = await node.supervisor();
    await first.prepare(order);
    first.close();
    pretendReboot(node, order);
    const s = await node.supervisor();
    const other = orderFor(order.replica, { slots: [1] });
    expect(await codeOf(s.awaitReady(other, () => {}, never))).toBe('FENCE_CONFLICT');
  });
});

describe('a failure that was acknowledged', () => {
  it('is still the answer to whoever waits for that engine', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const words = 'vllm: error: unrecognized arguments: --no-such';
    const order = orderFor(uniqueName(), { env: { FAKE_EXIT: '2', FAKE_LAST_WORDS: words } });
    await s.launch(order);
    const event = await until(() => s.pending()[0]);
    s.ack(event);
    rmSync(path.join(path.dirname(handleFile(node, order)), 'logs'), { recursive: true });
    const result = await s.awaitReady(order, () => {}, never);
    expect(result).toEqual({ ready: false, failure: event.failure });
  });
});

describe('fences', () => {
  it('refuses an older fence and the same fence with another order, on disk too', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const replica = uniqueName();
    await s.prepare(orderFor(replica, { fence: 2_000 }));
    for (const supervisor of [s, await node.supervisor()]) {
      expect(await codeOf(supervisor.launch(orderFor(replica, { fence: 1_999 })))).toBe('STALE_FENCE');
      expect(await codeOf(supervisor.launch(orderFor(replica, { fence: 2_000, slots: [1] })))).toBe(
        'FENCE_CONFLICT',
      );
    }
  });

  it('are kept although somebody has removed their folder', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const replica = uniqueName();
    await s.prepare(orderFor(replica, { fence: 1_000 }));
    rmSync(path.join(node.workDir, 'fences'), { recursive: true });
    await s.stop({ replica, fence: 1_000, rank: 0, reason: 'test' });
    await s.prepare(orderFor(replica, { fence: 2_000 }));
    expect(await codeOf(s.launch(orderFor(replica, { fence: 1_999 })))).toBe('STALE_FENCE');
  });

  it('refuses a gang whose order names no fabric (INV-3), and lets it be asked about', async () => {
    const s = await makeNode().supervisor();
    const gang = { ...orderFor(uniqueName()), nodes: 2 };
    await s.check(gang);
    expect(await codeOf(s.prepare(gang))).toBe('FABRIC_DOWN');
  });

  it('refuses a newer generation while the older one lives, and clears what has ended by itself', async () => {
    const s = await makeNode().supervisor();
    const replica = uniqueName();
    const first = orderFor(replica, { fence: 1_000 });
    const second = orderFor(replica, { fence: 2_000, generation: 2, slots: [1] });
    const { pid, ports } = await s.launch(first);
    await expect(s.launch(second)).rejects.toMatchObject({
      code: 'GPU_HELD',
      message: expect.stringContaining(`pid ${pid}`),
    });
    process.kill(pid, 'SIGKILL');
    await until(() => s.pending().length > 0);
    const next = await s.launch(second);
    expect(next.ports).not.toEqual(ports);
    expect(await s.stop(stopOf(first))).toMatchObject({ proof: 'strong' });
    expect(isAlive({ pid: next.pid, start: readStat(next.pid)!.start })).toBe(true);
  });

  it('answers the stop of a fence that it never had: nothing ran, nothing will, and the newer one serves on', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const replica = uniqueName();
    const { pid } = await s.launch(orderFor(replica, { fence: 2_000 }));
    expect(await s.stop({ replica, fence: 1_500, rank: 0, reason: 'late' })).toMatchObject({
      proof: 'never_started',
      leaked: [],
    });
    expect(s.inspect({ replica, fence: 2_000, rank: 0, reason: '' })).toMatchObject({ alive: true, pid });
    expect(await codeOf(s.launch(orderFor(replica, { fence: 1_500 })))).toBe('STALE_FENCE');
  });

  it('starts nothing beside an engine whose handle is gone, ends it when ordered, and proves that', async () => {
    const node = makeNode();
    const replica = uniqueName();
    const old = orderFor(replica, { fence: 1_500, slots: [1] });
    const first = await node.supervisor();
    const { pid } = await first.launch(old);
    first.close();
    rmSync(handleFile(node, old));
    const s = await node.supervisor();
    // Whose GPUs it holds, nobody knows any more: nothing starts beside it (INV-1).
    expect(await codeOf(s.launch(orderFor(replica, { fence: 1_900 })))).toBe('GPU_HELD');
    expect(await s.stop(stopOf(old))).toMatchObject({ proof: 'processes', leaked: [] });
    expect(readStat(pid)?.state ?? 'Z').toBe('Z');
    const { pid: newer } = await s.launch(orderFor(replica, { fence: 2_000 }));
    expect(s.inspect({ replica, fence: 2_000, rank: 0, reason: '' })).toMatchObject({
      alive: true,
      pid: newer,
    });
  });

  it('burns the fence of a stop that comes before its start', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    expect(await s.stop(stopOf(order))).toMatchObject({ proof: 'never_started', leaked: [] });
    expect(await codeOf(s.launch(order))).toBe('STALE_FENCE');
    expect(await codeOf((await node.supervisor()).launch(order))).toBe('STALE_FENCE');
    expect(await codeOf(s.launch(orderFor(order.replica, { fence: 999 })))).toBe('STALE_FENCE');
  });

  it('names the holder of a GPU until its stop is proven', async () => {
    const s = await makeNode().supervisor();
    const holder = orderFor(uniqueName());
    const other = orderFor(uniqueName());
    await s.launch(holder);
    await expect(s.launch(other)).rejects.toMatchObject({
      code: 'GPU_HELD',
      message: expect.stringContaining(holder.replica),
    });
    await s.stop(stopOf(holder));
    expect(await s.launch(other)).toMatchObject({ gpus: [GPU_A] });
  });
});

describe('stopping', () => {
  it('kills an engine that ignores SIGTERM and a child that left its session and its mark', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_IGNORE_TERM: '1', FAKE_STRAY: '1' } });
    await s.launch(order);
    await s.awaitReady(order, () => {}, never);
    const stray = Number(/STRAY (\d+)/.exec((await s.tail(order.replica)).join('\n'))![1]);
    expect(await s.stop(stopOf(order))).toMatchObject({ proof: 'strong' });
    expect(treePids(node.workDir)).toEqual([]);
    expect(readStat(stray)?.state ?? 'Z').toBe('Z');
  });

  it('finds the orphans of an engine that was killed while no agent was there', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_STRAY: '1' } });
    const { pid } = await s.launch(order);
    const log = path.join(path.dirname(handleFile(node, order)), 'logs/log');
    const stray = Number(await until(() => /STRAY (\d+)/.exec(readFileSync(log, 'utf8'))?.[1]));
    s.close();
    process.kill(pid, 'SIGKILL');
    await until(() => (readStat(pid)?.state ?? 'Z') === 'Z');
    const again = await node.supervisor();
    await until(() => again.pending().length === 1);
    expect(readStat(stray)).not.toBeNull();
    await again.stop(stopOf(order));
    expect(readStat(stray)?.state ?? 'Z').toBe('Z');
  });

  it('stops every engine for the host: marked, told as such, not counted', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_IGNORE_TERM: '1' } });
    await s.launch(order);
    await s.awaitReady(order, () => {}, never);
    await s.stopAllForHost();
    expect(treePids(node.workDir)).toEqual([]);
    const again = await node.supervisor();
    expect(again.pending()).toMatchObject([{ requested: false, failure: { class: 'host_stop' } }]);
    expect(await again.stop(stopOf(order))).toMatchObject({ proof: 'strong' });
  });

  it('watches no longer when the watching is cancelled, and leaves the engine alone', async () => {
    const s = await makeNode().supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_NO_SERVER: '1' } });
    const { pid } = await s.launch(order);
    const cancel = new AbortController();
    const watching = s.awaitReady(order, () => {}, cancel.signal);
    cancel.abort(new Error('enough'));
    await expect(watching).rejects.toThrow('enough');
    expect(s.inspect(stopOf(order))).toEqual({ known: true, alive: true, pid, highest_fence: 1000 });
  });
});
