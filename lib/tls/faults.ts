// Tells TLS failures apart for the log of whoever dialled. The errors come from three places (Node's tls, grpc-js,
// which keeps only the text, and the Rust core of the Temporal worker), so texts are matched, not only codes.

import type { TlsFiles } from './load.js';
import { readRefusal } from './refusal-words.js';

export type TlsFaultKind =
  | 'unknown_ca'
  | 'expired'
  | 'not_yet_valid'
  | 'wrong_name'
  | 'wrong_usage'
  | 'no_certificate'
  | 'refused_by_peer'
  | 'not_tls'
  | 'tls_only';

export interface TlsFault {
  kind: TlsFaultKind;
  /** One sentence for a log: what, whose certificate, what to do. */
  sentence: string;
}

export interface TlsFaultContext {
  /** The address that was dialled, as the configuration has it. */
  server: string;
  /** The CA file that the server is checked against. */
  caFile: string;
  /** Our own certificate's file. */
  certFile: string;
  /** What was presented: lets a bare close be explained by what is wrong with it. */
  own?: TlsFiles;
}

interface Row {
  kind: TlsFaultKind;
  match: RegExp;
  say: (c: TlsFaultContext) => string;
}

// Alerts come first: they are the peer's judgement of *our* certificate, the rest is ours of the peer's.
const ROWS: Row[] = [
  {
    kind: 'no_certificate',
    match: /alert certificate required|alert number 116|CERTIFICATE_REQUIRED|CertificateRequired/i,
    say: c => `${c.server} asks for a client certificate and got none: set tls.cert and tls.key.`,
  },
  {
    kind: 'unknown_ca',
    match: /alert unknown ca\b|alert number 48\b|AlertReceived\(UnknownCA\)/i,
    say: c => `${c.server} refused our certificate ${c.certFile}: it does not know the CA that issued it.`,
  },
  {
    kind: 'expired',
    match: /alert certificate expired|alert number 45\b|AlertReceived\(CertificateExpired\)/i,
    say: c => `${c.server} refused our certificate ${c.certFile}: it has expired by that machine's clock.`,
  },
  {
    kind: 'wrong_usage',
    match: /alert unsupported certificate|alert number 43\b|AlertReceived\(UnsupportedCertificate\)/i,
    say: c =>
      `${c.server} refused our certificate ${c.certFile}: it may not be used by a client (clientAuth is missing).`,
  },
  {
    kind: 'refused_by_peer',
    match:
      /alert bad certificate|alert certificate (?:unknown|revoked)|alert number 4[246]\b|AlertReceived\(/i,
    say: c => `${c.server} refused our certificate ${c.certFile}.`,
  },
  {
    kind: 'wrong_name',
    match: /ERR_TLS_CERT_ALTNAME_INVALID|does not match certificate's altnames|NotValidForName/,
    say: c =>
      `The certificate of ${c.server} is for other host names: dial one that it has, or issue it again with --hosts.`,
  },
  {
    kind: 'not_yet_valid',
    match: /CERT_NOT_YET_VALID|certificate is not yet valid|NotValidYet/,
    say: c =>
      `The certificate of ${c.server} is not valid yet by this machine's clock: compare the clocks of both.`,
  },
  {
    kind: 'expired',
    match: /CERT_HAS_EXPIRED|certificate has expired|InvalidCertificate\(Expired/,
    say: c => `The certificate of ${c.server} has expired by this machine's clock: issue it again.`,
  },
  {
    kind: 'wrong_usage',
    match: /INVALID_PURPOSE|unsuitable certificate purpose|InvalidPurpose/,
    say: c =>
      `The certificate of ${c.server} may not be used by a server (serverAuth is missing): issue it with issue-server.`,
  },
  {
    kind: 'unknown_ca',
    match: /SELF_SIGNED_CERT_IN_CHAIN|self-signed certificate in certificate chain/,
    say: c => `The certificate of ${c.server} comes from a CA that is not in ${c.caFile}.`,
  },
  {
    // A leaf without its intermediate and a leaf of another CA look the same from here: both are named.
    kind: 'unknown_ca',
    match:
      /UNABLE_TO_VERIFY_LEAF_SIGNATURE|unable to verify the first certificate|UNABLE_TO_GET_ISSUER_CERT|unable to get (?:local )?issuer certificate|SELF_SIGNED_CERT|self-signed certificate|CERT_SIGNATURE_FAILURE|certificate signature failure|UnknownIssuer|BadSignature/,
    say: c =>
      `The certificate of ${c.server} does not lead to a CA in ${c.caFile}: another CA issued it, or its chain is incomplete (then append the intermediate after the leaf in the server's certificate file).`,
  },
  {
    kind: 'not_tls',
    match:
      /WRONG_VERSION_NUMBER|wrong version number|packet length too long|InvalidContentType|corrupt message/,
    say: c => `${c.server} does not speak TLS: check the port, and that the server has its tls section set.`,
  },
];

/**
 * A Node server that dislikes a client's certificate says nothing: it completes the handshake and closes. grpc-js
 * then has only "Failed to connect". A refused connection or an unknown host never looks like this.
 */
const BARE_CLOSE =
  /ECONNRESET|ConnectionReset|BrokenPipe|UnexpectedEof|Canceled, "connection closed"|socket disconnected before secure|Failed to connect/;

/** What a failed connection's error says about TLS; null when it isn't a TLS matter. */
export function tlsFault(error: unknown, context: TlsFaultContext): TlsFault | null {
  const text = textOf(error);
  const refusal = readRefusal(text);
  if (refusal !== null) {
    const sentence = `${context.server} refused our certificate ${context.certFile}: ${refusal.words}.`;
    return { kind: refusal.kind, sentence };
  }
  const row = ROWS.find(r => r.match.test(text));
  if (row !== undefined) return { kind: row.kind, sentence: row.say(context) };
  if (!BARE_CLOSE.test(text)) return null;
  const why = context.own === undefined ? null : ownFault(context.own);
  const { server, certFile } = context;
  const sentence =
    why === null
      ? `${server} closed the connection before its first answer: it may have refused our certificate ${certFile}, its log says why.`
      : `${server} closed the connection on seeing our certificate ${certFile}: ${why}.`;
  return { kind: 'refused_by_peer', sentence };
}

/**
 * What a failed connection without TLS says about the server wanting it; null when it isn't that. A server of ours
 * closes on the first bytes that are no handshake, an OpenSSL one sends an alert, which is no HTTP/2.
 */
export function plainFault(error: unknown, server: string): TlsFault | null {
  const text = textOf(error);
  if (!BARE_CLOSE.test(text) && !PLAIN_ANSWERED_BY_TLS.test(text)) return null;
  const sentence = `${server} closed the connection before its first answer: it may take TLS alone, then set tls.ca, tls.cert and tls.key, and https:// in server.`;
  return { kind: 'tls_only', sentence };
}

const PLAIN_ANSWERED_BY_TLS = /Protocol error|bad http\/?2? response|INTERNAL_ERROR from nghttp2/i;

/** The sentence of {@link tlsFault} alone. */
export function tlsFaultSentence(error: unknown, context: TlsFaultContext): string | null {
  return tlsFault(error, context)?.sentence ?? null;
}

function ownFault(own: TlsFiles): string | null {
  if (Date.parse(own.info.not_after) < Date.now()) return `it expired on ${own.info.not_after}`;
  if (own.info.usages !== null && !own.info.usages.includes('clientAuth')) {
    return `it may not be used by a client (its usage is ${own.info.usages.join(', ')})`;
  }
  if (!own.info.identity.ok) return own.info.identity.reason;
  return own.chainComplete
    ? null
    : 'its chain is incomplete or of another CA: append the intermediate after the leaf';
}

function textOf(error: unknown): string {
  const parts: string[] = [];
  for (let at: unknown = error, depth = 0; at !== undefined && at !== null && depth < 5; depth += 1) {
    const e = at as { code?: unknown; message?: unknown; details?: unknown; cause?: unknown };
    parts.push(
      String(e.code ?? ''),
      String(e.message ?? (typeof at === 'string' ? at : '')),
      String(e.details ?? ''),
    );
    at = e.cause;
  }
  return parts.join('\n');
}
