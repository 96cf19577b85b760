// Peers whose certificate doesn't verify. Left to Node, the server would see only a reset and the agent only a closed
// socket (with TLS 1.3 even after its handshake has succeeded): so such a connection is taken as far as one answer,
// which says why, and never reaches a service.
import http2 from 'node:http2';
import type { TLSSocket } from 'node:tls';
import { status } from '@grpc/grpc-js';
import type { Logger } from '../../lib/log.js';
import type { TlsFaultKind } from '../../lib/tls/faults.js';
import { refusalOf } from '../../lib/tls/refusal-words.js';

/** Time for the peer to send its call and read the answer. */
const ANSWER_WITHIN = 5_000;

/** Takes sockets whose handshake is done and whose `authorized` is false. */
export function createRefuser(log: Logger): (socket: TLSSocket) => void {
  const server = http2.createServer();
  server.on('sessionError', () => {});
  return socket => {
    const cert = socket.getPeerCertificate();
    const presented = Object.keys(cert).length > 0;
    // Node types this as an Error; it is the code of OpenSSL's verdict.
    const code = String(socket.authorizationError ?? 'UNKNOWN');
    const reason = presented ? code : 'NO_CERTIFICATE';
    const sentence = refusalOf(reason);
    log.warn(
      {
        peer: socket.remoteAddress,
        reason,
        subject: presented ? cert.subject?.CN : undefined,
        serial: presented ? cert.serialNumber : undefined,
        not_after: presented ? cert.valid_to : undefined,
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

export interface HandshakeFault {
  /** Port scans and health checks of load balancers connect and leave: not worth a line each. */
  level: 'debug' | 'info' | 'warn';
  fault?: TlsFaultKind;
  sentence: string;
}

const refusedUs = (why: string) => `a peer refused this control plane's certificate: ${why}`;

/** By what OpenSSL says; the alerts are the peer's words about our certificate. */
const HANDSHAKE_FAULTS: [RegExp, HandshakeFault][] = [
  [/ECONNRESET|socket hang up/, { level: 'debug', sentence: 'a TLS handshake failed' }],
  [
    /http request|wrong version number|packet length too long|unsupported protocol|unknown protocol/i,
    {
      level: 'info',
      fault: 'not_tls',
      sentence: 'a peer does not speak TLS here: an agent without tls, or a health check',
    },
  ],
  [
    /alert unknown ca|alert number 48\b/i,
    { level: 'warn', fault: 'unknown_ca', sentence: refusedUs('it does not know the CA that issued it') },
  ],
  [
    /alert certificate expired|alert number 45\b/i,
    { level: 'warn', fault: 'expired', sentence: refusedUs("it has expired by that machine's clock") },
  ],
  [
    /alert unsupported certificate|alert number 43\b/i,
    { level: 'warn', fault: 'wrong_usage', sentence: refusedUs('it may not be used by a server') },
  ],
  [
    /alert (?:bad certificate|certificate unknown|certificate revoked)|alert number 4[246]\b/i,
    {
      level: 'warn',
      fault: 'refused_by_peer',
      sentence: refusedUs('it is for other host names, or is not valid by its clock'),
    },
  ],
];

/** What a handshake that failed says to the operator. */
export function handshakeFault(error: Error): HandshakeFault {
  const text = `${(error as NodeJS.ErrnoException).code ?? ''} ${error.message}`;
  const known = HANDSHAKE_FAULTS.find(([pattern]) => pattern.test(text));
  return known?.[1] ?? { level: 'info', sentence: 'a TLS handshake failed' };
}
