// Certificates that the product never issues, signed by its CA: odd subjects, wrong usages, past dates, chains.

import '../../lib/pki/reflect-metadata.js';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as x509 from '@peculiar/x509';
import { DAY_MS, EC_P256, loadSigner, newKeyPair, privateKeyPem } from '../../lib/pki/ca.js';

export interface Forged {
  /** All common names of the subject, each an RDN of its own. */
  cn: string[];
  sans?: x509.JsonGeneralNames;
  usages?: ('serverAuth' | 'clientAuth')[];
  /** Days from now. */
  from?: number;
  to?: number;
  /** The certificate is a CA itself. */
  ca?: boolean;
}

/** Writes NAME.pem (this certificate alone) and NAME-key.pem, signed by the CA in `caDir`, into `outDir`. */
export async function forgeLeaf(caDir: string, name: string, forged: Forged, outDir = caDir): Promise<void> {
  const signer = await loadSigner(caDir);
  const keys = await newKeyPair();
  const day = (n: number): Date => new Date(Date.now() + n * DAY_MS);
  const extensions: x509.Extension[] = [
    new x509.BasicConstraintsExtension(forged.ca ?? false, undefined, true),
  ];
  if (forged.usages !== undefined) {
    extensions.push(new x509.ExtendedKeyUsageExtension(forged.usages.map(u => x509.ExtendedKeyUsage[u])));
  }
  if (forged.sans !== undefined) extensions.push(new x509.SubjectAlternativeNameExtension(forged.sans));
  const cert = await x509.X509CertificateGenerator.create({
    // Names apart from the text form, where "," and "=" would need escapes.
    subject: new x509.Name(forged.cn.map(value => ({ CN: [{ utf8String: value }] }))).toJSON(),
    issuer: signer.generatorCert.subject,
    notBefore: day(forged.from ?? -1),
    notAfter: day(forged.to ?? 30),
    publicKey: keys.publicKey,
    signingKey: signer.key,
    signingAlgorithm: EC_P256,
    extensions,
  });
  writeFileSync(join(outDir, `${name}.pem`), `${cert.toString('pem')}\n`);
  writeFileSync(join(outDir, `${name}-key.pem`), await privateKeyPem(keys.privateKey), { mode: 0o600 });
}
