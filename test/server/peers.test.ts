// Two control plane instances and one agent, over real mTLS: requests that are forwarded, sessions that move.
import net from 'node:net';
import { credentials, type ServiceError, status } from '@grpc/grpc-js';
import { WorkflowNotFoundError } from '@temporalio/client';
import { expect, onTestFinished, test } from 'vitest';
import type { ServeRequest } from '../../agent/stream/types.js';
import { LlmgwError } from '../../contracts/errors.js';
import { nodeStep } from '../../domain/node.js';
import { welcome } from '../../domain/node-facts.js';
import { emptyNode, type NodeState } from '../../domain/node-state.js';
import { loadTlsFiles, type TlsPaths } from '../../lib/tls/load.js';
import { peerProto } from '../../proto/load.js';
import { agentHandlers } from '../../server/agents.js';
import { peerAddrOf } from '../../server/peers/address.js';
import { PeerCalls } from '../../server/peers/calls.js';
import { PeerChannels } from '../../server/peers/channels.js';
import { admitPeer } from '../../server/peers/identify.js';
import { Nodes } from '../../server/peers/nodes.js';
import { peerService } from '../../server/peers/service.js';
import { Balancer } from '../fakes/balancer.js';
import {
  type ControlPlane,
  controlPlane,
  makePki,
  type Pki,
  rawServer,
  recordingLog,
  startAgent,
  until,
} from '../stream/support.js';

const NODE = 'gpu-a-01';

/** The `node` workflow, by its own function, in the place of Temporal. */
class Workflow {
  state: NodeState = emptyNode(NODE, 0);
  readonly gone: number[] = [];

  readonly fleet = {
    hello: async (_id: string, hello: Parameters<typeof this.step>[0] & object) => {
      this.step({ type: 'hello', hello } as never);
      return welcome(this.state);
    },
    gone: async (_id: string, gone: { session: number }) => {
      this.gone.push(gone.session);
      this.step({ type: 'gone', gone } as never);
    },
    node: async (id: string) => {
      if (id !== NODE) throw new WorkflowNotFoundError('no', id, undefined);
      return this.state;
    },
    welcome: async () => welcome(this.state),
  };

  private step(event: Parameters<typeof nodeStep>[1]): void {
    nodeStep(this.state, event, Date.now());
  }
}

interface Plane extends ControlPlane {
  calls: PeerCalls;
  nodes: Nodes;
  peerAddr: string;
}

/** One instance; `peers: false`: it can't reach the others. */
async function plane(
  instance: string,
  workflow: Workflow,
  opts: { tls?: TlsPaths; peers?: boolean } = {},
): Promise<Plane> {
  const { log } = recordingLog();
  // The address is known once it listens.
  let calls!: PeerCalls;
  const handlersOf = (addr: string) =>
    agentHandlers({
      fleet: workflow.fleet as never,
      instance,
      peerAddr: addr,
      ...(opts.peers === false ? {} : { peers: calls }),
      log,
      retryMs: 1,
    });
  let handlers!: ReturnType<typeof agentHandlers>;
  const cp = await controlPlane({
    instance,
    ...(opts.tls === undefined ? {} : { tls: opts.tls }),
    handlers: {
      hello: node => handlers.hello(node),
      welcomed: node => handlers.welcomed?.(node),
      gone: (...args) => handlers.gone(...args),
      superseded: (...args) => handlers.superseded?.(...args),
    },
    services: hub => [
      peerService({
        instance,
        tls: opts.tls !== undefined,
        hub,
        routes: { ownRouters: () => [{ id: 'router-1', version: 7, outstanding: 2, agoMs: 10 }] },
        met: () => {},
        log,
      }),
    ],
  });
  const peerAddr = `127.0.0.1:${cp.port}`;
  calls = new PeerCalls({ instance, peerAddr, channels: new PeerChannels(opts.tls ?? null) });
  handlers = handlersOf(peerAddr);
  onTestFinished(() => {
    calls.close();
    handlers.close();
  });
  const nodes = new Nodes({
    instance,
    hub: cp.hub,
    fleet: workflow.fleet,
    calls,
    directory: { alive: () => [] },
  });
  return { ...cp, calls, nodes, peerAddr };
}

/** Both instances, with the agent's stream at `a`. */
async function twoPlanes(serve?: ServeRequest): Promise<{
  pki: Pki;
  node: TlsPaths;
  workflow: Workflow;
  a: Plane;
  b: Plane;
}> {
  const pki = await makePki();
  const workflow = new Workflow();
  const a = await plane('cp-a', workflow, { tls: pki.server });
  const b = await plane('cp-b', workflow, { tls: pki.server });
  const node = await pki.client(NODE);
  const agent = startAgent(a.port, {
    tls: node,
    ...(serve === undefined ? {} : { serve }),
  });
  await until(() => agent.welcomes[0]);
  return { pki, node, workflow, a, b };
}

async function textOf(chunks: AsyncIterable<Buffer>): Promise<string> {
  const parts: Buffer[] = [];
  for await (const chunk of chunks) parts.push(chunk);
  return Buffer.concat(parts).toString();
}

const errorOf = (chunks: AsyncIterable<Buffer>): Promise<LlmgwError> =>
  textOf(chunks).then(
    text => Promise.reject(new Error(`answered ${text.length} bytes`)),
    err => err,
  );

test('a request to a node whose stream is at the other instance is answered through it, byte for byte', async () => {
  const part = Buffer.alloc(300 * 1024, 'llmgw\n');
  const { a, b } = await twoPlanes(async function* (kind, payload) {
    yield Buffer.from(`${kind} ${JSON.stringify(payload)}\n`);
    for (let i = 0; i < 6; i++) yield part;
  });
  expect(a.hub.node(NODE)).not.toBeNull();
  expect(b.hub.node(NODE)).toBeNull();
  const text = await textOf(b.nodes.request(NODE, 'logs', { replica: 'demo', lines: 3 }));
  expect(text === `logs {"replica":"demo","lines":3}\n${part.toString().repeat(6)}`).toBe(true);
});

test("an agent's own error comes through with its code, and a reader that leaves ends the request at the agent", async () => {
  const left: boolean[] = [];
  const { b } = await twoPlanes(async function* (kind, _payload, signal) {
    if (kind === 'bad') throw new LlmgwError('ENGINE_UNKNOWN', 'there is no such engine');
    signal.addEventListener('abort', () => left.push(true));
    for (let i = 0; !signal.aborted; i++) yield Buffer.from(`line ${i}\n`);
  });
  expect(await errorOf(b.nodes.request(NODE, 'bad', {}))).toMatchObject({
    code: 'ENGINE_UNKNOWN',
    message: 'there is no such engine',
  });
  for await (const chunk of b.nodes.request(NODE, 'logs', {})) {
    expect(chunk.length).toBeGreaterThan(0);
    break;
  }
  await until(() => left[0]);
});

test('live figures of a node come from the instance that holds it', async () => {
  const { a, b } = await twoPlanes();
  expect(await b.nodes.live(NODE)).toMatchObject({ session: a.hub.node(NODE)?.session, engines: [] });
  expect(await b.nodes.live('gpu-b-02')).toBeNull();
  const { instance, routers } = await b.calls.routers(a.peerAddr, { replica: 'demo', fence: 1 });
  expect(instance).toBe('cp-a');
  expect(routers).toMatchObject([{ id: 'router-1', version: 7, outstanding: 2 }]);
});

test('INV-8: a node that calls the other instances with its own certificate is refused, whatever it asks', async () => {
  const { pki, a } = await twoPlanes();
  const files = loadTlsFiles(await pki.client('gpu-b-02'));
  const client = new (peerProto().Peer)(
    `localhost:${a.port}`,
    credentials.createSsl(files.ca, files.key, files.cert),
  );
  onTestFinished(() => client.close());
  const codes = await Promise.all([
    new Promise<number>(resolve => client.Live({ node_ids: [NODE] }, err => resolve(err?.code ?? 0))),
    new Promise<number>(resolve => client.Routers({}, err => resolve(err?.code ?? 0))),
    new Promise<number>(resolve =>
      client.Superseded({ node_id: NODE, by_session: 9e15 }, err => resolve(err?.code ?? 0)),
    ),
    new Promise<number>(resolve => {
      const call = client.Request({ node_id: NODE, kind: 'logs', payload: Buffer.from('{}') });
      call.on('data', () => {});
      call.on('end', () => resolve(0));
      call.on('error', (err: ServiceError) => resolve(err.code));
    }),
  ]);
  expect(codes).toEqual(Array(4).fill(status.PERMISSION_DENIED));
  expect(a.hub.node(NODE)).not.toBeNull();
});

test('a peer that shows a node’s certificate is not spoken to', async () => {
  const { pki, b } = await twoPlanes();
  const workflow = new Workflow();
  // A node's key on the address of an instance: its certificate may not even be a server's.
  const impostor = await plane('cp-c', workflow, { tls: pki.server });
  const calls = new PeerCalls({
    instance: 'cp-b',
    peerAddr: null,
    channels: new PeerChannels({ ...pki.server, ca: (await makePki()).server.ca }),
  });
  onTestFinished(() => calls.close());
  await expect(calls.live(impostor.peerAddr, {})).rejects.toThrow('self-signed certificate');
  await expect(b.calls.live(impostor.peerAddr, {})).resolves.toMatchObject({ instance: 'cp-c' });
});

test('without TLS only this machine may call, and with it only a certificate', () => {
  const from = (peer: string, transportSecurityType?: string) => ({
    getPeer: () => peer,
    getAuthContext: () => ({ ...(transportSecurityType === undefined ? {} : { transportSecurityType }) }),
  });
  expect(admitPeer(from('127.0.0.1:4711'), false)).toEqual({ ok: true });
  expect(admitPeer(from('[::1]:4711'), false)).toEqual({ ok: true });
  expect(admitPeer(from('10.0.0.9:4711'), false)).toMatchObject({ code: status.UNAUTHENTICATED });
  expect(admitPeer(from('127.0.0.1:4711'), true)).toMatchObject({ code: status.UNAUTHENTICATED });
  expect(admitPeer(from('127.0.0.1:4711', 'ssl'), true)).toMatchObject({ code: status.UNAUTHENTICATED });
});

test('a holder that is down is named in one sentence; so is one that takes connections and says nothing', async () => {
  const { workflow, a, b } = await twoPlanes();
  await a.close();
  const error = await errorOf(b.nodes.request(NODE, 'logs', {}));
  expect(error.code).toBe('NODE_UNREACHABLE');
  expect(error.message).toContain(`the control plane instance cp-a (${a.peerAddr}), which does not answer: `);
  const deaf = await rawServer(net.createServer(socket => socket.pause()));
  workflow.state.peer_addr = `127.0.0.1:${deaf}`;
  expect((await errorOf(b.nodes.request(NODE, 'logs', {}))).message).toContain(
    `cp-a (127.0.0.1:${deaf}), which does not answer: no connection within 3 s`,
  );
  workflow.state.peer_addr = null;
  expect((await errorOf(b.nodes.request(NODE, 'logs', {}))).message).toContain(
    'cp-a, which has no peer_addr',
  );
  expect(await errorOf(b.nodes.request('gpu-z-99', 'logs', {}))).toMatchObject({ code: 'NODE_NOT_FOUND' });
});

test('what was forwarded is not forwarded again: two instances that name each other answer once', async () => {
  const { workflow, a, b } = await twoPlanes();
  const asked: string[] = [];
  for (const [at, other] of [
    [a, b],
    [b, a],
  ] as const) {
    at.hub.supersede(NODE, 9e15, 'cp-x');
    const request = other.calls.request.bind(other.calls);
    other.calls.request = (addr, ...rest) => {
      asked.push(addr);
      return request(addr, ...rest);
    };
  }
  workflow.state = { ...workflow.state, instance: 'cp-a', peer_addr: a.peerAddr };
  expect((await errorOf(b.nodes.request(NODE, 'logs', {}))).message).toBe(
    `the control plane instance cp-a, which had the last stream of ${NODE}, says: ${NODE} has no stream to this control plane.`,
  );
  expect(asked).toEqual([a.peerAddr]);
  // The instance that is named asks nobody: not itself, and not the one that named it.
  expect((await errorOf(a.nodes.request(NODE, 'logs', {}))).message).toBe(
    `${NODE} has no stream to a control plane; the last one was at the instance cp-a`,
  );
  expect(asked).toHaveLength(1);
});

test('an agent that has moved since it was looked up is found where it is now', async () => {
  const { pki, node, workflow, a, b } = await twoPlanes(async function* () {
    yield Buffer.from('from a');
  });
  expect(await textOf(b.nodes.request(NODE, 'logs', {}))).toBe('from a');
  const c = await plane('cp-c', workflow, { tls: pki.server });
  const moved = startAgent(c.port, {
    tls: node,
    serve: async function* () {
      yield Buffer.from('from c');
    },
  });
  await until(() => moved.welcomes[0]);
  await until(() => a.hub.node(NODE) === null);
  // Within the time that the holder is remembered for.
  expect(await textOf(b.nodes.request(NODE, 'logs', {}))).toBe('from c');
});

test('an instance with a half-open stream hears at once that the agent is elsewhere', async () => {
  // Silence would be found after minutes only.
  const { workflow, a, b, balancer, agent } = await behindBalancer(60_000);
  balancer.blackhole(a.port);
  await agent.stop();
  expect(a.hub.node(NODE)).not.toBeNull();
  const again = startAgent(balancer.port, { heartbeatIntervalMs: 60_000 });
  await until(() => again.welcomes[0]);
  await until(() => a.hub.node(NODE) === null);
  expect(b.hub.node(NODE)?.session).toBe(workflow.state.session);
  expect(workflow.state).toMatchObject({ state: 'connected', instance: 'cp-b', silent_at: null });
  expect(workflow.gone).toEqual([]);
});

test('a half-open stream that ends by silence while the agent is elsewhere does not mark the node as gone', async () => {
  const { workflow, a, b, balancer, agent, first } = await behindBalancer(300, false);
  balancer.blackhole(a.port);
  await until(() => agent.welcomes[1]);
  // The instance can't be told: it finds the silence itself, and says so.
  await until(() => workflow.gone.includes(first));
  expect(a.hub.node(NODE)).toBeNull();
  expect(b.hub.node(NODE)?.session).toBe(workflow.state.session);
  expect(workflow.state).toMatchObject({ state: 'connected', instance: 'cp-b', silent_at: null });
});

/** An agent with a stream to `a` through a balancer whose next connections go to `b`. */
async function behindBalancer(heartbeatIntervalMs: number, peers = true) {
  const workflow = new Workflow();
  const a = await plane('cp-a', workflow);
  const b = await plane('cp-b', workflow, { peers });
  const balancer = await Balancer.start([a.port]);
  onTestFinished(() => balancer.close());
  const agent = startAgent(balancer.port, { heartbeatIntervalMs });
  const { session, instance } = await until(() => agent.welcomes[0]);
  expect(instance).toBe('cp-a');
  balancer.targets = [b.port];
  return { workflow, a, b, balancer, agent, first: session };
}

test('INV-8: a second machine under the same name is refused although the first is at the other instance', async () => {
  const workflow = new Workflow();
  const a = await plane('cp-a', workflow);
  const b = await plane('cp-b', workflow);
  const first = startAgent(a.port, { bootId: 'boot-1' });
  await until(() => first.welcomes[0]);
  const second = startAgent(b.port, { bootId: 'boot-2', reconnectBaseMs: 10_000, reconnectMaxMs: 10_000 });
  await until(() => second.conditions.list().find(c => c.code === 'duplicate_identity'));
  expect(second.welcomes).toEqual([]);
  // The one that heartbeats jumps above the number that the other has taken.
  await until(() => first.welcomes[1]);
  expect(workflow.state).toMatchObject({ instance: 'cp-a', boot_id: 'boot-1', state: 'connected' });
  expect(workflow.state.session).toBe(first.welcomes.at(-1)?.session);
  expect(second.lines.find(l => l.server_says !== undefined)?.server_says).toContain('cp-a');
});

test('peer_addr is listen where that can be dialled, and said to be missing where it cannot', () => {
  const { log, lines } = recordingLog();
  expect(peerAddrOf({ listen: '10.0.0.5:7443', peer_addr: null }, log)).toBe('10.0.0.5:7443');
  expect(peerAddrOf({ listen: '0.0.0.0:7443', peer_addr: '10.0.0.6:7443' }, log)).toBe('10.0.0.6:7443');
  expect(lines).toEqual([]);
  expect(peerAddrOf({ listen: '0.0.0.0:7443', peer_addr: null }, log)).toBeNull();
  expect(peerAddrOf({ listen: '127.0.0.1:0', peer_addr: null }, log)).toBeNull();
  expect(lines.map(l => l.msg)).toEqual(Array(2).fill(expect.stringContaining('peer_addr is not set')));
});
