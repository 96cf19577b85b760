import { X509Certificate } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect, createServer, type PeerCertificate, type Server, type TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import { peerIdentity, sanEntries } from '../../lib/tls/identity.js';
import { readCase } from '../config/case.js';
import { type Forged, forgeLeaf } from './forge.js';

let dir: string;
let server: Server;
let seen: Promise<PeerCertificate>;
const read = (file: string): Buffer => readFileSync(join(dir, file));

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-test-pki-'));
  await initCa(dir);
  await issueServer(dir, 'cp');
  server = createServer({
    ca: read('ca.pem'),
    cert: read('cp.pem'),
    key: read('cp-key.pem'),
    requestCert: true,
    rejectUnauthorized: true,
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
});
afterAll(() => {
  server.close();
  rmSync(dir, { recursive: true, force: true });
});

/** What a server sees of the certificate NAME after a real handshake. */
async function seenByServer(name: string): Promise<PeerCertificate> {
  seen = new Promise(resolve =>
    server.once('secureConnection', (socket: TLSSocket) => {
      resolve(socket.getPeerCertificate());
      socket.end();
    }),
  );
  const { port } = server.address() as AddressInfo;
  const client = connect({
    host: '127.0.0.1',
    port,
    ca: read('ca.pem'),
    cert: read(`${name}.pem`),
    key: read(`${name}-key.pem`),
  });
  client.on('error', () => {});
  client.resume();
  return seen;
}

async function identityOf(forged: Forged) {
  await forgeLeaf(dir, 'forged', forged);
  return peerIdentity(await seenByServer('forged'));
}

const uri = (value: string) => ({ type: 'url' as const, value });
const dns = (value: string) => ({ type: 'dns' as const, value });
const node = (id: string): Forged => ({ cn: [id], sans: [uri(`llmgw:node/${id}`)] });

test('an issued node and an issued server are who they are', async () => {
  await issueClient(dir, 'gpu-a-01.example');
  expect(peerIdentity(await seenByServer('gpu-a-01.example'))).toEqual({
    ok: true,
    kind: 'node',
    id: 'gpu-a-01.example',
  });
  expect(peerIdentity(await seenByServer('cp'))).toEqual({ ok: true, kind: 'server', id: 'cp' });
});

describe('odd subjects (mtls-grpc-05) are refused in a sentence', () => {
  const subjects: (string | string[])[] = readCase('mtls-grpc-05-odd-subjects').input.certs.map(
    (c: { CN: string | string[] }) => c.CN,
  );
  const sentences = [
    /outside|only a-z/,
    /ambiguous: it has 2 common names \("node-a", "node-b"\)/,
    /has the character "\/"/,
    /has the character ","/,
    /no common name/,
  ];
  test.each(subjects.map((cn, i) => ({ cn: [cn].flat(), sentence: sentences[i] as RegExp })))(
    '$cn',
    async ({ cn, sentence }) => {
      const identity = await identityOf({ cn, sans: [uri(`llmgw:node/${cn[0]}`)] });
      expect(identity).toEqual({ ok: false, reason: expect.stringMatching(sentence) });
    },
  );
});

describe('names that could be taken for another (mtls-grpc-03) are refused', () => {
  const { input } = readCase('mtls-grpc-03-identity-mismatch');
  test('a name with capitals is not the same name in small letters', async () => {
    const cn: string = input.also[0].cert_CN;
    expect(cn).toBe('Node-A');
    expect(await identityOf(node(cn))).toMatchObject({ ok: false, reason: expect.stringContaining('"N"') });
    expect(await identityOf({ cn: ['node-a'], sans: [uri('llmgw:node/Node-A')] })).toMatchObject({
      ok: false,
    });
  });

  test('a wildcard is nobody, whatever name is claimed', async () => {
    const [wildcard] = input.also[1].cert_SAN.map((san: string) => san.replace('DNS:', '')) as [string];
    expect(await identityOf(node(wildcard))).toMatchObject({
      ok: false,
      reason: expect.stringContaining('"*"'),
    });
    expect(await identityOf({ cn: [wildcard], sans: [dns(wildcard)] })).toMatchObject({ ok: false });
  });

  test('host names alone are no identity', async () => {
    const { CN, SAN } = input.cert;
    expect(await identityOf({ cn: [CN], sans: [dns(SAN[0].replace('DNS:', ''))] })).toEqual({
      ok: false,
      reason: 'the certificate of "node-a" has no SAN URI llmgw:node/node-a or llmgw:server/node-a',
    });
  });
});

describe('the SAN URI', () => {
  test('of another node is refused with both named', async () => {
    expect(await identityOf({ cn: ['node-a'], sans: [uri('llmgw:node/node-b')] })).toEqual({
      ok: false,
      reason: `the certificate's common name is "node-a" but its SAN URI says "llmgw:node/node-b"`,
    });
  });

  test.each([
    ['two of ours', [uri('llmgw:node/node-a'), uri('llmgw:server/node-a')], /ambiguous/],
    ['one of another kind', [uri('llmgw:admin/node-a')], /SAN URI says/],
    ['one with more behind it', [uri('llmgw:node/node-a/x')], /SAN URI says/],
    ['one inside a DNS name', [dns('x, URI:llmgw:node/node-a')], /no SAN URI/],
    ['one behind a comma in another URI', [uri('http://x, URI:llmgw:node/node-a')], /no SAN URI/],
  ])('%s is refused', async (_what, sans, sentence) => {
    expect(await identityOf({ cn: ['node-a'], sans })).toEqual({
      ok: false,
      reason: expect.stringMatching(sentence),
    });
  });

  test('stands beside other names', async () => {
    const sans = [dns('gpu.example'), uri('spiffe://x/y'), uri('llmgw:node/node-a')];
    expect(await identityOf({ cn: ['node-a'], sans })).toEqual({ ok: true, kind: 'node', id: 'node-a' });
  });
});

test('no certificate, and what is none, is refused', () => {
  for (const nothing of [undefined, null, {}, { subject: {} }, { subject: { CN: 7 } }]) {
    expect(peerIdentity(nothing)).toMatchObject({ ok: false });
  }
});

test('a subject alternative name with a comma stays one entry', async () => {
  await forgeLeaf(dir, 'comma', { cn: ['a'], sans: [uri('http://x, DNS:evil'), dns('b')] });
  const text = new X509Certificate(read('comma.pem')).subjectAltName ?? '';
  expect(sanEntries(text)).toEqual([
    { type: 'URI', value: 'http://x, DNS:evil' },
    { type: 'DNS', value: 'b' },
  ]);
});
