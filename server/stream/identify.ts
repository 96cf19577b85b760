// Who is at the other end of a call (INV-8): the certificate's name, never what the peer claims. Where there is no
// TLS the claim is all there is, and the node is marked unproven.
import { type ServerDuplexStream, status } from '@grpc/grpc-js';
import { checkNodeId } from '../../contracts/names.js';
import { peerIdentity } from '../../lib/tls/identity.js';

export type Identified =
  | { ok: true; nodeId: string; unproven: boolean }
  | { ok: false; code: status; sentence: string };

/** `claim`: Hello's node_id. `tls`: this endpoint takes only certificates. */
export function identify(
  call: ServerDuplexStream<unknown, unknown>,
  claim: string,
  tls: boolean,
): Identified {
  if (claim === '') return { ok: false, code: status.INVALID_ARGUMENT, sentence: 'Hello has no node_id.' };
  const auth = call.getAuthContext();
  if (auth.transportSecurityType !== 'ssl') {
    const fault = checkNodeId(claim);
    if (!tls && fault !== null)
      return { ok: false, code: status.INVALID_ARGUMENT, sentence: `${capital(fault)}.` };
    if (!tls) return { ok: true, nodeId: claim, unproven: true };
    return {
      ok: false,
      code: status.UNAUTHENTICATED,
      sentence: 'This address takes connections with a certificate only.',
    };
  }
  const peer = peerIdentity(auth.sslPeerCertificate);
  if (!peer.ok) return { ok: false, code: status.UNAUTHENTICATED, sentence: `${capital(peer.reason)}.` };
  if (peer.kind !== 'node') {
    const sentence = `The certificate of "${peer.id}" is a server's, and the stream is for nodes (claimed: "${claim}").`;
    return { ok: false, code: status.PERMISSION_DENIED, sentence };
  }
  if (peer.id !== claim.toLowerCase()) {
    const sentence = `The certificate is "${peer.id}"'s, but the agent says that it is "${claim}": node_id must be the certificate's common name.`;
    return { ok: false, code: status.PERMISSION_DENIED, sentence };
  }
  return { ok: true, nodeId: peer.id, unproven: false };
}

const capital = (s: string): string => s.charAt(0).toUpperCase() + s.slice(1);

/** `10.0.0.5:41234`, `[::1]:41234`, `::ffff:10.0.0.5:41234` → the address alone. */
export function peerAddress(peer: string): string {
  const host = peer.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1');
  return host.replace(/^::ffff:(?=\d+\.)/, '');
}
