// One connection to the control plane: certificates read anew, its own channel, its own sockets. grpc-js is given
// credentials that make the TLS socket here, for three things that its own don't do: the error keeps its code, an IP
// address is no SNI name, and a socket that hangs before its first SETTINGS frame can be destroyed.
import { isIP, type Socket } from 'node:net';
import tls from 'node:tls';
import { CallCredentials, ChannelCredentials } from '@grpc/grpc-js';
import { formatHostPort, type ServerUrl } from '../../lib/address.js';
import { loadTlsFiles, type TlsFiles, type TlsPaths } from '../../lib/tls/load.js';
import type { AgentClient } from '../../proto/gen/llmgw/v1/Agent.js';
import { agentProto } from '../../proto/load.js';

/** Finds a half-open connection within PING + PING_TIMEOUT, whatever the heartbeat interval is. */
export const PING_EVERY = 10_000;
const PING_TIMEOUT = 5_000;
const MAX_MESSAGE = 16 * 1024 * 1024;

export interface Dialled {
  client: AgentClient;
  /** What was presented; null: plain. */
  own: TlsFiles | null;
  /** The socket's own error, with its code; null: none. */
  error(): unknown;
  /** Closes the channel and destroys its sockets, in whatever state they are. */
  destroy(): void;
}

/** Throws TlsFileError when a certificate file can't be used. Does not connect yet: the first call does. */
export function dial(server: ServerUrl, paths: TlsPaths | null, pingEveryMs = PING_EVERY): Dialled {
  const own = paths === null ? null : loadTlsFiles(paths, 'client');
  const credentials = new DialCredentials(server, own);
  const client = new (agentProto().Agent)(`dns:${formatHostPort(server)}`, credentials, {
    // A proxy named in the environment is for the web; the control plane is dialled directly.
    'grpc.enable_http_proxy': 0,
    'grpc.keepalive_time_ms': pingEveryMs,
    'grpc.keepalive_timeout_ms': PING_TIMEOUT,
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
    destroy: () => {
      client.close();
      credentials.destroySockets();
    },
  };
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
