// What an operator or a peer wants to know about a certificate. Node's own parser only, so that the agent can
// use it without loading the issuing library.

import { X509Certificate } from 'node:crypto';
import { type PeerIdentity, peerIdentity, sanEntries } from '../tls/identity.js';

const USAGES: Record<string, string> = {
  '1.3.6.1.5.5.7.3.1': 'serverAuth',
  '1.3.6.1.5.5.7.3.2': 'clientAuth',
};

export interface CertInfo {
  /** The common name; null when there is none or more than one. */
  cn: string | null;
  /** As `DNS:host`, `IP Address:10.0.0.1`, `URI:llmgw:node/gpu-a-01`. */
  sans: string[];
  /** RFC 3339 UTC. */
  not_before: string;
  not_after: string;
  serial: string;
  issuer: string;
  /** Extended key usages by name where known, else by OID; null when the certificate names none (any is allowed). */
  usages: string[] | null;
  identity: PeerIdentity;
}

/** Facts of the first certificate in `pem` (or of one already parsed). Throws when there is none. */
export function certInfo(pem: string | Buffer | X509Certificate): CertInfo {
  const cert = pem instanceof X509Certificate ? pem : new X509Certificate(pem);
  const legacy = cert.toLegacyObject();
  const cn: unknown = legacy.subject?.CN;
  return {
    cn: typeof cn === 'string' ? cn : null,
    sans: sanEntries(cert.subjectAltName ?? '').map(e => `${e.type}:${e.value}`),
    not_before: new Date(cert.validFrom).toISOString(),
    not_after: new Date(cert.validTo).toISOString(),
    serial: cert.serialNumber,
    issuer: cert.issuer.replaceAll('\n', ', '),
    usages: cert.keyUsage?.map(oid => USAGES[oid] ?? oid) ?? null,
    identity: peerIdentity(legacy),
  };
}

/** All certificates of a PEM text, in its order; text around the blocks is ignored. Throws on a broken block. */
export function parseCertificates(pem: string): X509Certificate[] {
  const blocks = pem.match(/-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g) ?? [];
  return blocks.map(block => new X509Certificate(block));
}
