// The agents' one address: a grpc server with the stream and the Temporal proxy on it. Its sockets are made here and
// injected, because grpc-js' own listener hides why a TLS handshake failed.
import { constants } from 'node:crypto';
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
import { datesSentence, TlsKeeper, watchTls } from '../../lib/tls/keeper.js';
import type { TlsFiles, TlsPaths } from '../../lib/tls/load.js';
import { createRefuser, handshakeFault } from './refusal.js';

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
  /** How often the certificate files are looked at, ms; default 2 s. */
  lookEveryMs?: number;
  /** New connections get this pair from now on: for whoever shows the same certificate elsewhere. */
  onRenewed?: (files: TlsFiles) => void;
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

/** What a listener takes of the files; setSecureContext needs all of it again. */
const secureContext = ({ ca, cert, key }: TlsFiles) => ({
  ca,
  cert,
  key,
  minVersion: 'TLSv1.2' as const,
  // No resumption: a resumed session would carry the verdict of its first handshake past the certificate's end.
  secureOptions: constants.SSL_OP_NO_TICKET,
});

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
  let unwatch = () => {};
  if (opts.tls === undefined) {
    listener = net.createServer({ noDelay: true }, socket => {
      track(socket);
      injector.injectConnection(socket);
    });
  } else {
    const keeper = new TlsKeeper(opts.tls, 'server');
    const files = keeper.current();
    for (const warning of files.warnings) log.warn(warning);
    const refuse = createRefuser(log);
    const server = tls.createServer(
      {
        ...secureContext(files),
        requestCert: true,
        // Unverified peers are answered by `refuse`, not cut: see there.
        rejectUnauthorized: false,
        ALPNProtocols: ['h2'],
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
      const { level, fault, sentence } = handshakeFault(error);
      log[level]({ peer: socket.remoteAddress, fault, err: error.message }, sentence);
      socket.destroy();
    });
    unwatch = watchTls(
      keeper,
      followFiles(keeper, log, now => {
        server.setSecureContext(secureContext(now));
        opts.onRenewed?.(now);
      }),
      opts.lookEveryMs,
    );
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
      unwatch();
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

/** Takes a new pair for new connections, and says each fault and each end that is near once. */
function followFiles(
  keeper: TlsKeeper,
  log: Logger,
  take: (files: TlsFiles) => void,
): (changed: boolean) => void {
  let told: string | null = null;
  return changed => {
    const { files, problem } = keeper;
    if (files === null) return;
    if (changed) {
      take(files);
      log.info(
        { not_after: files.info.not_after },
        `${keeper.paths.cert} has changed: new connections get it`,
      );
      for (const warning of files.warnings) log.warn(warning);
    }
    const now =
      problem !== null
        ? `${problem.message} New connections get the certificate of before, good until ${files.info.not_after}.`
        : datesSentence(keeper.paths, files);
    if (now !== null && now !== told) log.error({ fault: problem?.code }, now);
    told = now;
  };
}
