// Each way in which certificates keep an agent from its control plane, by real handshakes: the stream's log names the
// fault, and it is a condition of the node until it is mended. The Temporal worker meets the same peers with another
// TLS library and says the same.
import { createPrivateKey } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import tls from 'node:tls';
import type { JsonGeneralNames } from '@peculiar/x509';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { Conditions } from '../../agent/conditions.js';
import { NodeWorker } from '../../agent/worker.js';
import { issueServer } from '../../lib/pki/issue.js';
import type { TlsPaths } from '../../lib/tls/load.js';
import { type AgentEndpoint, startAgentEndpoint } from '../../server/stream/endpoint.js';
import { readCase } from '../config/case.js';
import { type Forged, forgeLeaf } from '../pki/forge.js';
import {
  controlPlane,
  type LogLine,
  makePki,
  type Pki,
  rawServer,
  recordingLog,
  startAgent,
  type TestAgent,
  tlsPaths,
  until,
} from './support.js';

const NODE = 'gpu-a-01';
const HOST: JsonGeneralNames = [{ type: 'ip', value: '127.0.0.1' }];
const IDENTITY: JsonGeneralNames = [{ type: 'url', value: `llmgw:node/${NODE}` }];

let ours: Pki;
let theirs: Pki;
let node: TlsPaths;
/** A control plane that is as it should be. */
let good: AgentEndpoint;
const goodLog = recordingLog();

beforeAll(async () => {
  ours = await makePki(undefined, afterAll);
  theirs = await makePki(undefined, afterAll);
  node = await ours.client(NODE);
  good = await startAgentEndpoint({
    listen: { host: '127.0.0.1', port: 0 },
    tls: ours.server,
    services: [],
    log: goodLog.log,
  });
});
afterAll(() => good?.close(0));

async function forged(name: string, what: Forged): Promise<TlsPaths> {
  await forgeLeaf(ours.dir, name, what);
  return tlsPaths(ours.dir, name);
}

/** A TLS server with any certificate at all: ours would not start with most of these. */
const serverWith = ({ cert, key }: TlsPaths): Promise<number> =>
  rawServer(
    tls.createServer({ cert: readFileSync(cert), key: readFileSync(key), ALPNProtocols: ['h2'] }, socket => {
      socket.on('error', () => {});
    }),
  );

interface Fault {
  name: string;
  kind: string;
  words: RegExp;
  /** Default: the good control plane and the good pair. */
  server?: () => Promise<number>;
  own?: () => Promise<TlsPaths>;
}

const FAULTS: Fault[] = [
  {
    name: 'a control plane of another CA',
    kind: 'unknown_ca',
    words:
      /certificate of 127\.0\.0\.1:\d+ (?:comes from a CA that is not in|does not lead to a CA in) .*ca\.pem/,
    server: () => serverWith(theirs.server),
  },
  {
    name: 'a control plane whose certificate has expired',
    kind: 'expired',
    words: /certificate of 127\.0\.0\.1:\d+ has expired/,
    server: async () => serverWith(await forged('cp-old', { cn: ['cp'], sans: HOST, from: -3, to: -1 })),
  },
  {
    name: 'a control plane whose certificate is not valid yet',
    kind: 'not_yet_valid',
    words: /certificate of 127\.0\.0\.1:\d+ is not valid yet/,
    server: async () => serverWith(await forged('cp-new', { cn: ['cp'], sans: HOST, from: 1, to: 2 })),
  },
  {
    name: 'a control plane of another name',
    kind: 'wrong_name',
    words: /is for other host names/,
    server: async () => {
      await issueServer(ours.dir, 'elsewhere', { hosts: ['other.example'], force: true });
      return serverWith(tlsPaths(ours.dir, 'elsewhere'));
    },
  },
  {
    name: 'a control plane whose certificate is for clients',
    kind: 'wrong_usage',
    words: /serverAuth is missing/,
    server: async () =>
      serverWith(await forged('cp-client', { cn: ['cp'], sans: HOST, usages: ['clientAuth'] })),
  },
  {
    name: 'something at the port that is no TLS',
    kind: 'not_tls',
    words: /does not speak TLS/,
    server: () => rawServer(createServer(s => s.end('HTTP/1.1 400 Bad Request\r\n\r\n'))),
  },
  {
    name: 'our certificate from a CA that the control plane does not know',
    kind: 'unknown_ca',
    words: /does not lead to a CA that this control plane trusts/,
    own: async () => ({ ...(await theirs.client(NODE)), ca: ours.server.ca }),
  },
  {
    name: 'our certificate that has expired',
    kind: 'expired',
    words: /it has expired/,
    own: () => forged('old', { cn: [NODE], sans: IDENTITY, usages: ['clientAuth'], from: -3, to: -1 }),
  },
  {
    name: 'our certificate that is not valid yet',
    kind: 'not_yet_valid',
    words: /it is not valid yet/,
    own: () => forged('new', { cn: [NODE], sans: IDENTITY, usages: ['clientAuth'], from: 1, to: 2 }),
  },
  {
    name: 'our certificate for servers only',
    kind: 'wrong_usage',
    words: /can't be used by a client: its extended key usage is serverAuth/,
    own: () => forged('server-only', { cn: [NODE], sans: IDENTITY, usages: ['serverAuth'] }),
  },
  {
    name: 'the key of another certificate',
    kind: 'key_mismatch',
    words: /gpu-b-02-key\.pem is not the key of the certificate in .*gpu-a-01\.pem/,
    own: async () => ({ ...node, key: (await ours.client('gpu-b-02')).key }),
  },
  {
    name: 'a key with a passphrase',
    kind: 'encrypted',
    words: /enc-key\.pem is encrypted and not supported/,
    own: async () => {
      const key = join(ours.dir, 'enc-key.pem');
      const pem = createPrivateKey(readFileSync(node.key)).export({
        type: 'pkcs8',
        format: 'pem',
        cipher: 'aes-256-cbc',
        passphrase: 'secret',
      });
      writeFileSync(key, pem, { mode: 0o600 });
      return { ...node, key };
    },
  },
];

const condition = (conditions: Conditions, code: string): string | undefined =>
  conditions.list().find(c => c.code === code)?.message;

describe.each(FAULTS)('$name', ({ kind, words, server, own }) => {
  test('is named by the stream, in its log and as a condition', async () => {
    const port = (await server?.()) ?? good.address.port;
    const paths = (await own?.()) ?? node;
    const agent = startAgent(port, { tls: paths });
    const line = await until(() => agent.lines.find(l => l.fault !== undefined));
    expect([line.fault, line.msg]).toEqual([kind, expect.stringMatching(words)]);
    expect(condition(agent.conditions, 'connection')).toMatch(words);
    expect(agent.welcomes).toEqual([]);
  });

  test('is named by the worker as its condition', async () => {
    const port = (await server?.()) ?? good.address.port;
    const tlsPaths = (await own?.()) ?? node;
    const run = startWorker(port, tlsPaths);
    expect(await until(() => condition(run.conditions, 'worker'))).toMatch(words);
    expect(run.lines.some(l => words.test(l.msg))).toBe(true);
  });
});

function startWorker(port: number, paths: TlsPaths): { conditions: Conditions; lines: LogLine[] } {
  const { log, lines } = recordingLog();
  const conditions = new Conditions();
  const worker = new NodeWorker({
    config: {
      nodeId: NODE,
      server: { host: '127.0.0.1', port, tls: true },
      tls: paths,
      reconnectBaseMs: 20,
      reconnectMaxMs: 100,
    },
    activities: {},
    conditions,
    log,
  });
  const stopper = new AbortController();
  const running = worker.run(stopper.signal);
  onTestFinished(async () => {
    stopper.abort();
    await running;
  });
  worker.use('default');
  return { conditions, lines };
}

test('an agent without TLS at a control plane that takes TLS alone is told to set it; that one says who it was', async () => {
  const agent = startAgent(good.address.port);
  const line = await until(() => agent.lines.find(l => l.fault !== undefined));
  expect([line.fault, line.msg]).toEqual(['tls_only', expect.stringContaining('it may take TLS alone')]);
  expect(condition(agent.conditions, 'connection')).toContain('https://');
  await until(() => goodLog.lines.find(l => l.fault === 'not_tls' && l.msg.includes('an agent without tls')));
});

test('a control plane that is away is no fault of certificates, and no condition', async () => {
  const nobody = createServer();
  await new Promise<void>(resolve => nobody.listen(0, '127.0.0.1', resolve));
  const { port } = nobody.address() as AddressInfo;
  await new Promise(resolve => nobody.close(resolve));
  for (const paths of [node, null]) {
    const agent: TestAgent = startAgent(port, { tls: paths });
    await until(() => agent.waits().length >= 2);
    expect(agent.lines.filter(l => l.fault !== undefined)).toEqual([]);
    expect(agent.conditions.list()).toEqual([]);
  }
});

test("a peer that refuses the control plane's certificate by an alert is a line that says why", async () => {
  // The Rust core sends alerts; Node's own clients only close.
  startWorker(good.address.port, { ...node, ca: theirs.server.ca });
  const line = await until(() => goodLog.lines.find(l => l.msg.includes("refused this control plane's")));
  expect(line).toMatchObject({ fault: 'unknown_ca', level: 40 });
});

test('mtls-grpc-06: a chain without its intermediate is refused with the hint to append it, and let in with it', async () => {
  const { files } = readCase('mtls-grpc-06-intermediate-chain').input;
  expect(files.slice(0, 2)).toEqual(['leaf.pem', 'leaf.pem + int.pem']);
  const cp = await controlPlane({ tls: ours.server });
  await forgeLeaf(ours.dir, 'int', { cn: ['Intermediate'], ca: true });
  const below = join(ours.dir, 'below');
  const intermediate = tlsPaths(ours.dir, 'int');
  const dir = (await makePki()).dir;
  for (const [from, to] of [
    [intermediate.cert, 'ca.pem'],
    [intermediate.key, 'ca-key.pem'],
  ] as const) {
    writeFileSync(join(dir, to), readFileSync(from), { mode: 0o600 });
  }
  await forgeLeaf(dir, 'below', { cn: [NODE], sans: IDENTITY, usages: ['clientAuth'] }, ours.dir);
  const alone = tlsPaths(ours.dir, 'below');
  const refused = startAgent(cp.port, { tls: alone });
  const line = await until(() => refused.lines.find(l => l.fault !== undefined));
  expect([line.fault, line.msg]).toEqual(['unknown_ca', expect.stringContaining('its chain is incomplete')]);
  const whole = `${below}-chain.pem`;
  writeFileSync(whole, readFileSync(alone.cert, 'utf8') + readFileSync(intermediate.cert, 'utf8'));
  const agent = startAgent(cp.port, { tls: { ...alone, cert: whole } });
  await until(() => agent.welcomes[0]);
});

test('mtls-grpc-01: a certificate that names no usage at all is let in', async () => {
  const cp = await controlPlane({ tls: ours.server });
  const agent = startAgent(cp.port, { tls: await forged('any-usage', { cn: [NODE], sans: IDENTITY }) });
  await until(() => agent.welcomes[0]);
});

test('mtls-grpc-08: a control plane does not start with a key that it cannot use, and names the file', async () => {
  const start = (key: string) =>
    startAgentEndpoint({
      listen: { host: '127.0.0.1', port: 0 },
      tls: { ...ours.server, key },
      services: [],
      log: goodLog.log,
    });
  for (const [name, content, words] of [
    [
      'locked.pem',
      '-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIG\n-----END ENCRYPTED PRIVATE KEY-----\n',
      'is encrypted',
    ],
    ['garbage.pem', 'garbage', 'is not a PEM key'],
    ['empty.pem', '', 'is empty'],
  ] as const) {
    const file = join(ours.dir, name);
    writeFileSync(file, content, { mode: 0o600 });
    await expect(start(file)).rejects.toThrow(`${file} ${words}`);
  }
  const crlf = join(ours.dir, 'crlf.pem');
  writeFileSync(crlf, readFileSync(ours.server.key, 'utf8').replaceAll('\n', '\r\n'), { mode: 0o644 });
  const at = await start(crlf);
  await at.close(0);
  expect(goodLog.lines.some(l => l.msg.includes(`${crlf} has mode 0644`))).toBe(true);
});
