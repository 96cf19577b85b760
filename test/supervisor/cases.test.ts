// Cases from the field, read from test/cases.
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { bootId, readStat } from '../../agent/supervisor/proc.js';
import { cleanUp, GPU_A, makeNode, never, orderFor, uniqueName } from './harness.js';

const load = (name: string) =>
  parse(readFileSync(path.resolve(import.meta.dirname, `../cases/${name}.yaml`), 'utf8'));

const children: ChildProcess[] = [];
afterEach(() => {
  cleanUp();
  for (const c of children.splice(0)) c.kill('SIGKILL');
});

describe('supervision-01: a handle from before a reboot names a pid that is another program now', () => {
  const c = load('supervision-01-pid-reuse-after-reboot');

  /** What an agent left: the engine runs, then the machine boots anew and a stranger gets its pid. */
  async function scene(change: (handle: Record<string, unknown>, stranger: number) => object) {
    const node = makeNode();
    const order = orderFor(uniqueName());
    const first = await node.supervisor();
    await first.launch(order);
    await first.stop({ ...order, reason: 'setup' });
    first.close();
    // Counts the signals it gets.
    const stranger = spawn(
      process.execPath,
      [
        '-e',
        "for(const s of ['SIGTERM','SIGINT','SIGHUP'])process.on(s,()=>process.exit(9));console.log('up');setInterval(()=>{},1e6)",
      ],
      { stdio: ['ignore', 'pipe', 'ignore'] },
    );
    children.push(stranger);
    await new Promise(resolve => stranger.stdout!.once('data', resolve));
    const file = path.join(node.workDir, 'engines', order.replica, '1000-0', 'handle.json');
    const handle = JSON.parse(readFileSync(file, 'utf8'));
    writeFileSync(file, JSON.stringify({ ...handle, ...change(handle, stranger.pid!) }));
    return { node, order, stranger };
  }

  it('adopts nothing, signals nobody, clears the record, tells the loss and frees the GPUs', async () => {
    const { node, order, stranger } = await scene((_, pid) => ({
      state: 'running',
      proof: null,
      boot_id: c.input.state_file.boot_id,
      engine: { pid, start: String(c.input.state_file.start_ticks) },
      shim: { pid, start: String(c.input.state_file.start_ticks) },
    }));
    expect(bootId()).not.toBe(c.input.state_file.boot_id);
    const s = await node.supervisor();
    expect(s.reports().length > 0).toBe(c.expect.adopt);
    expect(s.pending()).toMatchObject([{ failure: { class: 'host_stop', exit: null } }]);
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'rebooted' });
    expect(await s.launch(orderFor(uniqueName()))).toMatchObject({ gpus: [GPU_A] });
    expect(stranger.exitCode).toBeNull();
    expect(stranger.signalCode).toBeNull();
  });

  it('knows a stranger by its start time on the same boot too', async () => {
    const { node, order, stranger } = await scene((_, pid) => {
      expect(readStat(pid)!.start).not.toBe(String(c.input.state_file.start_ticks));
      return {
        state: 'running',
        proof: null,
        engine: { pid, start: String(c.input.state_file.start_ticks) },
        shim: { pid, start: String(c.input.state_file.start_ticks) },
      };
    });
    const s = await node.supervisor();
    expect(s.reports()).toMatchObject([{ state: 'exited' }]);
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
    expect(stranger.exitCode).toBeNull();
    expect(stranger.signalCode).toBeNull();
  });
});

describe('supervision-06: a port in TIME_WAIT or taken since it was chosen', () => {
  const c = load('supervision-06-port-time-wait');

  it('is a port conflict, not a failure of the model, and the next generation has a fresh port', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const replica = uniqueName();
    const words = /OSError: \[Errno 98\] Address already in use/.exec(c.input.fake_engine)![0];
    const first = orderFor(replica, { env: { FAKE_EXIT: '1', FAKE_LAST_WORDS: words } });
    const a = await s.launch(first);
    const failed = await s.awaitReady(first, () => {}, never);
    expect(c.expect.classified_as).toContain('retryable');
    expect(failed).toMatchObject({ ready: false, failure: { class: 'port_conflict', exit: { code: 1 } } });
    const second = orderFor(replica, { fence: 2_000, generation: 2 });
    const b = await s.launch(second);
    expect(b.ports.http).not.toBe(a.ports.http);
    expect(await s.awaitReady(second, () => {}, never)).toMatchObject({ ready: true });
  });

  it('taken by a worker between prepare and the bind of a real listener is found too', async () => {
    const node = makeNode();
    const s = await node.supervisor();
    const order = orderFor(uniqueName());
    const { ports } = await s.prepare(order);
    const squatter = net.createServer();
    await new Promise<void>(resolve => squatter.listen(ports.http, '127.0.0.1', () => resolve()));
    await s.spawn(order);
    const result = await s.awaitReady(order, () => {}, never);
    squatter.close();
    expect(result).toMatchObject({ ready: false, failure: { class: 'port_conflict' } });
  });
});
