// One connection to the control plane: its own channel, its own sockets, the certificates that it is given. grpc-js is given
// credentials that make the TLS socket here, for three things that its own don't do: the error keeps its code, an IP
// address is no SNI name, and a socket that hangs before its first SETTINGS frame can be destroyed.
import type { LookupAddress } from 'node:dns';
import { isIP, type Socket } from 'node:net';
import tls from 'node:tls';
import { CallCredentials, ChannelCredentials, connectivityState } from '@grpc/grpc-js';
import { formatHostPort, type ServerUrl } from '../../lib/address.js';
import type { TlsFiles } from '../../lib/tls/load.js';
import type { AgentClient } from '../../proto/gen/llmgw/v1/Agent.js';
import { agentProto } from '../../proto/load.js';

/** Finds a half-open connection within PING + PING_TIMEOUT, whatever the heartbeat interval is. */
export const PING_EVERY = 10_000;
export const PING_TIMEOUT = 5_000;
const MAX_MESSAGE = 16 * 1024 * 1024;

export interface Dialled {
  client: AgentClient;
  /** What was presented; null: plain. */
  own: TlsFiles | null;
  /** The socket's own error, with its code; null: none. */
  error(): unknown;
  /**
   * Calls back when the connection takes no more calls, once, after it was ready: the peer sent GOAWAY, or it is gone
   * (then the call's status follows at once).
   */
  onLeaving(listener: () => void): void;
  /** Closes the channel and destroys its sockets, in whatever state they are. */
  destroy(): void;
}

/** How often the peer is asked for a sign of life, and how long it may take, ms. */
export interface Pings {
  everyMs: number;
  timeoutMs: number;
}

/**
 * `own`: what to present; null: plain. `at`: addresses of the server's name in the order in which they are tried.
 * Does not connect yet: the first call does.
 */
export function dial(server: ServerUrl, own: TlsFiles | null, pings: Pings, at?: LookupAddress[]): Dialled {
  const credentials = new DialCredentials(server, own);
  const client = new (agentProto().Agent)(targetOf(server, at ?? []), credentials, {
    // A proxy named in the environment is for the web; the control plane is dialled directly.
    'grpc.enable_http_proxy': 0,
    'grpc.keepalive_time_ms': pings.everyMs,
    'grpc.keepalive_timeout_ms': pings.timeoutMs,
    'grpc.keepalive_permit_without_calls': 1,
    'grpc.max_receive_message_length': MAX_MESSAGE,
    'grpc.max_send_message_length': MAX_MESSAGE,
    // One channel is one connection: nothing shared, nothing retried behind our back, no TXT record asked.
    'grpc.use_local_subchannel_pool': 1,
    'grpc.enable_retries': 0,
    'grpc.service_config_disable_resolution': 1,
    'grpc.enable_channelz': 0,
  });
  return {
    client,
    own,
    error: () => credentials.lastError,
    onLeaving: listener =>
      client
        .getChannel()
        .watchConnectivityState(connectivityState.READY, Number.POSITIVE_INFINITY, () => listener()),
    destroy: () => {
      client.close();
      credentials.destroySockets();
    },
  };
}

/** A target of one family: addresses of the other one come first when these were left (lib/resolve.ts). */
function targetOf(server: ServerUrl, at: LookupAddress[]): string {
  const [first] = at;
  if (first === undefined || at.length === 1) return `dns:${formatHostPort(server)}`;
  const same = at.filter(a => a.family === first.family);
  const list = same.map(a => formatHostPort({ host: a.address, port: server.port }));
  return `ipv${first.family}:${list.join(',')}`;
}

type Connector = ReturnType<ChannelCredentials['_createSecureConnector']>;

class DialCredentials extends ChannelCredentials {
  lastError: unknown = null;
  private readonly sockets = new Set<Socket>();
  private destroyed = false;

  constructor(
    private readonly server: ServerUrl,
    private readonly own: TlsFiles | null,
  ) {
    super();
  }

  _isSecure(): boolean {
    return this.own !== null;
  }

  _equals(other: ChannelCredentials): boolean {
    return this === other;
  }

  _createSecureConnector(): Connector {
    return {
      connect: socket => this.connect(socket),
      waitForReady: async () => {},
      getCallCredentials: () => CallCredentials.createEmpty(),
      destroy: () => {},
    };
  }

  destroySockets(): void {
    this.destroyed = true;
    for (const socket of this.sockets) socket.destroy();
  }

  private connect(raw: Socket): ReturnType<Connector['connect']> {
    this.track(raw);
    if (this.own === null) return Promise.resolve({ socket: raw, secure: false });
    const { host } = this.server;
    const socket = tls.connect({
      socket: raw,
      host,
      servername: isIP(host) === 0 ? host : '',
      ca: this.own.ca,
      cert: this.own.cert,
      key: this.own.key,
      ALPNProtocols: ['h2'],
      minVersion: 'TLSv1.2',
    });
    this.track(socket);
    return new Promise((resolve, reject) => {
      socket.once('secureConnect', () => resolve({ socket, secure: true }));
      socket.once('error', reject);
      socket.once('close', () =>
        reject(this.lastError ?? new Error('the connection was closed in its TLS handshake')),
      );
    });
  }

  private track(socket: Socket): void {
    this.sockets.add(socket);
    socket.on('error', error => {
      this.lastError = error;
    });
    socket.once('close', () => this.sockets.delete(socket));
    if (this.destroyed) socket.destroy();
  }
}
