// Both ends of the stream over real sockets: a control plane with handlers that record, and an agent's client with a
// made-up node. What a test starts is closed after it.
import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pino from 'pino';
import { onTestFinished } from 'vitest';
import { Conditions } from '../../agent/conditions.js';
import { SessionCounter } from '../../agent/identity.js';
import { StreamClient } from '../../agent/stream/client.js';
import type { ServeRequest, StreamConfig, Welcomed } from '../../agent/stream/types.js';
import type { EngineEvent } from '../../contracts/engine.js';
import type { Gpu, Inventory } from '../../contracts/inventory.js';
import type { Logger } from '../../lib/log.js';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import type { Resolve } from '../../lib/resolve.js';
import type { TlsPaths } from '../../lib/tls/load.js';
import type { EventRef, LiveEngine } from '../../proto/codec.js';
import { type EndpointService, startAgentEndpoint } from '../../server/stream/endpoint.js';
import { createHub, type Hub } from '../../server/stream/hub.js';
import type { GoneReason, HelloNode, StreamHandlers } from '../../server/stream/types.js';

/** Polls; the test's own timeout bounds it. */
export async function until<T>(look: () => T | null | undefined | false): Promise<T> {
  for (;;) {
    const seen = look();
    if (seen !== null && seen !== undefined && seen !== false) return seen;
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

/** `after`: when it goes; default: with the test. */
export function tempDir(after: (clean: () => void) => void = onTestFinished): string {
  const dir = mkdtempSync(join(tmpdir(), 'llmgw-stream-'));
  after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

export interface Pki {
  dir: string;
  server: TlsPaths;
  client(name: string): Promise<TlsPaths>;
}

export async function makePki(
  hosts = ['127.0.0.1', '::1', 'localhost'],
  after?: (clean: () => void) => void,
): Promise<Pki> {
  const dir = tempDir(after);
  await initCa(dir);
  await issueServer(dir, 'cp-1', { hosts });
  return {
    dir,
    server: tlsPaths(dir, 'cp-1'),
    client: async name => {
      await issueClient(dir, name, { force: true });
      return tlsPaths(dir, name);
    },
  };
}

export const tlsPaths = (dir: string, name: string): TlsPaths => ({
  ca: join(dir, 'ca.pem'),
  cert: join(dir, `${name}.pem`),
  key: join(dir, `${name}-key.pem`),
});

export type LogLine = Record<string, unknown> & { msg: string; level: number };

export function recordingLog(): { log: Logger; lines: LogLine[] } {
  const lines: LogLine[] = [];
  return { lines, log: pino({ level: 'debug' }, { write: text => void lines.push(JSON.parse(text)) }) };
}

export interface ControlPlane {
  hub: Hub;
  port: number;
  lines: LogLine[];
  hellos: HelloNode[];
  beats: { nodeId: string; session: number; seq: number }[];
  events: EngineEvent[];
  inventories: Inventory[];
  gone: { nodeId: string; session: number; reason: GoneReason }[];
  close(): Promise<void>;
}

export async function controlPlane(
  opts: {
    tls?: TlsPaths;
    host?: string;
    port?: number;
    handlers?: Partial<StreamHandlers>;
    instance?: string;
    lookEveryMs?: number;
    /** What else is on the address. */
    services?: (hub: Hub) => EndpointService[];
  } = {},
): Promise<ControlPlane> {
  const { log, lines } = recordingLog();
  const seen = {
    hellos: [] as HelloNode[],
    beats: [] as ControlPlane['beats'],
    events: [] as EngineEvent[],
    inventories: [] as Inventory[],
    gone: [] as ControlPlane['gone'],
  };
  const hub = createHub({
    instance: opts.instance ?? 'cp-1',
    namespace: 'default',
    tls: opts.tls !== undefined,
    log,
    handlers: {
      hello: async node => {
        seen.hellos.push(node);
        return { highestSession: 0, slots: { 0: 'GPU-a', 7: 'GPU-b' } };
      },
      heartbeat: (nodeId, session, hb) => void seen.beats.push({ nodeId, session, seq: hb.seq }),
      event: async (_nodeId, event) => void seen.events.push(event),
      inventoryChanged: async (_nodeId, _session, inventory) => {
        seen.inventories.push(inventory);
        return null;
      },
      gone: (nodeId, session, reason) => void seen.gone.push({ nodeId, session, reason }),
      ...opts.handlers,
    },
  });
  const endpoint = await startAgentEndpoint({
    listen: { host: opts.host ?? '127.0.0.1', port: opts.port ?? 0 },
    ...(opts.tls ? { tls: opts.tls } : {}),
    services: [hub.service, ...(opts.services?.(hub) ?? [])],
    log,
    lookEveryMs: opts.lookEveryMs ?? 20,
  });
  const close = async () => {
    hub.close();
    await endpoint.close(200);
  };
  onTestFinished(close);
  return { hub, port: endpoint.address.port, lines, ...seen, close };
}

export interface TestAgent {
  client: StreamClient;
  conditions: Conditions;
  lines: LogLine[];
  welcomes: Welcomed[];
  pending: EngineEvent[];
  node: Inventory;
  engines: LiveEngine[];
  addEvent(event: EngineEvent): void;
  /** The waits before each next attempt, ms. */
  waits(): number[];
  /** Resolves when run() has. */
  stop(): Promise<void>;
}

export function startAgent(
  port: number,
  opts: Partial<StreamConfig> & {
    host?: string;
    workDir?: string;
    bootId?: string;
    serve?: ServeRequest;
    pending?: EngineEvent[];
    welcomeWithinMs?: number;
    inventoryEveryMs?: number;
    resolve?: Resolve;
    lookEveryMs?: number;
    pingEveryMs?: number;
    pingTimeoutMs?: number;
  } = {},
): TestAgent {
  const { log, lines } = recordingLog();
  const nodeId = opts.nodeId ?? 'gpu-a-01';
  const conditions = new Conditions();
  const pending = opts.pending ?? [];
  const listeners: (() => void)[] = [];
  const welcomes: Welcomed[] = [];
  const engines: LiveEngine[] = [];
  const node = inventory(nodeId, opts.bootId ?? 'boot-1');
  const client = new StreamClient({
    config: {
      nodeId,
      server: { host: opts.host ?? '127.0.0.1', port, tls: opts.tls != null },
      tls: opts.tls ?? null,
      heartbeatIntervalMs: opts.heartbeatIntervalMs ?? 200,
      reconnectBaseMs: opts.reconnectBaseMs ?? 20,
      reconnectMaxMs: opts.reconnectMaxMs ?? 2_000,
    },
    sources: {
      bootId: opts.bootId ?? 'boot-1',
      agentVersion: '0.0.0-test',
      inventory: () => ({ ...node, conditions: conditions.list() }),
      engines: () => engines,
      outbox: {
        pending: () => [...pending],
        ack: (ref: EventRef) => {
          const at = pending.findIndex(
            e => e.replica === ref.replica && e.seq === ref.seq && e.fence === ref.fence,
          );
          if (at >= 0) pending.splice(at, 1);
        },
        onEvent: listener => void listeners.push(listener),
      },
      serve:
        opts.serve ??
        async function* () {
          yield Buffer.from('nothing');
        },
    },
    conditions,
    counter: new SessionCounter(opts.workDir ?? tempDir(), log),
    log,
    onWelcome: w => void welcomes.push(w),
    ...(opts.resolve === undefined ? {} : { resolve: opts.resolve }),
    ...(opts.inventoryEveryMs === undefined ? {} : { inventoryEveryMs: opts.inventoryEveryMs }),
    ...(opts.welcomeWithinMs === undefined ? {} : { welcomeWithinMs: opts.welcomeWithinMs }),
    ...(opts.pingEveryMs === undefined ? {} : { pingEveryMs: opts.pingEveryMs }),
    ...(opts.pingTimeoutMs === undefined ? {} : { pingTimeoutMs: opts.pingTimeoutMs }),
    lookEveryMs: opts.lookEveryMs ?? 20,
  });
  const stopper = new AbortController();
  const running = client.run(stopper.signal);
  const stop = async () => {
    stopper.abort();
    await running;
  };
  onTestFinished(stop);
  return {
    client,
    conditions,
    lines,
    welcomes,
    pending,
    node,
    engines,
    addEvent: event => {
      pending.push(event);
      for (const listener of listeners) listener();
    },
    waits: () => lines.filter(l => l.msg === 'connecting again').map(l => Number(l.in_ms)),
    stop,
  };
}

export function inventory(nodeId: string, bootId: string): Inventory {
  return {
    node_id: nodeId,
    boot_id: bootId,
    agent_version: '0.0.0-test',
    mgmt_addr: null,
    labels: {},
    source: 'none',
    driver_version: null,
    gpus: [],
    nvlink_islands: [],
    hcas: [],
    fabrics: [],
    engines: [],
    certificate: null,
    conditions: [],
  };
}

export const gpuOf = (uuid: string, change: Partial<Gpu> = {}): Gpu => ({
  index: 0,
  uuid,
  name: 'NVIDIA H100',
  pci_bus_id: null,
  memory_total_mib: 81_559,
  memory_free_mib: 81_000,
  foreign_mib: 100,
  compute_capability: '9.0',
  mig: false,
  usable: true,
  reason: null,
  ...change,
});

export const exitOf = (replica: string, seq = 1): EngineEvent => ({
  replica,
  fence: 1_790_000_000_000,
  rank: 0,
  seq,
  kind: 'exited',
  at: '2026-11-30T12:00:00.000Z',
  requested: false,
  failure: {
    code: 'ENGINE_FAILED',
    class: 'retry',
    sentence: 'It ended.',
    exit: { code: 1, signal: null },
    tail: ['last words'],
    evidence: null,
  },
});

export interface Relay {
  port: number;
  /** Swallows everything of the connections it has, for ever: what a NAT does that dropped its mapping. */
  blackhole(): void;
  /** Carries nothing further, for old and new connections, until `resume`: what both ends see of a stopped process. */
  stall(): void;
  resume(): void;
  /** Ends the connections it has. */
  cut(): void;
  /** Whether new connections are closed as they come: the process behind is away. */
  refuse(refused: boolean): void;
  /** Connections taken so far. */
  taken(): number;
}

/** A TCP relay whose connections can go silent. */
export async function relay(toPort: number): Promise<Relay> {
  const pairs = new Set<{ dead: boolean }>();
  const sockets = new Set<net.Socket>();
  let stalled = false;
  let refused = false;
  let taken = 0;
  const server = net.createServer(inbound => {
    if (refused) return void inbound.destroy();
    taken += 1;
    const pair = { dead: false };
    pairs.add(pair);
    const outbound = net.connect(toPort, '127.0.0.1');
    const join = (from: net.Socket, to: net.Socket) => {
      sockets.add(from);
      from.on('data', chunk => void (pair.dead || to.write(chunk)));
      from.on('close', () => void (pair.dead || to.destroy()));
      from.on('error', () => {});
      if (stalled) from.pause();
    };
    join(inbound, outbound);
    join(outbound, inbound);
  });
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  return {
    port: (server.address() as net.AddressInfo).port,
    blackhole: () => {
      for (const pair of pairs) pair.dead = true;
    },
    stall: () => {
      stalled = true;
      for (const socket of sockets) socket.pause();
    },
    resume: () => {
      stalled = false;
      for (const socket of sockets) socket.resume();
    },
    cut: () => {
      for (const socket of sockets) socket.destroy();
    },
    refuse: now => {
      refused = now;
    },
    taken: () => taken,
  };
}

/** A server that a test drives by hand; its connections are cut after the test. */
export async function rawServer<S extends net.Server>(server: S): Promise<number> {
  const sockets = new Set<net.Socket>();
  server.on('connection', socket => {
    sockets.add(socket);
    socket.on('error', () => {});
  });
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  return (server.address() as net.AddressInfo).port;
}
