import { createPrivateKey, generateKeyPairSync } from 'node:crypto';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect, createServer } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import { tlsFault } from '../../lib/tls/faults.js';
import { loadTlsFiles, TlsFileError } from '../../lib/tls/load.js';
import { readCase } from '../config/case.js';
import { forgeLeaf } from './forge.js';

let dir: string;
const path = (file: string): string => join(dir, file);
const read = (file: string): string => readFileSync(path(file), 'utf8');
const write = (file: string, content: string, mode = 0o600): string => {
  writeFileSync(path(file), content, { mode });
  return path(file);
};
const good = () => ({ ca: path('ca.pem'), cert: path('n1.pem'), key: path('n1-key.pem') });

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-test-tls-'));
  await initCa(dir);
  await issueServer(dir, 'cp');
  await issueClient(dir, 'n1');
  await issueClient(dir, 'n2');
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** The error that loading gives; fails when it gives none. */
function fault(change: Partial<ReturnType<typeof good>>, use?: 'client' | 'server'): TlsFileError {
  try {
    loadTlsFiles({ ...good(), ...change }, use);
  } catch (error) {
    if (error instanceof TlsFileError) return error;
    throw error;
  }
  throw new Error('loaded without a fault');
}

test('issued files load without a warning, with the facts of the leaf', () => {
  const files = loadTlsFiles(good(), 'client');
  expect(files.warnings).toEqual([]);
  expect(files.chainComplete).toBe(true);
  expect(files.info.cn).toBe('n1');
  expect([files.ca, files.cert, files.key].every(Buffer.isBuffer)).toBe(true);
});

describe('private keys (mtls-grpc-08)', () => {
  const { key_header, variants } = readCase('mtls-grpc-08-encrypted-key').input;

  test('an encrypted key is named and said to be unsupported', () => {
    const pem = createPrivateKey(read('n1-key.pem'))
      .export({ type: 'pkcs8', format: 'pem', cipher: 'aes-256-cbc', passphrase: 'secret' })
      .toString();
    expect(pem.startsWith(key_header)).toBe(true);
    const error = fault({ key: write('enc.pem', pem) });
    expect(error).toMatchObject({ code: 'encrypted', file: path('enc.pem') });
    expect(error.message).toContain(`${path('enc.pem')} is encrypted and not supported`);
  });

  test('an encrypted key of the old form too', () => {
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const pem = privateKey
      .export({ type: 'pkcs1', format: 'pem', cipher: 'aes-128-cbc', passphrase: 'x' })
      .toString();
    expect(pem).toContain('Proc-Type: 4,ENCRYPTED');
    expect(fault({ key: write('enc1.pem', pem) }).code).toBe('encrypted');
  });

  test('all variants of the case are here', () => {
    expect(variants).toEqual(['garbage PEM', 'empty file', 'CRLF PEM', 'key file mode 0644']);
  });

  test('garbage is not a PEM key', () => {
    expect(fault({ key: write('g1.pem', 'garbage') }).message).toContain(
      `${path('g1.pem')} is not a PEM key`,
    );
    const block = '-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n';
    expect(fault({ key: write('g2.pem', block) }).message).toContain('is not a PEM key');
  });

  test('an empty file is empty, whichever of the three it is', () => {
    const file = write('empty.pem', ' \r\n');
    for (const change of [{ ca: file }, { cert: file }, { key: file }]) {
      expect(fault(change)).toMatchObject({ code: 'empty', message: `${file} is empty.` });
    }
  });

  test('CRLF line ends are accepted, and a handshake with them works', async () => {
    const crlf = (file: string): string => write(`crlf-${file}`, read(file).replaceAll('\n', '\r\n'));
    const paths = { ca: crlf('ca.pem'), cert: crlf('n1.pem'), key: crlf('n1-key.pem') };
    const files = loadTlsFiles(paths, 'client');
    expect(files.warnings).toEqual([]);
    expect(
      await handshake(files, loadTlsFiles({ ca: paths.ca, cert: path('cp.pem'), key: path('cp-key.pem') })),
    ).toBeNull();
  });

  test('a key that others may read is a warning with the command that mends it', () => {
    chmodSync(path('n2-key.pem'), 0o644);
    const files = loadTlsFiles({ ca: path('ca.pem'), cert: path('n2.pem'), key: path('n2-key.pem') });
    expect(files.warnings).toEqual([
      `${path('n2-key.pem')} has mode 0644, others than its owner may use the key: chmod 600 ${path('n2-key.pem')}`,
    ]);
  });
});

describe('other faults are told apart at start-up', () => {
  test('a missing file, and one that can not be read', () => {
    expect(fault({ ca: path('none.pem') })).toMatchObject({
      code: 'missing',
      message: `${path('none.pem')} does not exist.`,
    });
    mkdirSync(path('folder.pem'));
    expect(fault({ cert: path('folder.pem') })).toMatchObject({
      code: 'unreadable',
      file: path('folder.pem'),
    });
  });

  test('a key where a certificate belongs, and the other way round', () => {
    expect(fault({ cert: path('n1-key.pem') }).message).toContain('holds a private key, not a certificate');
    expect(fault({ key: path('n1.pem') }).message).toContain('is not a PEM key');
  });

  test('a certificate that is cut off', () => {
    expect(fault({ cert: write('cut.pem', read('n1.pem').slice(0, 300)) })).toMatchObject({
      code: 'not_pem',
    });
  });

  test('the key of another certificate', () => {
    expect(fault({ key: path('n2-key.pem') })).toMatchObject({
      code: 'key_mismatch',
      message: `${path('n2-key.pem')} is not the key of the certificate in ${path('n1.pem')}.`,
    });
  });

  test('a certificate that has expired, or is not valid yet, with both times', async () => {
    await forgeLeaf(dir, 'past', { cn: ['past'], from: -3, to: -1 });
    await forgeLeaf(dir, 'future', { cn: ['future'], from: 1, to: 2 });
    const past = fault({ cert: path('past.pem'), key: path('past-key.pem') });
    expect([past.code, past.file]).toEqual(['expired', path('past.pem')]);
    expect(past.message).toMatch(/expired on \d{4}-.*this machine's clock says \d{4}-/);
    expect(fault({ cert: path('future.pem'), key: path('future-key.pem') }).code).toBe('not_yet_valid');
  });

  test('an expired CA, unless a valid one stands beside it', async () => {
    await forgeLeaf(dir, 'old-ca', { cn: ['old CA'], ca: true, from: -3, to: -1 });
    expect(fault({ ca: path('old-ca.pem') })).toMatchObject({ code: 'expired', file: path('old-ca.pem') });
    const both = write('both.pem', read('old-ca.pem') + read('ca.pem'));
    expect(loadTlsFiles({ ...good(), ca: both }).warnings).toEqual([]);
  });

  test("a server's certificate is needed by a server", async () => {
    const error = fault({}, 'server');
    expect(error.code).toBe('wrong_usage');
    expect(error.message).toContain('its extended key usage is clientAuth, without serverAuth');
    await forgeLeaf(dir, 'any', { cn: ['any'] });
    expect(
      loadTlsFiles({ ...good(), cert: path('any.pem'), key: path('any-key.pem') }, 'server').info.usages,
    ).toBeNull();
  });
});

describe('a leaf issued by an intermediate (mtls-grpc-06)', () => {
  const files: string[] = readCase('mtls-grpc-06-intermediate-chain').input.files;
  let intermediate: string;

  beforeAll(async () => {
    intermediate = mkdtempSync(join(tmpdir(), 'llmgw-test-int-'));
    await forgeLeaf(dir, 'int', { cn: ['Intermediate'], ca: true });
    writeFileSync(join(intermediate, 'ca.pem'), read('int.pem'));
    writeFileSync(join(intermediate, 'ca-key.pem'), read('int-key.pem'));
    await forgeLeaf(intermediate, 'leaf', { cn: ['leaf'], sans: [{ type: 'dns', value: 'localhost' }] }, dir);
    const parts: Record<string, string> = { 'leaf.pem': read('leaf.pem'), 'int.pem': read('int.pem') };
    for (const [i, file] of files.entries()) {
      const content = file.split(' + ').map(part => parts[part]);
      write(`chain-${i}.pem`, content.join(''));
    }
  });
  afterAll(() => rmSync(intermediate, { recursive: true, force: true }));

  const chain = (i: number) => ({
    ca: path('ca.pem'),
    cert: path(`chain-${i}.pem`),
    key: path('leaf-key.pem'),
  });

  test('alone loads with a warning, and the peer that refuses it says to append the intermediate', async () => {
    expect(files[0]).toBe('leaf.pem');
    const loaded = loadTlsFiles(chain(0));
    expect(loaded.chainComplete).toBe(false);
    expect(loaded.warnings).toEqual([expect.stringContaining('append the intermediate after the leaf')]);
    const error = await handshake(loadTlsFiles(good()), loaded);
    const found = tlsFault(error, { server: 'cp:7443', caFile: path('ca.pem'), certFile: path('n1.pem') });
    expect(found?.kind).toBe('unknown_ca');
    expect(found?.sentence).toContain('append the intermediate');
  });

  test('followed by the intermediate is accepted', async () => {
    expect(files[1]).toBe('leaf.pem + int.pem');
    const loaded = loadTlsFiles(chain(1));
    expect(loaded.warnings).toEqual([]);
    expect(await handshake(loadTlsFiles(good()), loaded)).toBeNull();
  });

  test('behind the intermediate is a start-up error that says the leaf must come first', () => {
    expect(files[2]).toBe('int.pem + leaf.pem');
    expect(fault(chain(2))).toMatchObject({
      code: 'leaf_not_first',
      file: path('chain-2.pem'),
      message: expect.stringContaining('the leaf must come first'),
    });
  });

  test('with only the intermediate trusted is warned of: a verifier wants the root', () => {
    expect(loadTlsFiles({ ...chain(0), ca: path('int.pem') }).chainComplete).toBe(false);
  });
});

type Pem = { ca: Buffer; cert: Buffer; key: Buffer };

/** Null when both ends accept each other, else the client's error. */
async function handshake(client: Pem, server: Pem): Promise<Error | null> {
  const listener = createServer(
    { ca: server.ca, cert: server.cert, key: server.key, requestCert: true },
    socket => socket.end('ok'),
  );
  await new Promise<void>(resolve => listener.listen(0, '127.0.0.1', resolve));
  const { port } = listener.address() as AddressInfo;
  const { ca, cert, key } = client;
  const error = await new Promise<Error | null>(resolve => {
    const socket = connect({ host: '127.0.0.1', port, servername: 'localhost', ca, cert, key });
    socket.on('data', () => resolve(null)).on('error', resolve);
  });
  listener.close();
  return error;
}
