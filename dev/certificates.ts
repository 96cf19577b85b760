// The certificates of a dev installation: issued to itself on first start, renewed before they run out. The secrets
// of the installation (token key, engines' master key) lie beside them.
import { existsSync } from 'node:fs';
import path from 'node:path';
import { initCa } from '../lib/pki/ca.js';
import { issueClient, issueServer, renewIfBelow } from '../lib/pki/issue.js';

export const NODE_ID = 'local';
const SERVER_NAME = 'server';
/** A dev that is started once a month still never sees an expired certificate. */
const RENEW_BELOW_DAYS = 30;

export interface CertificateFiles {
  ca: string;
  cert: string;
  key: string;
}

export interface DevPki {
  server: CertificateFiles;
  agent: CertificateFiles;
  engineMaster: string;
}

/** Creates or renews what is needed in `dir`. */
export async function ensureCertificates(dir: string): Promise<DevPki> {
  if (!existsSync(path.join(dir, 'ca.pem'))) await initCa(dir);
  for (const [name, issue] of [
    [SERVER_NAME, issueServer],
    [NODE_ID, issueClient],
  ] as const) {
    if (existsSync(path.join(dir, `${name}.pem`))) await renewIfBelow(dir, name, RENEW_BELOW_DAYS);
    else await issue(dir, name);
  }
  const files = (name: string): CertificateFiles => ({
    ca: path.join(dir, 'ca.pem'),
    cert: path.join(dir, `${name}.pem`),
    key: path.join(dir, `${name}-key.pem`),
  });
  return {
    server: files(SERVER_NAME),
    agent: files(NODE_ID),
    engineMaster: path.join(dir, 'engine-master.key'),
  };
}
