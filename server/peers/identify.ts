// Who may speak as a control plane instance: the certificate of a server (INV-8). A node's certificate comes from the
// same CA and is refused: it would read other nodes' logs and end their sessions. Without TLS only this machine may.
import { status } from '@grpc/grpc-js';
import { isLoopbackHost } from '../../lib/address.js';
import { type PeerCertificateLike, peerIdentity } from '../../lib/tls/identity.js';
import { peerAddress } from '../stream/identify.js';

export interface PeerCall {
  getAuthContext(): { transportSecurityType?: string; sslPeerCertificate?: PeerCertificateLike };
  getPeer(): string;
}

export type Admitted = { ok: true } | { ok: false; code: status; sentence: string };

/** `tls`: this instance takes certificates only. */
export function admitPeer(call: PeerCall, tls: boolean): Admitted {
  const auth = call.getAuthContext();
  if (auth.transportSecurityType !== 'ssl') {
    if (!tls && isLoopbackHost(peerAddress(call.getPeer()))) return { ok: true };
    const sentence =
      'Control plane instances speak to each other with certificates; without tls only on one machine.';
    return { ok: false, code: status.UNAUTHENTICATED, sentence };
  }
  const peer = peerIdentity(auth.sslPeerCertificate);
  if (!peer.ok) return { ok: false, code: status.UNAUTHENTICATED, sentence: `${peer.reason}.` };
  if (peer.kind !== 'server') {
    const sentence = `The certificate is that of node ${peer.id}: only control plane instances may ask this.`;
    return { ok: false, code: status.PERMISSION_DENIED, sentence };
  }
  return { ok: true };
}
