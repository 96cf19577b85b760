// The installation's certificate authority: one directory with the CA pair and the two symmetric master keys.

import './reflect-metadata.js';
import { createPrivateKey, randomBytes, webcrypto, type X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as x509 from '@peculiar/x509';
import { parseCertificates } from './cert-info.js';
import { PkiError } from './pki-error.js';
import { type FileToWrite, writeFilesTogether } from './write-files.js';

export const CA_DAYS = 3650;
/** Certificates begin an hour early, so that a node whose clock is somewhat behind accepts a new one. */
export const BACKDATE_MS = 3_600_000;
export const DAY_MS = 86_400_000;
export const EC_P256 = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };

x509.cryptoProvider.set(webcrypto);

export const caFiles = (dir: string) => ({
  cert: join(dir, 'ca.pem'),
  key: join(dir, 'ca-key.pem'),
  proxyToken: join(dir, 'proxy-token.key'),
  engineMaster: join(dir, 'engine-master.key'),
});

/** The certificate that signs, its key, and what a leaf's file must append to reach a root (the root left out). */
export interface Signer {
  cert: X509Certificate;
  generatorCert: x509.X509Certificate;
  key: webcrypto.CryptoKey;
  chain: X509Certificate[];
}

/** Creates the CA and both master keys in `dir`; returns the paths written. Refuses to replace any without force. */
export async function initCa(dir: string, options: { force?: boolean } = {}): Promise<string[]> {
  const keys = await newKeyPair();
  const now = Date.now();
  // Two CAs of the same subject can't be told apart by a verifier: it reports a bad signature, not an unknown CA.
  const name = `llmgw CA ${randomBytes(4).toString('hex')}`;
  const cert = await x509.X509CertificateGenerator.createSelfSigned({
    name: [{ CN: [name] }],
    keys,
    signingAlgorithm: EC_P256,
    notBefore: new Date(now - BACKDATE_MS),
    notAfter: new Date(now + CA_DAYS * DAY_MS),
    extensions: [
      new x509.BasicConstraintsExtension(true, undefined, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  const paths = caFiles(dir);
  const files: FileToWrite[] = [
    { path: paths.cert, content: `${cert.toString('pem')}\n`, mode: 0o644 },
    { path: paths.key, content: await privateKeyPem(keys.privateKey), mode: 0o600 },
    { path: paths.proxyToken, content: `${randomBytes(32).toString('hex')}\n`, mode: 0o600 },
    { path: paths.engineMaster, content: `${randomBytes(32).toString('hex')}\n`, mode: 0o600 },
  ];
  await writeFilesTogether(files, options);
  return files.map(f => f.path);
}

/**
 * Reads the CA of `dir`. ca.pem may also hold an intermediate with its root, when ca-key.pem is the
 * intermediate's: it is then appended to what is issued.
 */
export async function loadSigner(dir: string): Promise<Signer> {
  const paths = caFiles(dir);
  const certPem = readCaFile(paths.cert, dir);
  const keyPem = readCaFile(paths.key, dir);
  try {
    const certs = parseCertificates(certPem);
    const keyObject = createPrivateKey(keyPem);
    const der = keyObject.export({ type: 'pkcs8', format: 'der' });
    const key = await webcrypto.subtle.importKey('pkcs8', der, EC_P256, false, ['sign']);
    const cert = certs.find(c => c.checkPrivateKey(keyObject));
    if (cert === undefined) {
      throw new PkiError('broken', `${paths.key} does not belong to a certificate in ${paths.cert}.`);
    }
    const chain: X509Certificate[] = [];
    for (let at: X509Certificate | undefined = cert; at !== undefined && at.subject !== at.issuer; ) {
      chain.push(at);
      const child: X509Certificate = at;
      at = certs.find(c => !chain.includes(c) && child.checkIssued(c));
    }
    return { cert, generatorCert: new x509.X509Certificate(cert.toString()), key, chain };
  } catch (cause) {
    if (cause instanceof PkiError) throw cause;
    throw new PkiError('broken', `The CA in ${dir} can't be used: ${(cause as Error).message}.`, { cause });
  }
}

export async function newKeyPair(): Promise<webcrypto.CryptoKeyPair> {
  return webcrypto.subtle.generateKey(EC_P256, true, ['sign', 'verify']);
}

export async function privateKeyPem(key: webcrypto.CryptoKey): Promise<string> {
  const pkcs8 = await webcrypto.subtle.exportKey('pkcs8', key);
  return `${x509.PemConverter.encode(pkcs8, 'PRIVATE KEY')}\n`;
}

function readCaFile(path: string, dir: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    throw (cause as NodeJS.ErrnoException).code === 'ENOENT'
      ? new PkiError('missing', `${path} does not exist: run \`llmgw ctl cert init --dir ${dir}\` first.`, {
          cause,
        })
      : new PkiError('io', `${path} can't be read: ${(cause as Error).message}.`, { cause });
  }
}
