// Reads and checks the three TLS files before anything is built from them. gRPC accepts garbage at creation and
// fails much later without naming a file, so every fault that a file can have is looked for here.

import { createPrivateKey, type KeyObject, type X509Certificate } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { type CertInfo, certInfo, parseCertificates } from '../pki/cert-info.js';

export interface TlsPaths {
  ca: string;
  cert: string;
  key: string;
}

export interface TlsFiles {
  ca: Buffer;
  cert: Buffer;
  key: Buffer;
  /** Facts of the leaf. */
  info: CertInfo;
  /** Whether `cert` leads to a root in `ca`; peers that trust only those refuse it otherwise. */
  chainComplete: boolean;
  /** The certificate is out of its dates; only where that was to be told and not thrown. */
  outOfDate: TlsFileError | null;
  /** Sentences worth a log line; none keeps the files from being used. */
  warnings: string[];
}

export type TlsFileFault =
  | 'missing'
  | 'unreadable'
  | 'empty'
  | 'not_pem'
  | 'encrypted'
  | 'key_mismatch'
  | 'leaf_not_first'
  | 'expired'
  | 'not_yet_valid'
  | 'wrong_usage';

/** A TLS file that can't be used; the message is one sentence that names it. */
export class TlsFileError extends Error {
  override readonly name = 'TlsFileError';
  constructor(
    readonly code: TlsFileFault,
    readonly file: string,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/**
 * The contents of the three files, checked; `use` adds the check that the certificate may be used that way.
 * `anyDate`: a certificate out of its dates is told in `outOfDate` and not thrown, for whoever lets the peer judge.
 * Throws a TlsFileError on the first fault. Synchronous: a few small files, at start and before a reconnect.
 */
export function loadTlsFiles(
  paths: TlsPaths,
  use?: 'client' | 'server',
  { anyDate = false }: { anyDate?: boolean } = {},
): TlsFiles {
  const ca = readPem(paths.ca);
  const cert = readPem(paths.cert);
  const key = readPem(paths.key);
  const authorities = certificatesOf(paths.ca, ca);
  const chain = certificatesOf(paths.cert, cert);
  const leaf = chain[0] as X509Certificate;
  const privateKey = privateKeyOf(paths.key, key);
  checkPair(paths, chain, privateKey);
  const outOfDate = validityFault(paths.cert, 'the certificate', leaf);
  if (outOfDate !== null && !anyDate) throw outOfDate;
  checkAuthorities(paths.ca, authorities);
  const info = certInfo(leaf);
  if (use !== undefined) checkUsage(paths.cert, info, use);
  const chainComplete = chainReaches(chain, authorities);
  const warnings = [keyModeWarning(paths.key), chainComplete ? null : chainWarning(paths)];
  return { ca, cert, key, info, chainComplete, outOfDate, warnings: warnings.filter(w => w !== null) };
}

/** Whether a certificate file leads to a root among the authorities, as OpenSSL and rustls want it. */
function chainReaches(chain: X509Certificate[], authorities: X509Certificate[]): boolean {
  const known = [...chain, ...authorities];
  let at = chain[0];
  for (let step = 0; at !== undefined && step <= known.length; step += 1) {
    const child: X509Certificate = at;
    if (child.checkIssued(child)) return authorities.some(a => a.fingerprint256 === child.fingerprint256);
    at = known.find(c => child.checkIssued(c) && child.verify(c.publicKey));
  }
  return false;
}

function readPem(file: string): Buffer {
  let content: Buffer;
  try {
    content = readFileSync(file);
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    if (code === 'ENOENT') throw new TlsFileError('missing', file, `${file} does not exist.`, { cause });
    throw new TlsFileError('unreadable', file, `${file} can't be read: ${message}.`, { cause });
  }
  if (content.toString('latin1').trim() === '') throw new TlsFileError('empty', file, `${file} is empty.`);
  return content;
}

function certificatesOf(file: string, content: Buffer): X509Certificate[] {
  const text = content.toString('latin1');
  if (!text.includes('-----BEGIN CERTIFICATE-----')) {
    const key = /-----BEGIN [A-Z ]*PRIVATE KEY-----/.test(text);
    const what = key ? 'holds a private key, not a certificate' : 'is not a PEM certificate';
    throw new TlsFileError('not_pem', file, `${file} ${what}: expected -----BEGIN CERTIFICATE-----.`);
  }
  let certificates: X509Certificate[] = [];
  try {
    certificates = parseCertificates(text);
  } catch (cause) {
    throw new TlsFileError('not_pem', file, `${file} holds a certificate that can't be parsed.`, { cause });
  }
  if (certificates.length === 0)
    throw new TlsFileError('not_pem', file, `${file} holds a certificate that is cut off.`);
  return certificates;
}

function privateKeyOf(file: string, content: Buffer): KeyObject {
  const text = content.toString('latin1');
  if (text.includes('BEGIN ENCRYPTED PRIVATE KEY') || /Proc-Type:\s*4,\s*ENCRYPTED/.test(text)) {
    throw new TlsFileError(
      'encrypted',
      file,
      `${file} is encrypted and not supported: store the key without a passphrase, readable by this user alone (openssl pkey -in OLD -out NEW).`,
    );
  }
  if (!/-----BEGIN [A-Z ]*PRIVATE KEY-----/.test(text)) {
    throw new TlsFileError(
      'not_pem',
      file,
      `${file} is not a PEM key: expected -----BEGIN PRIVATE KEY-----.`,
    );
  }
  try {
    return createPrivateKey(content);
  } catch (cause) {
    throw new TlsFileError('not_pem', file, `${file} is not a PEM key: what it holds can't be parsed.`, {
      cause,
    });
  }
}

function checkPair(paths: TlsPaths, chain: X509Certificate[], key: KeyObject): void {
  const at = chain.findIndex(c => c.checkPrivateKey(key));
  if (at === 0) return;
  if (at > 0) {
    throw new TlsFileError(
      'leaf_not_first',
      paths.cert,
      `${paths.cert} has its certificates in the wrong order: the leaf must come first, then the intermediates.`,
    );
  }
  throw new TlsFileError(
    'key_mismatch',
    paths.key,
    `${paths.key} is not the key of the certificate in ${paths.cert}.`,
  );
}

function validityFault(file: string, what: string, cert: X509Certificate): TlsFileError | null {
  const now = Date.now();
  const clock = `this machine's clock says ${new Date(now).toISOString()}`;
  if (Date.parse(cert.validTo) < now) {
    const end = new Date(cert.validTo).toISOString();
    return new TlsFileError('expired', file, `${file}: ${what} expired on ${end} (${clock}).`);
  }
  if (Date.parse(cert.validFrom) > now) {
    const begin = new Date(cert.validFrom).toISOString();
    return new TlsFileError(
      'not_yet_valid',
      file,
      `${file}: ${what} is not valid before ${begin} (${clock}).`,
    );
  }
  return null;
}

/** One that is valid is enough: a bundle holds the old and the new CA while one replaces the other. */
function checkAuthorities(file: string, authorities: X509Certificate[]): void {
  const now = Date.now();
  const valid = authorities.some(a => Date.parse(a.validFrom) <= now && now <= Date.parse(a.validTo));
  if (valid) return;
  for (const authority of authorities) {
    const fault = validityFault(file, 'the CA certificate', authority);
    if (fault !== null) throw fault;
  }
}

function checkUsage(file: string, info: CertInfo, use: 'client' | 'server'): void {
  const needed = use === 'client' ? 'clientAuth' : 'serverAuth';
  // A certificate without any extended key usage is good for all: OpenSSL and rustls take it so.
  if (info.usages === null || info.usages.includes(needed)) return;
  const issue = use === 'client' ? 'issue-client' : 'issue-server';
  throw new TlsFileError(
    'wrong_usage',
    file,
    `${file} can't be used by a ${use}: its extended key usage is ${info.usages.join(', ')}, without ${needed} (llmgw ctl cert ${issue} issues one that has it).`,
  );
}

function keyModeWarning(file: string): string | null {
  const mode = statSync(file).mode & 0o777;
  if ((mode & 0o077) === 0) return null;
  return `${file} has mode 0${mode.toString(8)}, others than its owner may use the key: chmod 600 ${file}`;
}

function chainWarning(paths: TlsPaths): string {
  return `${paths.cert} does not lead to a CA in ${paths.ca}, and peers that trust only that will refuse it: append the intermediate after the leaf, or use the CA that issued it`;
}
