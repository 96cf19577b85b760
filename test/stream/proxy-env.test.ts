// Proxy variables in the environment are for the web. grpc-js obeys them unless told otherwise: a node that has them set
// for downloads would send its stream to a web proxy. The trap listens at all of them and must stay empty.
import net from 'node:net';
import { Client, credentials, Metadata } from '@grpc/grpc-js';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { Conditions } from '../../agent/conditions.js';
import { NodeWorker } from '../../agent/worker.js';
import { ControlPlane } from '../../router/control-plane.js';
import { connectTemporal } from '../../server/temporal.js';
import { connectUpstream } from '../../server/temporal-proxy/upstream.js';
import { controlPlane, makePki, rawServer, recordingLog, startAgent, until } from './support.js';

const NAMES = ['http_proxy', 'https_proxy', 'grpc_proxy', 'all_proxy', 'no_proxy', 'no_grpc_proxy'];
const before = { ...process.env };
let trap: net.Server;
let trapped = 0;

beforeAll(async () => {
  trap = net.createServer(socket => {
    trapped += 1;
    socket.on('error', () => {}).destroy();
  });
  await new Promise<void>(resolve => trap.listen(0, '127.0.0.1', resolve));
  const { port } = trap.address() as net.AddressInfo;
  for (const name of NAMES) {
    for (const key of [name, name.toUpperCase()]) {
      if (name.startsWith('no_')) delete process.env[key];
      else process.env[key] = `http://127.0.0.1:${port}`;
    }
  }
});
afterAll(() => {
  trap.close();
  for (const key of NAMES.flatMap(name => [name, name.toUpperCase()])) {
    if (before[key] === undefined) delete process.env[key];
    else process.env[key] = before[key];
  }
});

/** Something to dial; it closes each connection. */
async function target(): Promise<{ port: number; reached(): number }> {
  let reached = 0;
  const server = net.createServer(socket => {
    reached += 1;
    socket.destroy();
  });
  return { port: await rawServer(server), reached: () => reached };
}

test("the agent's stream goes straight to the control plane, with TLS and without", async () => {
  const pki = await makePki();
  const secure = await controlPlane({ tls: pki.server });
  const plain = await controlPlane();
  const agents = [startAgent(secure.port, { tls: await pki.client('gpu-a-01') }), startAgent(plain.port)];
  for (const agent of agents) await until(() => agent.welcomes[0]);
  expect(trapped).toBe(0);
});

test("the worker's native connection does, too", async () => {
  const pki = await makePki();
  for (const tls of [await pki.client('gpu-a-01'), null]) {
    const { port, reached } = await target();
    const stopper = new AbortController();
    const worker = new NodeWorker({
      config: {
        nodeId: 'gpu-a-01',
        server: { host: '127.0.0.1', port, tls: tls !== null },
        tls,
        reconnectBaseMs: 20,
        reconnectMaxMs: 100,
      },
      activities: {},
      conditions: new Conditions(),
      log: recordingLog().log,
    });
    const running = worker.run(stopper.signal);
    worker.use('default');
    await until(reached);
    stopper.abort();
    await running;
  }
  expect(trapped).toBe(0);
});

test("the control plane's connections to Temporal do: its client, its workers' and its proxy's", async () => {
  const { port, reached } = await target();
  const address = `127.0.0.1:${port}`;
  const upstream = connectUpstream({ address });
  onTestFinished(() => upstream.close());
  upstream.call('/a/b', Buffer.alloc(0), new Metadata(), Date.now() + 1_000, () => {});
  await until(reached);
  const stopper = new AbortController();
  const config = { address, namespace: 'default', tls: null, api_key_file: null };
  const sofar = reached();
  // Ends with its first attempt, whose limit is of no interest here.
  void connectTemporal(config, recordingLog().log, stopper.signal).catch(() => {});
  await until(() => reached() > sofar);
  stopper.abort();
  expect(trapped).toBe(0);
});

test("the router's calls to the control plane do", async () => {
  const { port, reached } = await target();
  for (const scheme of ['http', 'https']) {
    const cp = new ControlPlane({ server: `${scheme}://127.0.0.1:${port}`, tokenFile: null, caFile: null });
    await expect(cp.table(AbortSignal.timeout(5_000))).rejects.toThrow();
  }
  expect(reached()).toBe(2);
  expect(trapped).toBe(0);
});

const raw = (bytes: Buffer): Buffer => bytes;

// Last: what it lets into the trap is the others' failure.
test('the trap catches a gRPC client that nobody told to stay out of it', async () => {
  const { port } = await target();
  const client = new Client(`dns:127.0.0.1:${port}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  client.makeUnaryRequest('/a/b', raw, raw, Buffer.alloc(0), () => {});
  await until(() => trapped > 0);
});
