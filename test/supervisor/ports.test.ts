import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { PortLeases } from '../../agent/state/port-leases.js';
import { freePorts } from '../../agent/supervisor/prepare.js';
import { listenerAmong } from '../../agent/supervisor/proc.js';
import { cleanUp, makeNode, never, orderFor, uniqueName, until } from './harness.js';

const dirs: string[] = [];
const servers: net.Server[] = [];
afterEach(async () => {
  cleanUp();
  for (const d of dirs.splice(0)) rmSync(d, { recursive: true, force: true });
  for (const s of servers.splice(0)) await new Promise(resolve => s.close(resolve));
});

function tmp(): string {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-ports-'));
  dirs.push(dir);
  return dir;
}

function listen(port: number, onConnection?: (s: net.Socket) => void): Promise<number> {
  const server = net.createServer(onConnection);
  servers.push(server);
  return new Promise(resolve =>
    server.listen(port, '127.0.0.1', () => resolve((server.address() as net.AddressInfo).port)),
  );
}

const needs = (...names: string[]) => names.map(name => ({ name, count: 1 }));

describe('port leases', () => {
  const free = async () => true;

  it('of several in a row are held whole, and lie side by side', async () => {
    const dir = tmp();
    const block = [
      { name: 'http', count: 1 },
      { name: 'dist', count: 4 },
    ];
    const taken = async (port: number) => port !== 103;
    const leases = new PortLeases(dir, { from: 100, to: 109 });
    expect(await leases.take('a/1/0', block, taken)).toEqual({ http: 100, dist: 104 });
    const again = new PortLeases(dir, { from: 100, to: 109 });
    await expect(again.take('b/1/0', block, taken)).rejects.toMatchObject({
      code: 'PORTS_EXHAUSTED',
      message: expect.stringContaining('4 of them in a row'),
    });
  });

  it('of several in a row never lie over the end of the range', async () => {
    const dir = tmp();
    const leases = new PortLeases(dir, { from: 100, to: 119 });
    await leases.take('a/1/0', [{ name: 'dist', count: 16 }], free);
    leases.release('a/1/0');
    // 116 to 119 are left at the end, 100 to 115 cool down.
    await expect(leases.take('b/1/0', [{ name: 'dist', count: 5 }], free)).rejects.toMatchObject({
      message: expect.stringContaining(
        'no 5 ports (5 of them in a row) are free in supervisor.ports 100-119',
      ),
    });
    const only = async (port: number) => port >= 117 || port <= 103;
    const fresh = new PortLeases(tmp(), { from: 100, to: 119 });
    await fresh.take('a/1/0', needs('http'), async port => port === 117);
    expect(await fresh.take('b/1/0', [{ name: 'dist', count: 4 }], only)).toEqual({ dist: 100 });
  });

  it('of several in a row are found beside others of each length, as long as they fit at all', async () => {
    const holes = async (port: number) => port !== 104 && port !== 113;
    const leases = new PortLeases(tmp(), { from: 100, to: 119 });
    const asked = [
      { name: 'http', count: 1 },
      { name: 'small', count: 4 },
      { name: 'large', count: 8 },
    ];
    expect(await leases.take('a/1/0', asked, holes)).toEqual({ large: 105, small: 100, http: 114 });
  });

  it('in a range that is too small for one engine say that, and not that they are in use', async () => {
    const leases = new PortLeases(tmp(), { from: 100, to: 119 });
    await expect(leases.take('a/1/0', [{ name: 'workers', count: 64 }], free)).rejects.toMatchObject({
      code: 'PORTS_EXHAUSTED',
      message:
        'supervisor.ports 100-119 is too small: it has 20 ports, and one engine needs 64 ports (64 of them in a row)',
    });
    expect(await leases.take('b/1/0', [], free)).toEqual({});
    expect(await leases.take('c/1/0', needs('http'), free)).toEqual({ http: 100 });
  });

  it('are the same for an engine every time, and survive a restart', async () => {
    const dir = tmp();
    const leases = new PortLeases(dir, { from: 100, to: 109 });
    const first = await leases.take('a/1/0', needs('http'), free);
    expect(await leases.take('a/1/0', needs('http'), free)).toEqual(first);
    expect(await new PortLeases(dir, { from: 100, to: 109 }).take('a/1/0', needs('http'), free)).toEqual(
      first,
    );
  });

  it('come back only ten minutes after their release', async () => {
    let now = 0;
    const leases = new PortLeases(tmp(), { from: 100, to: 101 }, () => now);
    await leases.take('a/1/0', needs('http', 'rpc'), free);
    leases.release('a/1/0');
    await expect(leases.take('a/2/0', needs('http'), free)).rejects.toMatchObject({
      code: 'PORTS_EXHAUSTED',
    });
    now = 599_999;
    await expect(leases.take('a/2/0', needs('http'), free)).rejects.toMatchObject({
      code: 'PORTS_EXHAUSTED',
    });
    now = 600_001;
    expect(Object.values(await leases.take('a/2/0', needs('http'), free))).toHaveLength(1);
  });

  it('go round the range instead of reusing its start, and skip what is taken', async () => {
    const leases = new PortLeases(tmp(), { from: 100, to: 109 });
    const taken = async (port: number) => port !== 101;
    expect(await leases.take('a/1/0', needs('http'), taken)).toEqual({ http: 100 });
    leases.release('a/1/0');
    expect(await leases.take('a/2/0', needs('http'), taken)).toEqual({ http: 102 });
  });
});

describe('a port', () => {
  it('is not free while something listens on it, and its listener is found among pids', async () => {
    const port = await listen(0);
    expect(await freePorts()(port)).toBe(false);
    expect(listenerAmong(port, [1, process.pid])).toBe(process.pid);
    expect(listenerAmong(port, [1])).toBeNull();
  });

  it('is not free while a closed connection of it is in TIME_WAIT', async () => {
    // The side that closes first keeps the TIME_WAIT.
    const port = await listen(0, s => s.end());
    await new Promise<void>(resolve => {
      const client = net.connect(port, '127.0.0.1');
      client.on('close', () => resolve());
      client.resume();
    });
    await new Promise(resolve => servers.pop()!.close(resolve));
    expect(await freePorts()(port)).toBe(false);
  });
});

describe('a listener that is not of the engine', () => {
  it('is not believed: the engine fails with a port conflict while the stranger answers 200', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName(), { env: { FAKE_NO_SERVER: '1' } });
    const { ports } = await s.prepare(order);
    const stranger = net.createServer(c => c.resume().end('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'));
    servers.push(stranger);
    await new Promise<void>(resolve => stranger.listen(ports.http, '127.0.0.1', () => resolve()));
    await s.spawn(order);
    const result = await s.awaitReady(order, () => {}, never);
    expect(result).toMatchObject({ ready: false, failure: { class: 'port_conflict' } });
    await until(() => s.inspect({ ...order, reason: '' }).alive);
  });
});
