// The connections to Temporal's frontend. Every agent keeps one long poll open, and HTTP/2 peers limit the streams
// of one connection (proxies in front of Temporal often to 100): what is over the limit would wait without a word.
// So calls are spread over as many connections as are needed.

import * as grpc from '@grpc/grpc-js';

/** Temporal's own limit for one message is 4 MiB; room for headers and for installations that raised it. */
export const MAX_MESSAGE_BYTES = 16 * 1024 * 1024;
/** Below the 100 streams that common proxies allow on a connection. */
const CALLS_PER_CHANNEL = 90;

export interface UpstreamOptions {
  /** host:port of Temporal's frontend. */
  address: string;
  /** Absent: plain. Contents, not paths; without `ca` the public ones are trusted. */
  tls?: { ca?: Buffer; cert?: Buffer; key?: Buffer; serverName?: string };
  /** Sent as a bearer token (Temporal Cloud). */
  apiKey?: string;
}

export interface Upstream {
  /** A unary call on raw bytes. The returned call can be cancelled; `done` is called once. */
  call(
    path: string,
    request: Buffer,
    metadata: grpc.Metadata,
    deadline: grpc.Deadline,
    done: (error: grpc.ServiceError | null, answer?: Buffer) => void,
  ): grpc.ClientUnaryCall;
  close(): void;
}

interface Channel {
  client: grpc.Client;
  calls: number;
}

const identity = (bytes: Buffer): Buffer => bytes;

export function connectUpstream(options: UpstreamOptions): Upstream {
  const { tls } = options;
  const credentials =
    tls === undefined
      ? grpc.credentials.createInsecure()
      : grpc.credentials.createSsl(tls.ca ?? null, tls.key ?? null, tls.cert ?? null);
  const channelOptions: grpc.ClientOptions = {
    'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
    'grpc.max_send_message_length': MAX_MESSAGE_BYTES,
    // An operator's https_proxy is meant for the internet, not for the installation's own Temporal.
    'grpc.enable_http_proxy': 0,
    // Channels to one address would share one connection otherwise.
    'grpc.use_local_subchannel_pool': 1,
    'grpc.keepalive_time_ms': 30_000,
    'grpc.keepalive_timeout_ms': 10_000,
    // The default of 2 minutes keeps agents waiting long after a restarted Temporal is back.
    'grpc.max_reconnect_backoff_ms': 2_000,
    'grpc.initial_reconnect_backoff_ms': 200,
    ...(tls?.serverName === undefined
      ? {}
      : { 'grpc.ssl_target_name_override': tls.serverName, 'grpc.default_authority': tls.serverName }),
  };
  const channels: Channel[] = [];

  function pick(): Channel {
    const free = channels.find(c => c.calls < CALLS_PER_CHANNEL);
    if (free !== undefined) return free;
    const channel = { client: new grpc.Client(options.address, credentials, channelOptions), calls: 0 };
    channels.push(channel);
    return channel;
  }

  return {
    call(path, request, metadata, deadline, done) {
      if (options.apiKey !== undefined) metadata.set('authorization', `Bearer ${options.apiKey}`);
      const channel = pick();
      channel.calls += 1;
      return channel.client.makeUnaryRequest(
        path,
        identity,
        identity,
        request,
        metadata,
        { deadline },
        (error, answer) => {
          channel.calls -= 1;
          done(error, answer);
        },
      );
    },
    close() {
      for (const channel of channels) channel.client.close();
    },
  };
}
