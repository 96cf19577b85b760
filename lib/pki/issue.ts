// Issues the certificates of servers and nodes from the CA in one directory, and renews them in place.

import './reflect-metadata.js';
import { randomBytes, X509Certificate } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { join } from 'node:path';
import * as x509 from '@peculiar/x509';
import { checkNodeId } from '../../contracts/names.js';
import { nodeSecret } from '../engine-key.js';
import { identityUri, type PeerKind, sanEntries } from '../tls/identity.js';
import { BACKDATE_MS, caFiles, DAY_MS, EC_P256, loadSigner, newKeyPair, privateKeyPem } from './ca.js';
import { readHexKey } from './key-file.js';
import { PkiError } from './pki-error.js';
import { type FileToWrite, writeFilesTogether } from './write-files.js';

export const LEAF_DAYS = 365;

export interface IssueOptions {
  /** Validity from now; cut at the CA's own end. */
  days?: number;
  force?: boolean;
}

export interface Issued {
  name: string;
  kind: PeerKind;
  /** PEM chain, leaf first. */
  cert: string;
  key: string;
  /** The node's engine secret; servers have none. */
  engineKey: string | null;
  notAfter: Date;
}

/** A node's certificate: clientAuth only, no host names. Paths of what was written come back. */
export async function issueClient(dir: string, name: string, options: IssueOptions = {}): Promise<Issued> {
  return issue(dir, name, 'node', [], options);
}

/**
 * A server's certificate: serverAuth, and clientAuth because servers dial each other. `hosts` are the names and
 * addresses that agents dial; default: the name itself, localhost and the loopback addresses.
 */
export async function issueServer(
  dir: string,
  name: string,
  options: IssueOptions & { hosts?: string[] } = {},
): Promise<Issued> {
  const hosts = options.hosts ?? [name, 'localhost', '127.0.0.1', '::1'];
  return issue(dir, name, 'server', hosts, options);
}

/**
 * Issues `name` again, with the same kind and hosts, when fewer than `days` are left or the CA is a new one.
 * True when it did.
 */
export async function renewIfBelow(dir: string, name: string, days: number): Promise<boolean> {
  const path = certPaths(dir, name).cert;
  if (!existsSync(path)) throw new PkiError('missing', `${path} does not exist, so it can't be renewed.`);
  const leaf = parseLeaf(path);
  const signer = await loadSigner(dir);
  const left = Date.parse(leaf.validTo) - Date.now();
  if (left >= days * DAY_MS && leaf.verify(signer.cert.publicKey)) return false;
  const sans = sanEntries(leaf.subjectAltName ?? '');
  if (sans.some(s => s.value === identityUri('node', name))) {
    await issueClient(dir, name, { force: true });
  } else {
    const hosts = sans.filter(s => s.type === 'DNS' || s.type === 'IP Address').map(s => s.value);
    await issueServer(dir, name, { force: true, hosts });
  }
  return true;
}

const certPaths = (dir: string, name: string) => ({
  cert: join(dir, `${name}.pem`),
  key: join(dir, `${name}-key.pem`),
  engineKey: join(dir, `${name}-engine.key`),
});

async function issue(
  dir: string,
  name: string,
  kind: PeerKind,
  hosts: string[],
  options: IssueOptions,
): Promise<Issued> {
  checkName(name);
  const altNames: x509.JsonGeneralNames = [
    { type: 'url', value: identityUri(kind, name) },
    ...hosts.map(hostToAltName),
  ];
  const signer = await loadSigner(dir);
  const now = Date.now();
  const caEnd = Date.parse(signer.cert.validTo);
  if (caEnd <= now) {
    throw new PkiError('broken', `${caFiles(dir).cert} expired on ${signer.cert.validTo}: create a new CA.`);
  }
  const notAfter = new Date(Math.min(now + (options.days ?? LEAF_DAYS) * DAY_MS, caEnd));
  const keys = await newKeyPair();
  const usages = kind === 'node' ? ['clientAuth' as const] : ['serverAuth' as const, 'clientAuth' as const];
  const cert = await x509.X509CertificateGenerator.create({
    serialNumber: `00${randomBytes(16).toString('hex')}`,
    subject: [{ CN: [name] }],
    issuer: signer.generatorCert.subject,
    notBefore: new Date(now - BACKDATE_MS),
    notAfter,
    publicKey: keys.publicKey,
    signingKey: signer.key,
    signingAlgorithm: EC_P256,
    extensions: [
      new x509.BasicConstraintsExtension(false, undefined, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
      new x509.ExtendedKeyUsageExtension(usages.map(u => x509.ExtendedKeyUsage[u])),
      new x509.SubjectAlternativeNameExtension(altNames),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
      await x509.AuthorityKeyIdentifierExtension.create(signer.generatorCert.publicKey),
    ],
  });
  const paths = certPaths(dir, name);
  const chain = [cert.toString('pem'), ...signer.chain.map(c => c.toString().trim())].join('\n');
  const files: FileToWrite[] = [
    { path: paths.cert, content: `${chain}\n`, mode: 0o644 },
    { path: paths.key, content: await privateKeyPem(keys.privateKey), mode: 0o600 },
  ];
  if (kind === 'node') {
    const secret = nodeSecret(readHexKey(caFiles(dir).engineMaster), name);
    files.push({ path: paths.engineKey, content: `${secret}\n`, mode: 0o600 });
  }
  await writeFilesTogether(files, { force: options.force });
  return {
    name,
    kind,
    cert: paths.cert,
    key: paths.key,
    engineKey: kind === 'node' ? paths.engineKey : null,
    notAfter,
  };
}

/** Names whose files would be the CA's own. */
const RESERVED = new Set(['ca', 'ca-key']);

function checkName(name: string): void {
  const fault = checkNodeId(name);
  if (fault !== null) throw new PkiError('bad_input', `No certificate for this name: ${fault}.`);
  if (RESERVED.has(name)) {
    throw new PkiError('bad_input', `"${name}" is reserved for the CA's own files: choose another name.`);
  }
}

const HOST = /^(?=.{1,253}$)[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)*$/;

function hostToAltName(host: string): { type: 'dns' | 'ip'; value: string } {
  const bare = host
    .trim()
    .toLowerCase()
    .replace(/^\[(.*)\]$/, '$1');
  if (isIP(bare) !== 0) return { type: 'ip', value: bare };
  if (!HOST.test(bare)) {
    throw new PkiError(
      'bad_input',
      `${JSON.stringify(host)} can't be a host: expected a host name or an IP address, without scheme, port or wildcard.`,
    );
  }
  return { type: 'dns', value: bare };
}

function parseLeaf(path: string): X509Certificate {
  try {
    return new X509Certificate(readFileSync(path));
  } catch (cause) {
    throw new PkiError('broken', `${path} is not a PEM certificate.`, { cause });
  }
}
