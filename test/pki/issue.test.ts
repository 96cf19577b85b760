import { createHmac } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { nodeSecret } from '../../lib/engine-key.js';
import { initCa } from '../../lib/pki/ca.js';
import { certInfo, parseCertificates } from '../../lib/pki/cert-info.js';
import { issueClient, issueServer, renewIfBelow } from '../../lib/pki/issue.js';
import { readHexKey } from '../../lib/pki/key-file.js';
import { forgeLeaf } from './forge.js';

const DAY = 86_400_000;
let dir: string;
const read = (file: string): string => readFileSync(join(dir, file), 'utf8');
const mode = (file: string): string => (statSync(join(dir, file)).mode & 0o777).toString(8);
const daysLeft = (file: string): number => (Date.parse(certInfo(read(file)).not_after) - Date.now()) / DAY;

beforeEach(async () => {
  dir = join(mkdtempSync(join(tmpdir(), 'llmgw-test-pki-')), 'made/by/init');
  await initCa(dir);
});
afterEach(() => rmSync(join(dir, '../../..'), { recursive: true, force: true }));

describe('initCa', () => {
  test('writes the CA and both master keys, keys readable by the owner alone, into a directory of the owner', () => {
    expect(readdirSync(dir).sort()).toEqual(['ca-key.pem', 'ca.pem', 'engine-master.key', 'proxy-token.key']);
    expect([mode('ca-key.pem'), mode('engine-master.key'), mode('proxy-token.key')]).toEqual([
      '600',
      '600',
      '600',
    ]);
    expect([mode('ca.pem'), mode('.')]).toEqual(['644', '700']);
    expect(read('engine-master.key')).toMatch(/^[0-9a-f]{64}\n$/);
    expect(read('proxy-token.key')).not.toBe(read('engine-master.key'));
    const [ca] = parseCertificates(read('ca.pem'));
    expect([ca?.ca, ca?.verify(ca.publicKey)]).toEqual([true, true]);
    expect(daysLeft('ca.pem')).toBeCloseTo(3650, 0);
  });

  test('leaves everything as it is when one of its files exists, and names it', async () => {
    rmSync(join(dir, 'ca.pem'));
    const before = readdirSync(dir);
    await expect(initCa(dir)).rejects.toMatchObject({
      code: 'exists',
      message: expect.stringContaining('ca-key.pem'),
    });
    expect(readdirSync(dir)).toEqual(before);
  });

  test('replaces all with force', async () => {
    const before = ['ca.pem', 'ca-key.pem', 'engine-master.key', 'proxy-token.key'].map(read);
    await initCa(dir, { force: true });
    const after = ['ca.pem', 'ca-key.pem', 'engine-master.key', 'proxy-token.key'].map(read);
    expect(after.filter((content, i) => content === before[i])).toEqual([]);
  });
});

describe('issueClient', () => {
  test('writes a clientAuth certificate for the node, its key, and its engine secret', async () => {
    await issueClient(dir, 'gpu-a-01');
    const info = certInfo(read('gpu-a-01.pem'));
    expect(info).toMatchObject({
      cn: 'gpu-a-01',
      sans: ['URI:llmgw:node/gpu-a-01'],
      usages: ['clientAuth'],
      identity: { ok: true, kind: 'node', id: 'gpu-a-01' },
    });
    expect(daysLeft('gpu-a-01.pem')).toBeCloseTo(365, 0);
    expect([mode('gpu-a-01-key.pem'), mode('gpu-a-01-engine.key')]).toEqual(['600', '600']);
    const master = readHexKey(join(dir, 'engine-master.key'));
    const hmac = createHmac('sha256', Buffer.from(master, 'hex')).update('gpu-a-01').digest('hex');
    expect(read('gpu-a-01-engine.key')).toBe(`${hmac}\n`);
    expect(nodeSecret(master, 'gpu-a-01')).toBe(hmac);
  });

  test('is back-dated by an hour, for nodes whose clock is behind', async () => {
    await issueClient(dir, 'gpu-a-01');
    const age = Date.now() - Date.parse(certInfo(read('gpu-a-01.pem')).not_before);
    expect(age).toBeGreaterThanOrEqual(3_600_000);
    expect(age).toBeLessThan(3_700_000);
  });

  test.each([
    'Node-A',
    'node_a',
    '',
    '-a',
    'a/b',
    '../a',
    'a b',
    '*.gpu.example',
    'knoten-ü',
    'ca',
    'ca-key',
    'a'.repeat(254),
  ])('refuses the name %j and writes nothing', async name => {
    const before = readdirSync(dir);
    await expect(issueClient(dir, name)).rejects.toMatchObject({ code: 'bad_input' });
    expect(readdirSync(dir)).toEqual(before);
  });

  test('refuses to replace a file without force, and leaves no half-written set', async () => {
    writeFileSync(join(dir, 'gpu-a-01-key.pem'), 'mine');
    await expect(issueClient(dir, 'gpu-a-01')).rejects.toMatchObject({ code: 'exists' });
    expect(read('gpu-a-01-key.pem')).toBe('mine');
    expect(existsSync(join(dir, 'gpu-a-01.pem'))).toBe(false);
    await issueClient(dir, 'gpu-a-01', { force: true });
    expect(read('gpu-a-01-key.pem')).toContain('PRIVATE KEY');
  });

  test('leaves no temporary files when writing fails', async () => {
    mkdirSync(join(dir, 'gpu-a-01.pem'));
    await expect(issueClient(dir, 'gpu-a-01', { force: true })).rejects.toMatchObject({ code: 'io' });
    expect(readdirSync(dir).filter(f => f.startsWith('.'))).toEqual([]);
  });

  test('without a CA it says which command makes one', async () => {
    rmSync(join(dir, 'ca-key.pem'));
    await expect(issueClient(dir, 'gpu-a-01')).rejects.toThrow(
      /ca-key\.pem does not exist: run `llmgw ctl cert init/,
    );
  });

  test('a CA key of another CA is named', async () => {
    const other = mkdtempSync(join(tmpdir(), 'llmgw-test-pki-'));
    await initCa(other);
    writeFileSync(join(dir, 'ca-key.pem'), readFileSync(join(other, 'ca-key.pem')));
    rmSync(other, { recursive: true });
    await expect(issueClient(dir, 'gpu-a-01')).rejects.toThrow(
      /ca-key\.pem does not belong to a certificate in .*ca\.pem/,
    );
  });

  test('never outlives its CA', async () => {
    await issueClient(dir, 'gpu-a-01', { days: 9000 });
    expect(certInfo(read('gpu-a-01.pem')).not_after).toBe(certInfo(read('ca.pem')).not_after);
  });
});

describe('issueServer', () => {
  test('is for both ends and has the hosts that agents dial', async () => {
    await issueServer(dir, 'cp-1', { hosts: ['LLMGW.internal', '10.0.0.5', '[fd00::5]'] });
    expect(certInfo(read('cp-1.pem'))).toMatchObject({
      sans: [
        'URI:llmgw:server/cp-1',
        'DNS:llmgw.internal',
        'IP Address:10.0.0.5',
        'IP Address:FD00:0:0:0:0:0:0:5',
      ],
      usages: ['serverAuth', 'clientAuth'],
    });
    expect(existsSync(join(dir, 'cp-1-engine.key'))).toBe(false);
  });

  test('by default has its name and the loopback addresses', async () => {
    await issueServer(dir, 'cp-1');
    expect(certInfo(read('cp-1.pem')).sans.slice(1)).toEqual([
      'DNS:cp-1',
      'DNS:localhost',
      'IP Address:127.0.0.1',
      'IP Address:0:0:0:0:0:0:0:1',
    ]);
  });

  test.each(['https://cp.internal', 'cp.internal:7443', '*.internal', 'a b', ''])(
    'refuses the host %j',
    async host => {
      await expect(issueServer(dir, 'cp-1', { hosts: [host] })).rejects.toMatchObject({ code: 'bad_input' });
    },
  );
});

describe('renewIfBelow', () => {
  test('keeps a certificate that lasts longer', async () => {
    await issueServer(dir, 'cp-1', { days: 31 });
    const before = read('cp-1.pem');
    expect(await renewIfBelow(dir, 'cp-1', 30)).toBe(false);
    expect(read('cp-1.pem')).toBe(before);
  });

  test('issues one below the limit again, with kind and hosts kept', async () => {
    await issueServer(dir, 'cp-1', { days: 29, hosts: ['llmgw.internal', 'fd00::5'] });
    await issueClient(dir, 'gpu-a-01', { days: 29 });
    const before = [certInfo(read('cp-1.pem')), certInfo(read('gpu-a-01.pem'))];
    const secret = read('gpu-a-01-engine.key');
    expect([await renewIfBelow(dir, 'cp-1', 30), await renewIfBelow(dir, 'gpu-a-01', 30)]).toEqual([
      true,
      true,
    ]);
    expect([daysLeft('cp-1.pem'), daysLeft('gpu-a-01.pem')].map(Math.round)).toEqual([365, 365]);
    expect(certInfo(read('cp-1.pem')).sans).toEqual(before[0]?.sans);
    expect(certInfo(read('gpu-a-01.pem')).sans).toEqual(before[1]?.sans);
    expect(read('gpu-a-01-engine.key')).toBe(secret);
  });

  test('issues again what another CA had issued', async () => {
    await issueClient(dir, 'gpu-a-01');
    await initCa(dir, { force: true });
    expect(await renewIfBelow(dir, 'gpu-a-01', 30)).toBe(true);
    const [ca] = parseCertificates(read('ca.pem'));
    expect(ca && parseCertificates(read('gpu-a-01.pem'))[0]?.verify(ca.publicKey)).toBe(true);
  });

  test('names the file that is missing', async () => {
    await expect(renewIfBelow(dir, 'gpu-a-01', 30)).rejects.toThrow(/gpu-a-01\.pem does not exist/);
  });
});

test('an intermediate CA is appended after the leaf, its root is not', async () => {
  await forgeLeaf(dir, 'int', { cn: ['Intermediate'], ca: true });
  writeFileSync(join(dir, 'ca.pem'), read('int.pem') + read('ca.pem'));
  writeFileSync(join(dir, 'ca-key.pem'), read('int-key.pem'));
  await issueClient(dir, 'gpu-a-01');
  expect(parseCertificates(read('gpu-a-01.pem')).map(c => c.subject)).toEqual([
    'CN=gpu-a-01',
    'CN=Intermediate',
  ]);
});

test.each(['', 'zz', `${'a'.repeat(63)}\n`, `${'a'.repeat(64)}\n${'b'.repeat(64)}\n`])(
  'a key file with %j is named as broken',
  content => {
    const file = join(dir, 'x.key');
    writeFileSync(file, content);
    expect(() => readHexKey(file)).toThrow(`${file} is not a key: expected 64 hex digits on one line.`);
  },
);
