// Certificates that change, half change or end under a running agent and a running control plane: nothing is started
// again, what is connected stays, and the next connection goes by what is there then.
import { X509Certificate } from 'node:crypto';
import { copyFileSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import tls from 'node:tls';
import { expect, onTestFinished, test } from 'vitest';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import type { TlsPaths } from '../../lib/tls/load.js';
import { startAgentEndpoint } from '../../server/stream/endpoint.js';
import { forgeLeaf } from '../pki/forge.js';
import {
  controlPlane,
  makePki,
  recordingLog,
  startAgent,
  type TestAgent,
  tempDir,
  tlsPaths,
  until,
} from './support.js';

const SECOND = 1 / 86_400;

/** Replaced as tools do it: written beside, then renamed. */
function replace(from: string, to: string): void {
  copyFileSync(from, `${to}.new`);
  renameSync(`${to}.new`, to);
}

/** A copy of the three files, to be rotated. */
function installed(from: TlsPaths): TlsPaths {
  const to = tlsPaths(tempDir(), 'node');
  for (const part of ['ca', 'cert', 'key'] as const) replace(from[part], to[part]);
  return to;
}

const serialOf = (file: string): string => new X509Certificate(readFileSync(file)).serialNumber;

/** The serial of the certificate that a new connection is shown. */
function servedSerial(port: number, paths: TlsPaths): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = tls.connect({
      host: '127.0.0.1',
      port,
      cert: readFileSync(paths.cert),
      key: readFileSync(paths.key),
      rejectUnauthorized: false,
      ALPNProtocols: ['h2'],
    });
    socket.once('error', reject);
    socket.once('secureConnect', () => {
      resolve(socket.getPeerCertificate().serialNumber);
      socket.destroy();
    });
  });
}

const condition = (agent: TestAgent, code: string): string | undefined =>
  agent.conditions.list().find(c => c.code === code)?.message;

test("a control plane's new certificate is what new connections get; the streams that stand go on", async () => {
  const pki = await makePki();
  const paths = installed(pki.server);
  const cp = await controlPlane({ tls: paths });
  const node = await pki.client('gpu-a-01');
  const agent = startAgent(cp.port, { tls: node });
  await until(() => agent.welcomes[0]);
  expect(await servedSerial(cp.port, node)).toBe(serialOf(pki.server.cert));

  await issueServer(pki.dir, 'cp-2', { hosts: ['127.0.0.1'] });
  const next = tlsPaths(pki.dir, 'cp-2');
  replace(next.cert, paths.cert);
  const bad = await until(() => cp.lines.find(l => l.fault === 'key_mismatch'));
  expect(bad.msg).toContain('New connections get the certificate of before');
  expect(await servedSerial(cp.port, node)).toBe(serialOf(pki.server.cert));

  replace(next.key, paths.key);
  await until(() => cp.lines.find(l => l.msg.includes('has changed: new connections get it')));
  expect(await servedSerial(cp.port, node)).toBe(serialOf(next.cert));
  const other = startAgent(cp.port, { nodeId: 'gpu-b-02', tls: await pki.client('gpu-b-02') });
  await until(() => other.welcomes[0]);
  expect(agent.welcomes).toHaveLength(1);
  expect(agent.waits()).toEqual([]);
  expect(cp.lines.filter(l => l.fault === 'key_mismatch')).toHaveLength(1);
});

test('a CA is rotated with both in ca.pem: old and new certificates get in, until the old CA is taken out', async () => {
  const [old, fresh] = [await makePki(), await makePki()];
  const both = join(tempDir(), 'both.pem');
  writeFileSync(both, readFileSync(old.server.ca, 'utf8') + readFileSync(fresh.server.ca, 'utf8'));
  const server = installed(old.server);
  const cp = await controlPlane({ tls: server });
  const changes = () => cp.lines.filter(l => l.msg.includes('has changed: new connections get it')).length;
  const oldNode = installed(await old.client('gpu-a-01'));
  const newNode = installed(await fresh.client('gpu-b-02'));
  const agentOf = (nodeId: string, paths: TlsPaths) => startAgent(cp.port, { nodeId, tls: paths });

  const early = agentOf('gpu-b-02', newNode);
  await until(() => early.lines.find(l => l.fault === 'unknown_ca'));
  await early.stop();

  for (const at of [server, oldNode, newNode]) replace(both, at.ca);
  await until(() => changes() === 1);
  const first = agentOf('gpu-a-01', oldNode);
  const second = agentOf('gpu-b-02', newNode);
  for (const agent of [first, second]) await until(() => agent.welcomes[0]);

  // The server's own certificate moves on; both nodes trust both CAs.
  replace(fresh.server.cert, server.cert);
  replace(fresh.server.key, server.key);
  await until(() => changes() === 2);
  const third = agentOf('gpu-c-03', installed({ ...(await fresh.client('gpu-c-03')), ca: both }));
  await until(() => third.welcomes[0]);

  replace(fresh.server.ca, server.ca);
  await until(() => changes() === 3);
  await first.stop();
  const late = agentOf('gpu-a-01', oldNode);
  const line = await until(() => late.lines.find(l => l.server_says !== undefined));
  expect(line).toMatchObject({ fault: 'unknown_ca', certificate: 'gpu-a-01' });
  expect(cp.lines.some(l => l.subject === 'gpu-a-01' && l.reason !== undefined)).toBe(true);
  expect(second.welcomes).toHaveLength(1);
});

test("a node's pair that is half written is a condition; its next connection uses the pair of before", async () => {
  const pki = await makePki();
  const paths = installed(await pki.client('gpu-a-01'));
  const cp = await controlPlane({ tls: pki.server });
  const agent = startAgent(cp.port, { tls: paths, reconnectMaxMs: 100 });
  const { session } = await until(() => agent.welcomes[0]);

  await issueClient(pki.dir, 'gpu-a-01', { force: true });
  const next = tlsPaths(pki.dir, 'gpu-a-01');
  replace(next.cert, paths.cert);
  await until(() => condition(agent, 'certificate')?.includes(paths.key));
  expect(condition(agent, 'certificate')).toContain('The pair of before stays in use');
  // The stream is up, so the control plane shows it.
  await until(() => cp.inventories.some(i => i.conditions.some(c => c.code === 'certificate')));
  cp.hub.supersede('gpu-a-01', session + 1, 'cp-2');
  await until(() => agent.welcomes[1]);
  expect(condition(agent, 'certificate')).toContain(paths.key);

  replace(next.key, paths.key);
  await until(() => condition(agent, 'certificate') === undefined);
});

test('an agent that waits between two attempts dials at once when its certificate has changed', async () => {
  const [pki, other] = [await makePki(), await makePki()];
  const cp = await controlPlane({ tls: pki.server });
  const paths = installed({ ...(await other.client('gpu-a-01')), ca: pki.server.ca });
  const agent = startAgent(cp.port, { tls: paths, reconnectBaseMs: 3_600_000, reconnectMaxMs: 3_600_000 });
  await until(() => agent.waits().length === 1);
  expect(condition(agent, 'connection')).toContain('does not lead to a CA');
  const good = await pki.client('gpu-a-01');
  replace(good.key, paths.key);
  replace(good.cert, paths.cert);
  await until(() => agent.welcomes[0]);
  expect(condition(agent, 'connection')).toBeUndefined();
});

test("a node's certificate that ends under a stream: it goes on; the next one is refused by both names of the fault; a new certificate brings it back", async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const paths = tlsPaths(pki.dir, 'short');
  const sans = [{ type: 'url' as const, value: 'llmgw:node/gpu-a-01' }];
  const forge = (seconds: number) =>
    forgeLeaf(pki.dir, 'short', { cn: ['gpu-a-01'], sans, usages: ['clientAuth'], to: seconds * SECOND });
  await forge(4);
  const never = { reconnectBaseMs: 3_600_000, reconnectMaxMs: 3_600_000 };
  const agent = startAgent(cp.port, { tls: paths, ...never, inventoryEveryMs: 0 });
  const refused = () => agent.lines.filter(l => l.server_says !== undefined).length;
  // A machine that is too busy to connect in that time gets a longer one.
  for (const seconds of [12, 36]) {
    await until(() => agent.welcomes.length > 0 || refused() > 0);
    if (agent.welcomes.length === 0) await forge(seconds);
  }
  const { session } = await until(() => agent.welcomes[0]);
  const refusedBefore = refused();
  await until(() => condition(agent, 'certificate')?.includes(' expired on '));
  await until(() => cp.inventories.at(-1)?.conditions.some(c => c.message.includes(' expired on ')));
  const beats = cp.beats.length;
  await until(() => cp.beats.length >= beats + 3);
  expect(agent.welcomes).toHaveLength(1);

  cp.hub.goAway('it is replaced');
  await until(() => refused() > refusedBefore);
  const line = agent.lines.findLast(l => l.server_says !== undefined);
  expect(line).toMatchObject({ fault: 'expired', certificate: 'gpu-a-01' });
  expect(line?.server_says).toContain('it has expired');
  expect(cp.lines.find(l => l.reason === 'CERT_HAS_EXPIRED')).toMatchObject({
    subject: 'gpu-a-01',
    serial: expect.stringMatching(/^[0-9A-F]+$/),
  });
  expect(condition(agent, 'connection')).toContain('it has expired');

  const good = await pki.client('gpu-a-01');
  replace(good.key, paths.key);
  replace(good.cert, paths.cert);
  expect((await until(() => agent.welcomes[1])).session).toBeGreaterThan(session);
  await until(() => agent.conditions.list().length === 0);
});

test("a control plane's certificate that has ended is named by its log and by the agents that it turns away", async () => {
  const pki = await makePki();
  const paths = installed(pki.server);
  const sans = [{ type: 'ip' as const, value: '127.0.0.1' }];
  await forgeLeaf(pki.dir, 'short', { cn: ['cp-1'], sans, usages: ['serverAuth'], to: 4 * SECOND });
  const short = tlsPaths(pki.dir, 'short');
  replace(short.key, paths.key);
  replace(short.cert, paths.cert);
  const cp = await controlPlane({ tls: paths });
  await until(() => cp.lines.find(l => l.msg.includes(`${paths.cert} expired on`)));
  const agent = startAgent(cp.port, { tls: await pki.client('gpu-a-01'), reconnectMaxMs: 100 });
  const line = await until(() => agent.lines.find(l => l.fault === 'expired'));
  expect(line.msg).toContain(`The certificate of 127.0.0.1:${cp.port} has expired`);
  expect(condition(agent, 'connection')).toContain('has expired');
  replace(pki.server.key, paths.key);
  replace(pki.server.cert, paths.cert);
  await until(() => agent.welcomes[0]);
});

test('no session is resumed: each connection is judged by the certificate that it shows', async () => {
  const pki = await makePki();
  const cp = await controlPlane({ tls: pki.server });
  const node = await pki.client('gpu-a-01');
  const options = {
    host: '127.0.0.1',
    port: cp.port,
    ca: readFileSync(node.ca),
    cert: readFileSync(node.cert),
    key: readFileSync(node.key),
    ALPNProtocols: ['h2'],
  };
  for (const maxVersion of ['TLSv1.2', 'TLSv1.3'] as const) {
    const sessions: Buffer[] = [];
    const first = tls.connect({ ...options, maxVersion });
    first.on('session', session => sessions.push(session));
    // The server's SETTINGS come after whatever tickets it gives.
    await new Promise(resolve => first.once('data', resolve));
    const session = sessions[0] ?? first.getSession();
    first.destroy();
    const second = tls.connect({ ...options, maxVersion, ...(session === undefined ? {} : { session }) });
    await new Promise(resolve => second.once('secureConnect', resolve));
    expect([maxVersion, second.isSessionReused()]).toEqual([maxVersion, false]);
    second.destroy();
  }
});

test('whoever shows the same certificate elsewhere is given each new pair', async () => {
  const pki = await makePki();
  const paths = installed(pki.server);
  const renewed: string[] = [];
  const endpoint = await startAgentEndpoint({
    listen: { host: '127.0.0.1', port: 0 },
    tls: paths,
    services: [],
    log: recordingLog().log,
    lookEveryMs: 20,
    onRenewed: files => renewed.push(files.info.cn ?? ''),
  });
  onTestFinished(() => endpoint.close(0));
  await issueServer(pki.dir, 'cp-2');
  replace(tlsPaths(pki.dir, 'cp-2').key, paths.key);
  replace(tlsPaths(pki.dir, 'cp-2').cert, paths.cert);
  await until(() => renewed.length > 0);
  expect(renewed).toEqual(['cp-2']);
});
