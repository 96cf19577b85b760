// Every fault is produced by a real handshake with a grpc server, seen by the three kinds of client that an agent
// has: grpc-js (the stream), the SDK's Rust core (the worker) and plain tls.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';
import * as grpc from '@grpc/grpc-js';
import { NativeConnection } from '@temporalio/worker';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import { type TlsFaultContext, tlsFault, tlsFaultSentence } from '../../lib/tls/faults.js';
import { loadTlsFiles } from '../../lib/tls/load.js';
import { forgeLeaf } from './forge.js';

let root: string;
const cleanups: (() => void)[] = [];
/** `ours/cp` is the certificate `cp` of our CA. */
const pair = (name: string) => ({ cert: read(`${name}.pem`), key: read(`${name}-key.pem`) });
const read = (file: string): Buffer => readFileSync(join(root, file));
const context: TlsFaultContext = { server: 'cp:7443', caFile: 'ca.pem', certFile: 'n1.pem' };

beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'llmgw-test-faults-'));
  const [ours, theirs] = [join(root, 'ours'), join(root, 'theirs')];
  for (const dir of [ours, theirs]) {
    await initCa(dir);
    await issueServer(dir, 'cp');
    await issueClient(dir, 'n1');
  }
  await issueServer(ours, 'elsewhere', { hosts: ['other.example'] });
  const sans = [{ type: 'dns' as const, value: 'localhost' }];
  await forgeLeaf(ours, 'expired', { cn: ['expired'], sans, from: -3, to: -1 });
  await forgeLeaf(ours, 'future', { cn: ['future'], sans, from: 1, to: 2 });
  await forgeLeaf(ours, 'clientonly', { cn: ['clientonly'], sans, usages: ['clientAuth'] });
  await forgeLeaf(ours, 'serveronly', { cn: ['n1'], usages: ['serverAuth'] });
});
afterEach(() => {
  for (const clean of cleanups.splice(0)) clean();
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

async function grpcServer(name: string): Promise<number> {
  const { cert, key } = pair(name);
  const server = new grpc.Server();
  const credentials = grpc.ServerCredentials.createSsl(
    read('ours/ca.pem'),
    [{ cert_chain: cert, private_key: key }],
    true,
  );
  cleanups.push(() => server.forceShutdown());
  return new Promise((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', credentials, (error, port) => (error ? reject(error) : resolve(port))),
  );
}

const dialers: Record<string, (port: number, client: string | null) => Promise<unknown>> = {
  'grpc-js': (port, client) => {
    const own = client === null ? null : pair(client);
    const credentials = grpc.credentials.createSsl(read('ours/ca.pem'), own?.key ?? null, own?.cert ?? null);
    const channel = new grpc.Client(`localhost:${port}`, credentials);
    cleanups.push(() => channel.close());
    const raw = (b: Buffer): Buffer => b;
    return new Promise(resolve =>
      channel.makeUnaryRequest('/a/b', raw, raw, Buffer.alloc(0), error => resolve(error)),
    );
  },
  core: async (port, client) => {
    const own = client === null ? null : pair(client);
    const clientCertPair = own === null ? undefined : { crt: own.cert, key: own.key };
    const tls = { serverRootCACertificate: read('ours/ca.pem'), clientCertPair };
    return NativeConnection.connect({ address: `localhost:${port}`, tls }).catch(error => error);
  },
  tls: (port, client) =>
    new Promise(resolve => {
      const own = client === null ? {} : pair(client);
      const socket = connect({
        host: 'localhost',
        port,
        ca: read('ours/ca.pem'),
        ...own,
        ALPNProtocols: ['h2'],
      });
      socket.on('error', resolve);
    }),
};

describe.each(Object.keys(dialers))('%s', dialer => {
  test.each([
    ['a server of another CA', 'theirs/cp', 'unknown_ca', 'does not lead to a CA in ca.pem'],
    ['a server certificate for other hosts', 'ours/elsewhere', 'wrong_name', 'is for other host names'],
    [
      'a server certificate that has expired',
      'ours/expired',
      'expired',
      'The certificate of cp:7443 has expired',
    ],
    ['a server certificate of tomorrow', 'ours/future', 'not_yet_valid', 'not valid yet'],
    ['a server certificate for clients', 'ours/clientonly', 'wrong_usage', 'serverAuth is missing'],
  ])('%s', async (_what, server, kind, words) => {
    const error = await dialers[dialer]?.(await grpcServer(server), 'ours/n1');
    const fault = tlsFault(error, context);
    expect([fault?.kind, String(error)]).toEqual([kind, expect.anything()]);
    expect(fault?.sentence).toContain(words);
    expect(fault?.sentence).toMatch(/^[A-Z].*\.$/);
  });
});

test.each(['grpc-js', 'tls'])('no certificate at all, by %s', async dialer => {
  const error = await dialers[dialer]?.(await grpcServer('ours/cp'), null);
  expect(tlsFault(error, context)).toEqual({
    kind: 'no_certificate',
    sentence: 'cp:7443 asks for a client certificate and got none: set tls.cert and tls.key.',
  });
});

test.each(['grpc-js', 'core'])(
  'a certificate that the server closes on without a word is explained by what is wrong with it, by %s',
  async dialer => {
    const port = await grpcServer('ours/cp');
    const paths = (name: string) => ({
      ca: join(root, 'ours/ca.pem'),
      cert: join(root, `${name}.pem`),
      key: join(root, `${name}-key.pem`),
    });
    for (const [name, words] of [
      ['theirs/n1', 'its chain is incomplete or of another CA'],
      ['ours/serveronly', 'it may not be used by a client (its usage is serverAuth)'],
    ] as const) {
      const error = await dialers[dialer]?.(port, name);
      const own = loadTlsFiles(paths(name));
      expect([name, tlsFaultSentence(error, { ...context, own })]).toEqual([
        name,
        expect.stringContaining(`cp:7443 closed the connection on seeing our certificate n1.pem: ${words}`),
      ]);
      expect(tlsFault(error, context)).toMatchObject({ kind: 'refused_by_peer' });
    }
  },
);

test('a call that the core gave up because the connection closed under it is the same silent close', () => {
  const said =
    'TransportError: Failed to call GetSystemInfo: code: \'The operation was cancelled\', message: "operation was canceled", source: tonic::transport::Error(Transport, hyper::Error(Canceled, "connection closed"))';
  expect(tlsFault(new Error(said), context)).toMatchObject({ kind: 'refused_by_peer' });
});

test.each(['grpc-js', 'core', 'tls'])('a server without TLS, by %s', async dialer => {
  const plain: Server = createServer(socket => {
    socket.on('error', () => {});
    socket.end('HTTP/1.1 400 Bad Request\r\n\r\n');
  });
  await new Promise<void>(resolve => plain.listen(0, '127.0.0.1', resolve));
  cleanups.push(() => plain.close());
  const error = await dialers[dialer]?.((plain.address() as AddressInfo).port, 'ours/n1');
  expect([tlsFault(error, context)?.kind, String(error)]).toEqual(['not_tls', expect.anything()]);
});

test.each(['grpc-js', 'core', 'tls'])(
  'a port where nobody listens is not a TLS matter, by %s',
  async dialer => {
    const nobody = createServer();
    await new Promise<void>(resolve => nobody.listen(0, '127.0.0.1', resolve));
    const { port } = nobody.address() as AddressInfo;
    await new Promise(resolve => nobody.close(resolve));
    const error = await dialers[dialer]?.(port, 'ours/n1');
    expect([tlsFault(error, context), String(error)]).toEqual([null, expect.anything()]);
  },
);

test.each([
  'read ECONNRESET',
  'Client network socket disconnected before secure TLS connection was established',
  'No connection established. Last error: Failed to connect (2026-11-30T15:09:15.223Z). Resolution note: ',
  'hyper::Error(Io, Kind(ConnectionReset))',
  'hyper::Error(Io, Custom { kind: UnexpectedEof, error: "peer closed connection without sending TLS close_notify" })',
  'hyper::Error(Io, Custom { kind: BrokenPipe, error: "stream closed because of a broken pipe" })',
])('a bare close, however it shows (%s), is not explained by more than is known', text => {
  expect(tlsFault(new Error(text), context)).toEqual({
    kind: 'refused_by_peer',
    sentence:
      'cp:7443 closed the connection before its first answer: it may have refused our certificate n1.pem, its log says why.',
  });
});

test("the peer's alerts are its judgement of our certificate", () => {
  const alert = (text: string) => tlsFault(new Error(`SSL routines:ssl3_read_bytes:${text}`), context);
  expect(alert('tlsv1 alert unknown ca:SSL alert number 48')?.kind).toBe('unknown_ca');
  expect(alert('sslv3 alert certificate expired:SSL alert number 45')).toMatchObject({
    kind: 'expired',
    sentence: "cp:7443 refused our certificate n1.pem: it has expired by that machine's clock.",
  });
  expect(alert('sslv3 alert unsupported certificate:SSL alert number 43')?.kind).toBe('wrong_usage');
  expect(alert('sslv3 alert bad certificate:SSL alert number 42')?.kind).toBe('refused_by_peer');
});
