// Who a peer is: the common name of its certificate, confirmed by one SAN URI (INV-8).
// Strict on purpose: anything ambiguous (two names, other characters, no or several URIs) is refused in a
// sentence, never normalised, because a normalised name could be another node's.

import { checkNodeId, NODE_ID_MAX } from '../../contracts/names.js';

/** Metadata key by which an agent names itself where there is no TLS; ignored on TLS connections. */
export const NODE_ID_HEADER = 'llmgw-node-id';

const URI = /^llmgw:(node|server)\/(.*)$/;

export type PeerKind = 'node' | 'server';
export type PeerIdentity = { ok: true; kind: PeerKind; id: string } | { ok: false; reason: string };

/** What Node's `getPeerCertificate()` and grpc-js' `getAuthContext().sslPeerCertificate` have in common. */
export interface PeerCertificateLike {
  subject?: unknown;
  subjectaltname?: unknown;
}

/** The SAN URI that a certificate of this kind and id carries. */
export const identityUri = (kind: PeerKind, id: string): string => `llmgw:${kind}/${id}`;

/** The entries of a subjectAltName text as Node writes it; values that Node quotes (odd characters) are unquoted. */
export function sanEntries(text: string): { type: string; value: string }[] {
  const entries: { type: string; value: string }[] = [];
  const pattern = /([A-Za-z ]+):("(?:[^"\\]|\\.)*"|[^,]*)(?:, |$)/y;
  for (let m = pattern.exec(text); m !== null && m[0] !== ''; m = pattern.exec(text)) {
    const raw = m[2] ?? '';
    entries.push({ type: m[1] ?? '', value: raw.startsWith('"') ? unquote(raw) : raw });
  }
  return entries;
}

/** The identity in a peer's certificate that TLS has verified already, or the sentence that refuses it. */
export function peerIdentity(cert: PeerCertificateLike | null | undefined): PeerIdentity {
  if (cert === null || cert === undefined) return refuse('the peer presented no certificate');
  const cn = (cert.subject as { CN?: unknown } | undefined)?.CN;
  if (Array.isArray(cn)) {
    return refuse(
      `the certificate is ambiguous: it has ${cn.length} common names (${cn.map(show).join(', ')})`,
    );
  }
  if (typeof cn !== 'string' || cn === '') return refuse('the certificate has no common name');
  const fault = checkNodeId(cn.slice(0, NODE_ID_MAX + 1));
  if (fault !== null) return refuse(`the certificate's common name can't be used: ${fault}`);
  const san = typeof cert.subjectaltname === 'string' ? cert.subjectaltname : '';
  const uris = sanEntries(san).filter(e => e.type === 'URI' && e.value.startsWith('llmgw:'));
  const [uri, ...more] = uris;
  if (uri === undefined) {
    return refuse(
      `the certificate of ${show(cn)} has no SAN URI ${identityUri('node', cn)} or ${identityUri('server', cn)}`,
    );
  }
  if (more.length > 0) {
    return refuse(`the certificate of ${show(cn)} is ambiguous: it has ${uris.length} llmgw: SAN URIs`);
  }
  const parts = URI.exec(uri.value);
  if (parts === null || parts[2] !== cn) {
    return refuse(`the certificate's common name is ${show(cn)} but its SAN URI says ${show(uri.value)}`);
  }
  return { ok: true, kind: parts[1] as PeerKind, id: cn };
}

const refuse = (reason: string): PeerIdentity => ({ ok: false, reason });
/** Quoted, escaped and bounded: the text is the peer's and goes into logs. */
const show = (value: unknown): string => JSON.stringify(String(value).slice(0, 80));

function unquote(raw: string): string {
  try {
    return String(JSON.parse(raw));
  } catch {
    return raw; // not JSON after all: the quotes make it match nothing
  }
}
