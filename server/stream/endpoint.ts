// The agents' one address: a grpc server with the stream and the Temporal proxy on it. Its sockets are made here and
// injected, because grpc-js' own listener hides why a TLS handshake failed.
import net from 'node:net';
import tls from 'node:tls';
import {
  Server,
  ServerCredentials,
  type ServiceDefinition,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { formatHostPort, type HostPort, isLoopbackHost } from '../../lib/address.js';
import type { Logger } from '../../lib/log.js';
import { loadTlsFiles, type TlsPaths } from '../../lib/tls/load.js';
import { createRefuser } from './refusal.js';

export interface EndpointService {
  service: ServiceDefinition;
  implementation: UntypedServiceImplementation;
}

export interface AgentEndpointOptions {
  listen: HostPort;
  /** Set: TLS only, every peer needs a certificate. Unset: plain, and then on loopback unless `insecure`. */
  tls?: TlsPaths;
  insecure?: boolean;
  services: EndpointService[];
  log: Logger;
}

export interface AgentEndpoint {
  /** Where it listens; the port is the real one when 0 was asked for. */
  address: HostPort;
  tls: boolean;
  /** Takes no new connection, lets calls end for `graceMs` at most, then cuts them. */
  close(graceMs?: number): Promise<void>;
}

/** Temporal's own limit is 4 MB a message, and a poll's answer may hold more than its payloads. */
const MAX_MESSAGE = 16 * 1024 * 1024;
const HANDSHAKE_WITHIN = 10_000;

const SERVER_OPTIONS = {
  'grpc.max_receive_message_length': MAX_MESSAGE,
  'grpc.max_send_message_length': MAX_MESSAGE,
  // A connection whose peer has vanished without a FIN is cut after 30 s; the hub judges a node's silence earlier.
  // Agents ping every 10 s (agent/stream/dial.ts): grpc-js servers have no minimum interval that this could break.
  'grpc.keepalive_time_ms': 20_000,
  'grpc.keepalive_timeout_ms': 10_000,
  'grpc.max_concurrent_streams': 256,
  'grpc.enable_channelz': 0,
} as const;

/** Throws TlsFileError for a bad file, the system's error (EADDRINUSE, …) when it can't listen. */
export async function startAgentEndpoint(opts: AgentEndpointOptions): Promise<AgentEndpoint> {
  const { listen, log } = opts;
  if (opts.tls === undefined && !opts.insecure && !isLoopbackHost(listen.host)) {
    throw new Error(
      `listen ${formatHostPort(listen)} is not on loopback and has no tls: set tls, or insecure: true to let agents in unproven.`,
    );
  }
  const grpc = new Server(SERVER_OPTIONS);
  for (const { service, implementation } of opts.services) grpc.addService(service, implementation);
  const injector = grpc.createConnectionInjector(ServerCredentials.createInsecure());
  const sockets = new Set<net.Socket>();
  const track = (socket: net.Socket) => {
    sockets.add(socket);
    socket.on('error', () => {}); // its 'close' follows, and whoever uses it hears that
    socket.once('close', () => sockets.delete(socket));
  };

  let listener: net.Server;
  if (opts.tls === undefined) {
    listener = net.createServer({ noDelay: true }, socket => {
      track(socket);
      injector.injectConnection(socket);
    });
  } else {
    const files = loadTlsFiles(opts.tls, 'server');
    for (const warning of files.warnings) log.warn(warning);
    const refuse = createRefuser(log);
    const server = tls.createServer(
      {
        ca: files.ca,
        cert: files.cert,
        key: files.key,
        requestCert: true,
        // Unverified peers are answered by `refuse`, not cut: see there.
        rejectUnauthorized: false,
        ALPNProtocols: ['h2'],
        minVersion: 'TLSv1.2',
        handshakeTimeout: HANDSHAKE_WITHIN,
        noDelay: true,
      },
      socket => {
        track(socket);
        if (socket.authorized) injector.injectConnection(socket);
        else refuse(socket);
      },
    );
    server.on('tlsClientError', (error, socket) => {
      // Port scans and health checks of load balancers connect and leave: not worth a line each.
      const left = (error as NodeJS.ErrnoException).code === 'ECONNRESET';
      log[left ? 'debug' : 'info'](
        { peer: socket.remoteAddress, err: error.message },
        'a TLS handshake failed',
      );
      socket.destroy();
    });
    listener = server;
  }

  await new Promise<void>((resolve, reject) => {
    listener.once('error', reject);
    listener.listen({ host: listen.host, port: listen.port, backlog: 1_024 }, () => {
      listener.removeListener('error', reject);
      resolve();
    });
  });
  listener.on('error', error => log.error({ err: error }, 'the agents address failed to take a connection'));
  const bound = listener.address() as net.AddressInfo;

  return {
    address: { host: listen.host, port: bound.port },
    tls: opts.tls !== undefined,
    close: async (graceMs = 1_000) => {
      listener.close();
      await new Promise<void>(resolve => {
        const timer = setTimeout(resolve, graceMs);
        grpc.tryShutdown(() => {
          clearTimeout(timer);
          resolve();
        });
      });
      grpc.forceShutdown();
      for (const socket of sockets) socket.destroy();
    },
  };
}
