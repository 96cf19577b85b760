// The files of a process that runs for months are replaced under it, one by one, by rename or by a changed link.
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import { datesSentence, TlsKeeper } from '../../lib/tls/keeper.js';
import type { TlsFiles, TlsPaths } from '../../lib/tls/load.js';
import { forgeLeaf } from './forge.js';

let pki: string;
let dir: string;
let paths: TlsPaths;
const source = (file: string) => join(pki, file);

/** As certbot, cert-manager and `mv` do it. */
function put(from: string, to: string): void {
  copyFileSync(source(from), `${to}.new`);
  renameSync(`${to}.new`, to);
}

beforeAll(async () => {
  pki = mkdtempSync(join(tmpdir(), 'llmgw-keeper-pki-'));
  await initCa(pki);
  await issueClient(pki, 'n1');
  await issueClient(pki, 'n2');
  await issueServer(pki, 'cp');
  await forgeLeaf(pki, 'old', { cn: ['n1'], usages: ['clientAuth'], from: -3, to: -1 });
});
beforeEach(() => {
  dir = mkdtempSync(join(pki, 'node-'));
  paths = { ca: join(dir, 'ca.pem'), cert: join(dir, 'n.pem'), key: join(dir, 'n-key.pem') };
  put('ca.pem', paths.ca);
  put('n1.pem', paths.cert);
  put('n1-key.pem', paths.key);
});
afterAll(() => rmSync(pki, { recursive: true, force: true }));

test('a pair that was replaced by rename is found; files that stay are no news', () => {
  const keeper = new TlsKeeper(paths, 'client');
  expect(keeper.current().info.cn).toBe('n1');
  expect(keeper.look()).toBe(false);
  put('n2.pem', paths.cert);
  put('n2-key.pem', paths.key);
  expect(keeper.look()).toBe(true);
  expect(keeper.files?.info.cn).toBe('n2');
  expect(keeper.look()).toBe(false);
});

test('a half-written pair is told and the pair before it kept, until the other half is there', () => {
  const keeper = new TlsKeeper(paths, 'client');
  keeper.current();
  put('n2.pem', paths.cert);
  expect(keeper.look()).toBe(false);
  expect(keeper.problem?.code).toBe('key_mismatch');
  expect(keeper.current().info.cn).toBe('n1');
  put('n2-key.pem', paths.key);
  expect(keeper.look()).toBe(true);
  expect(keeper.problem).toBeNull();
});

test('a file that is cut off, empty or gone for a moment is told by its name, and the pair kept', () => {
  const keeper = new TlsKeeper(paths, 'client');
  keeper.current();
  for (const spoil of [
    () => writeFileSync(paths.key, '-----BEGIN PRIVATE KEY-----\nMIG'),
    () => writeFileSync(paths.key, ''),
    () => rmSync(paths.key),
  ]) {
    spoil();
    keeper.look();
    expect(keeper.problem?.file).toBe(paths.key);
    expect(keeper.current().info.cn).toBe('n1');
  }
  put('n1-key.pem', paths.key);
  expect(keeper.look()).toBe(false); // the pair of before, and usable again
  expect(keeper.problem).toBeNull();
});

test('a link that points elsewhere is a change', () => {
  for (const [version, name] of [
    ['v1', 'n1'],
    ['v2', 'n2'],
  ] as const) {
    mkdirSync(join(dir, version));
    put(`${name}.pem`, join(dir, version, 'tls.crt'));
    put(`${name}-key.pem`, join(dir, version, 'tls.key'));
  }
  symlinkSync('v1', join(dir, 'data'));
  const at = { ca: paths.ca, cert: join(dir, 'data/tls.crt'), key: join(dir, 'data/tls.key') };
  const keeper = new TlsKeeper(at, 'client');
  expect(keeper.current().info.cn).toBe('n1');
  symlinkSync('v2', join(dir, 'data.new'));
  renameSync(join(dir, 'data.new'), join(dir, 'data'));
  expect(keeper.look()).toBe(true);
  expect(keeper.current().info.cn).toBe('n2');
});

test('files that never could be used are an error that names one, and are used once they can be', () => {
  put('n2-key.pem', paths.key);
  const keeper = new TlsKeeper(paths, 'client');
  expect(() => keeper.current()).toThrow(paths.key);
  expect(keeper.files).toBeNull();
  put('n1-key.pem', paths.key);
  expect(keeper.current().info.cn).toBe('n1');
});

test('a fault that stays is one sentence, whatever the time of day', () => {
  put('old.pem', paths.cert);
  put('old-key.pem', paths.key);
  const keeper = new TlsKeeper(paths, 'client');
  keeper.look();
  const first = keeper.problem;
  keeper.look();
  expect(first?.code).toBe('expired');
  expect(keeper.problem).toBe(first);
});

test('who lets the peer judge keeps a certificate that is out of its dates', () => {
  put('old.pem', paths.cert);
  put('old-key.pem', paths.key);
  const files = new TlsKeeper(paths, 'client', { anyDate: true }).current();
  expect(files.outOfDate?.code).toBe('expired');
  expect(datesSentence(paths, files)).toContain(`${paths.cert} expired on `);
});

test('the end of a certificate is told a week ahead, or in the last quarter of a short life', () => {
  const day = 86_400_000;
  const files = (from: number, to: number) => {
    const date = (days: number) => new Date(days * day).toISOString();
    return { info: { not_before: date(from), not_after: date(to) } } as TlsFiles;
  };
  const year = files(0, 365);
  expect(datesSentence(paths, year, 357 * day)).toBeNull();
  expect(datesSentence(paths, year, 359 * day)).toContain('expires on 1971-01-01T00:00:00.000Z');
  expect(datesSentence(paths, year, 366 * day)).toContain('expired on');
  expect(datesSentence(paths, year, -1)).toContain('is not valid before');
  const short = files(0, 1);
  expect(datesSentence(paths, short, 0.7 * day)).toBeNull();
  expect(datesSentence(paths, short, 0.8 * day)).toContain('expires on');
});
