// Which node is calling: its certificate's identity (INV-8), or, where the control plane serves without TLS, what
// the agent says of itself.

import type * as grpc from '@grpc/grpc-js';
import { checkNodeId, NODE_ID_MAX } from '../../contracts/names.js';
import { NODE_ID_HEADER, peerIdentity } from '../../lib/tls/identity.js';

/** Who may call without TLS, and is then believed: nobody (false), this machine, or anyone. */
export type InsecureIdentity = false | 'loopback' | 'any';

export type CallerIdentity =
  | { ok: true; nodeId: string }
  | { ok: false; code: 'UNAUTHENTICATED' | 'PERMISSION_DENIED'; reason: string };

type AnyCall = Pick<grpc.ServerUnaryCall<unknown, unknown>, 'getAuthContext' | 'getPeer' | 'metadata'>;

export function identifyNode(call: AnyCall, insecure: InsecureIdentity): CallerIdentity {
  const auth = call.getAuthContext();
  if (auth.transportSecurityType !== 'ssl' && insecure !== false) return unproven(call, insecure);
  const peer = peerIdentity(auth.sslPeerCertificate);
  if (!peer.ok) return { ok: false, code: 'UNAUTHENTICATED', reason: peer.reason };
  if (peer.kind !== 'node') {
    const reason = `the certificate is that of server ${peer.id}: only nodes run activities through the control plane`;
    return { ok: false, code: 'PERMISSION_DENIED', reason };
  }
  return { ok: true, nodeId: peer.id };
}

function unproven(call: AnyCall, insecure: 'loopback' | 'any'): CallerIdentity {
  if (insecure === 'loopback' && !isLoopback(call.getPeer())) {
    const reason = `${call.getPeer()} connected without TLS: that is allowed from this machine alone`;
    return { ok: false, code: 'UNAUTHENTICATED', reason };
  }
  const [id] = call.metadata.get(NODE_ID_HEADER);
  if (typeof id !== 'string') {
    return { ok: false, code: 'UNAUTHENTICATED', reason: `a call without TLS must carry ${NODE_ID_HEADER}` };
  }
  const fault = checkNodeId(id.slice(0, NODE_ID_MAX + 1));
  if (fault !== null) return { ok: false, code: 'UNAUTHENTICATED', reason: fault };
  return { ok: true, nodeId: id };
}

/** grpc-js writes peers as address:port, IPv6 without brackets or with. */
const isLoopback = (peer: string): boolean =>
  /^(?:127\.[\d.]+|\[?(?:::1|::ffff:127\.[\d.]+)\]?):\d+$/.test(peer);
