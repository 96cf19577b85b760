// Peers whose certificate doesn't verify. Left to Node, the server would see only a reset and the agent only a closed
// socket (with TLS 1.3 even after its handshake has succeeded): so such a connection is taken as far as one answer,
// which says why, and never reaches a service.
import http2 from 'node:http2';
import type { TLSSocket } from 'node:tls';
import { status } from '@grpc/grpc-js';
import type { Logger } from '../../lib/log.js';

/** Time for the peer to send its call and read the answer. */
const ANSWER_WITHIN = 5_000;

const NO_TRUST = 'it does not lead to a CA that this control plane trusts, or its chain is incomplete';
const WHY: Record<string, string> = {
  INVALID_PURPOSE: 'it may not be used by a client (unsuitable certificate purpose: clientAuth is missing)',
  CERT_HAS_EXPIRED: 'it has expired',
  CERT_NOT_YET_VALID: 'it is not valid yet',
  SELF_SIGNED_CERT_IN_CHAIN: NO_TRUST,
  DEPTH_ZERO_SELF_SIGNED_CERT: NO_TRUST,
  UNABLE_TO_GET_ISSUER_CERT: NO_TRUST,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: NO_TRUST,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: NO_TRUST,
  CERT_SIGNATURE_FAILURE: NO_TRUST,
};

/** Takes sockets whose handshake is done and whose `authorized` is false. */
export function createRefuser(log: Logger): (socket: TLSSocket) => void {
  const server = http2.createServer();
  server.on('sessionError', () => {});
  return socket => {
    const cert = socket.getPeerCertificate();
    const presented = Object.keys(cert).length > 0;
    // Node types this as an Error; it is the code of OpenSSL's verdict.
    const code = String(socket.authorizationError ?? 'UNKNOWN');
    const sentence = presented
      ? `certificate refused by control plane: ${WHY[code] ?? code}`
      : 'the control plane takes connections with a client certificate only, and none was presented';
    log.warn(
      {
        peer: socket.remoteAddress,
        reason: presented ? code : 'NO_CERTIFICATE',
        subject: presented ? cert.subject?.CN : undefined,
        serial: presented ? cert.serialNumber : undefined,
      },
      sentence,
    );
    const timer = setTimeout(() => socket.destroy(), ANSWER_WITHIN);
    timer.unref();
    socket.once('close', () => clearTimeout(timer));
    // 'session' is emitted within emit('connection'): the listener is this socket's.
    server.once('session', session => {
      session.on('error', () => {});
      session.on('stream', stream => {
        stream.on('error', () => {});
        stream.respond(
          {
            ':status': 200,
            'content-type': 'application/grpc+proto',
            'grpc-status': String(status.UNAUTHENTICATED),
            // As grpc-js does: its clients decode nothing that encodeURI leaves as it is, such as commas.
            'grpc-message': encodeURI(sentence),
          },
          { endStream: true },
        );
        session.close();
      });
    });
    server.emit('connection', socket);
  };
}
