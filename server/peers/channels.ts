// Connections to other control plane instances: mTLS with this server's own certificate. The other side is known by its
// certificate's identity (a server's), not by a host name: `peer_addr` is often an address that the certificate made
// for agents doesn't list.
import { ChannelCredentials } from '@grpc/grpc-js';
import { peerIdentity } from '../../lib/tls/identity.js';
import { loadTlsFiles, type TlsPaths } from '../../lib/tls/load.js';
import type { PeerClient } from '../../proto/gen/llmgw/v1/Peer.js';
import { peerProto } from '../../proto/load.js';

/** A connection is used this long: a certificate that was replaced is in use well before the old one ends. */
const RENEW_AFTER = 600_000;
const MAX_MESSAGE = 16 * 1024 * 1024;

interface Kept {
  client: PeerClient;
  since: number;
}

export class PeerChannels {
  private readonly kept = new Map<string, Kept>();

  constructor(private readonly tls: TlsPaths | null) {}

  /** Throws TlsFileError when this server's own files can't be used. */
  to(addr: string): PeerClient {
    const now = performance.now();
    const known = this.kept.get(addr);
    if (known !== undefined && now - known.since < RENEW_AFTER) return known.client;
    const client = this.dial(addr);
    this.drop(addr);
    this.kept.set(addr, { client, since: now });
    return client;
  }

  /** After a failure: the next call dials at once, where a kept channel would wait out its back-off. */
  drop(addr: string, client?: PeerClient): void {
    const known = this.kept.get(addr);
    if (known === undefined || (client !== undefined && known.client !== client)) return;
    this.kept.delete(addr);
    known.client.close();
  }

  close(): void {
    for (const addr of [...this.kept.keys()]) this.drop(addr);
  }

  private dial(addr: string): PeerClient {
    return new (peerProto().Peer)(`dns:${addr}`, this.credentials(), {
      'grpc.enable_http_proxy': 0,
      // Only the identity counts, and an address would be no SNI name.
      'grpc.ssl_target_name_override': 'llmgw-peer',
      'grpc.keepalive_time_ms': 10_000,
      'grpc.keepalive_timeout_ms': 5_000,
      'grpc.max_receive_message_length': MAX_MESSAGE,
      'grpc.max_send_message_length': MAX_MESSAGE,
      'grpc.use_local_subchannel_pool': 1,
      'grpc.enable_retries': 0,
      'grpc.service_config_disable_resolution': 1,
      'grpc.enable_channelz': 0,
    });
  }

  private credentials(): ChannelCredentials {
    if (this.tls === null) return ChannelCredentials.createInsecure();
    const { ca, key, cert } = loadTlsFiles(this.tls, 'client');
    return ChannelCredentials.createSsl(ca, key, cert, {
      checkServerIdentity: (_host, peer) => {
        const who = peerIdentity(peer);
        if (!who.ok) return new Error(who.reason);
        if (who.kind !== 'server') return new Error(`the certificate is that of node ${who.id}`);
        return undefined;
      },
    });
  }
}
