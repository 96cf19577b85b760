// Members of a gang on one node: what prepare and spawn agree on, and a follower, which serves nothing.
import { readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import type { EngineRenderer, RenderInput } from '../../agent/engines/types.js';
import { isAlive, readStat } from '../../agent/supervisor/proc.js';
import type { SupervisorOptions } from '../../agent/supervisor/types.js';
import type { MemberOrder, Peer, Prepared } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import {
  cleanUp,
  fakeRenderer,
  handleFile,
  makeNode,
  type Node,
  never,
  orderFor,
  treePids,
  uniqueName,
  until,
} from './harness.js';

afterEach(cleanUp);

const codeOf = (p: Promise<unknown>): Promise<unknown> =>
  p.then(
    () => 'no error',
    (e: unknown) => (e instanceof LlmgwError ? e.code : e),
  );

const KEY = 'k'.repeat(64);

/** A follower has no probe; each member gets a file. */
function gangOptions(node: Node, change: Partial<EngineRenderer> = {}) {
  const rendered: RenderInput[] = [];
  const renderer: EngineRenderer = {
    ...fakeRenderer,
    render(input) {
      rendered.push(input);
      const plain = fakeRenderer.render(input);
      const files = [
        { name: 'start.sh', text: '#!/bin/sh\n', mode: 0o700 },
        { name: 'key.txt', text: KEY, mode: 0o600 },
      ];
      const probe = plain.probe!;
      return {
        ...plain,
        files,
        probe: input.order.rank === 0 ? { ...probe, timeoutMs: 25_000, periodMs: 60_000 } : null,
      };
    },
    ...change,
  };
  const options: Partial<SupervisorOptions> = {
    engines: { ...node.options.engines, renderer: () => renderer },
    network: async () => ({
      mgmtAddr: '127.0.0.1',
      announced: '127.0.0.1',
      mgmtInterface: 'lo',
      fabricHcas: ['mlx5_0', 'mlx5_1'],
    }),
  };
  return { options, rendered };
}

const member = (rank: number, env: Record<string, string> = {}): MemberOrder => ({
  ...orderFor(uniqueName(), { env }),
  rank,
  nodes: 2,
  fabric: 'ib-a',
});

function peersWith(order: MemberOrder, prepared: Prepared): Peer[] {
  return [0, 1].map(rank => ({
    rank,
    node: `gpu-${rank}`,
    mgmt_addr: rank === order.rank ? prepared.mgmt_addr! : '10.0.0.99',
    ports: rank === order.rank ? prepared.ports : { http: 1 },
  }));
}

async function start(order: MemberOrder, change: Partial<EngineRenderer> = {}, env = {}) {
  const node = makeNode();
  const { options, rendered } = gangOptions(node, change);
  const s = await node.supervisor({ ...options, ...env });
  const prepared = await s.prepare(order);
  const peers = peersWith(order, prepared);
  const { pid } = await s.spawn({ ...order, peers });
  return { node, s, prepared, peers, pid, rendered, options };
}

describe('a member of a gang', () => {
  it('is the same order with and without its peers, and is rendered with them and the HCAs of its fabric', async () => {
    const order = member(0);
    const { node, s, prepared, peers, pid, rendered } = await start(order);
    expect(prepared).toMatchObject({ engine_version: '0.33.0', launch_mode: 'mp', mgmt_addr: '127.0.0.1' });
    expect(rendered[0]).toMatchObject({ peers, fabricHcas: ['mlx5_0', 'mlx5_1'], mgmtInterface: 'lo' });
    expect(await s.prepare(order)).toEqual(prepared);
    expect(await s.spawn({ ...order, peers })).toEqual({ pid, adopted: true });
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
    const handle = JSON.parse(readFileSync(handleFile(node, order), 'utf8'));
    expect(handle).toMatchObject({ peers, probe: { timeout_ms: 25_000, period_ms: 60_000 } });
    expect(await codeOf(s.prepare({ ...order, fabric: 'ib-b' }))).toBe('FENCE_CONFLICT');
  });

  it('has its files before it starts, each with its mode', async () => {
    const { rendered } = await start(member(0));
    const modes = ['start.sh', 'key.txt'].map(
      name => statSync(path.join(rendered[0]!.runDir, name)).mode & 0o777,
    );
    expect(modes).toEqual([0o700, 0o600]);
    expect(readFileSync(path.join(rendered[0]!.runDir, 'key.txt'), 'utf8')).toBe(KEY);
  });

  it('is not started alone, nor with members that are missing or prepared elsewhere', async () => {
    const node = makeNode();
    const s = await node.supervisor(gangOptions(node).options);
    const order = member(1);
    expect(await codeOf(s.launch(order))).toBe('BAD_REQUEST');
    const prepared = await s.prepare(order);
    const peers = peersWith(order, prepared);
    expect(await codeOf(s.spawn(order))).toBe('BAD_REQUEST');
    expect(await codeOf(s.spawn({ ...order, peers: peers.slice(1) }))).toBe('BAD_REQUEST');
    const elsewhere = peers.map(p => ({ ...p, ports: { http: 1 } }));
    expect(await codeOf(s.spawn({ ...order, peers: elsewhere }))).toBe('BAD_REQUEST');
    expect(treePids(node.workDir)).toEqual([]);
    expect(await s.spawn({ ...order, peers })).toMatchObject({ adopted: false });
  });

  it('is refused before anything is held where its fabric is down', async () => {
    const node = makeNode();
    const down = new LlmgwError('FABRIC_DOWN', 'fabric ib-a: mlx5_0 is not active');
    const s = await node.supervisor({ ...gangOptions(node).options, network: () => Promise.reject(down) });
    expect(await codeOf(s.prepare(member(0)))).toBe('FABRIC_DOWN');
    expect(s.reports()).toEqual([]);
  });

  it('keeps an order of an older agent, which knew no fabric, for the same', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    expect(await s.launch({ ...order, fabric: null })).toMatchObject({ pid, adopted: true });
  });
});

describe('a follower', () => {
  it('is waited for until it ends, whatever its exit code', async () => {
    const order = member(1, { FAKE_EXIT: '0', FAKE_NO_SERVER: '1' });
    const { s } = await start(order);
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({
      ready: false,
      failure: { code: 'ENGINE_FAILED', exit: { code: 0 } },
    });
    expect(await until(() => s.pending()[0])).toMatchObject({ rank: 1, requested: false });
  });

  it('that gets nowhere says so by its code, again at each wait, and its later end has evidence of its own', async () => {
    const order = { ...member(1, { FAKE_STALL: '1' }) };
    order.spec = { ...order.spec, no_progress_timeout: 60 };
    const { s, pid } = await start(order);
    for (let i = 0; i < 2; i++) {
      const result = await s.awaitReady(order, () => {}, never);
      expect(result).toMatchObject({ ready: false, failure: { code: 'NO_PROGRESS', class: 'retry' } });
    }
    process.kill(pid, 'SIGKILL');
    const { failure } = await until(() => s.pending()[0]);
    const kept = JSON.parse(readFileSync(path.join(failure.evidence!, 'failure.json'), 'utf8'));
    expect(kept).toMatchObject({ code: 'ENGINE_FAILED', exit: { signal: 'SIGKILL' } });
  });

  it('serves nothing, is ready with its gang, goes on under another agent, is claimed, and is stopped with proof', async () => {
    const order = member(1, { FAKE_NO_SERVER: '1' });
    const { node, s, pid, options } = await start(order);
    expect(s.reports()).toMatchObject([{ rank: 1, state: 'loading', serves: null }]);
    const wait = new AbortController();
    const waiting = s.awaitReady(order, () => {}, wait.signal);
    wait.abort(new Error('the gang is ready'));
    await expect(waiting).rejects.toThrow('the gang is ready');
    await s.settled(order);
    expect(s.reports()).toMatchObject([{ state: 'ready', serves: null }]);
    s.close();
    const next = await node.supervisor(options);
    expect(next.reports()).toMatchObject([{ pid, rank: 1, state: 'ready', serves: null }]);
    const claimed = await next.adopt({ ...order, generation: 7, process: null });
    expect(claimed).toMatchObject({ pid, adopted: true });
    expect(await next.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
    expect(treePids(node.workDir)).toEqual([]);
  });

  it('on a GPU that was not granted is told when its gang gets ready (INV-13), and not once its stop is ordered', async () => {
    const order = member(1, { FAKE_NO_SERVER: '1' });
    const { node, s, pid } = await start(order);
    node.gpus[1]!.processes = [{ pid, used_mib: 10 }];
    await s.settled({ ...order, rank: 0 });
    expect(s.pending()).toEqual([]);
    await s.settled(order);
    expect(s.pending()).toMatchObject([
      { rank: 1, requested: false, failure: { sentence: expect.stringContaining('not granted') } },
    ]);
    expect(isAlive(readStat(pid))).toBe(true);
    const other = member(1, { FAKE_NO_SERVER: '1' });
    const second = await start(other);
    second.node.gpus[1]!.processes = [{ pid: second.pid, used_mib: 10 }];
    const stopping = second.s.stop({ ...other, reason: 'test' });
    await until(() => second.s.reports()[0]?.state === 'stopping');
    await second.s.settled(other);
    await stopping;
    expect(second.s.pending()).toEqual([]);
  });

  it('has its key kept out of the log also by an agent that only adopted it', async () => {
    const order = member(1, { FAKE_NO_SERVER: '1', FAKE_SECRET_LINE: KEY });
    const secrets = {
      engineKey: async () => ({ key: KEY, key_id: 'abcd1234' }),
      envFromFiles: async () => ({}),
    };
    const { node, s, options } = await start(order, {}, { secrets });
    s.close();
    const next = await node.supervisor({ ...options, secrets });
    const log = path.join(path.dirname(handleFile(node, order)), 'logs/log');
    await until(() => readFileSync(log, 'utf8').includes(KEY));
    expect((await next.tail(order.replica, { rank: 1 })).join('\n')).toContain('token is [redacted]');
  });

  it('that ignores SIGTERM is waited for as long as its renderer says, not longer', async () => {
    const order = member(1, { FAKE_NO_SERVER: '1', FAKE_IGNORE_TERM: '1' });
    const { node, s } = await start(order, { stopMs: () => 0 }, { stopTimeoutMs: 600_000 });
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
    expect(treePids(node.workDir)).toEqual([]);
  });
});
