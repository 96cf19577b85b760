import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { certCommand } from '../../ctl/cert.js';
import { certInfo } from '../../lib/pki/cert-info.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-test-cert-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Runs `llmgw ctl cert …` as the whole command line does, nested below its parents. */
async function ctl(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const result = { code: 0, out: '', err: '' };
  const cert = certCommand({
    out: text => {
      result.out += text;
    },
    err: text => {
      result.err += text;
    },
    exit: code => {
      result.code = code;
    },
  });
  const program = new Command('llmgw').addCommand(new Command('ctl').addCommand(cert));
  try {
    await program.parseAsync(['ctl', 'cert', ...args], { from: 'user' });
  } catch (error) {
    if (!String((error as { code?: unknown }).code).startsWith('commander.')) throw error;
  }
  return result;
}

test('the three commands make a CA, a server and a node, and say what was written and what comes next', async () => {
  const pki = join(dir, 'pki');
  const init = await ctl('init', '--dir', pki);
  expect(init).toMatchObject({ code: 0, err: '' });
  expect(init.out).toContain(`wrote ${pki}/ca-key.pem`);
  expect(init.out).toContain(`llmgw ctl cert issue-server NAME --dir ${pki}`);

  const server = await ctl(
    'issue-server',
    'cp-1',
    '--dir',
    pki,
    '--hosts',
    'cp.internal, 10.0.0.5',
    '--days',
    '90',
  );
  expect(server).toMatchObject({ code: 0, err: '' });
  const info = certInfo(readFileSync(join(pki, 'cp-1.pem')));
  expect(info.sans).toEqual(['URI:llmgw:server/cp-1', 'DNS:cp.internal', 'IP Address:10.0.0.5']);
  expect(Math.round((Date.parse(info.not_after) - Date.now()) / 86_400_000)).toBe(90);

  const client = await ctl('issue-client', 'gpu-a-01', '--dir', pki);
  expect(client).toMatchObject({ code: 0, err: '' });
  for (const file of ['gpu-a-01.pem', 'gpu-a-01-key.pem', 'gpu-a-01-engine.key']) {
    expect(client.out).toContain(`wrote ${join(pki, file)}`);
    expect(existsSync(join(pki, file))).toBe(true);
  }
  expect(client.out).toContain('node_id: gpu-a-01');
});

test('an existing file is exit 1 with --force named; with it the file is replaced', async () => {
  await ctl('init', '--dir', dir);
  const again = await ctl('init', '--dir', dir);
  expect(again.code).toBe(1);
  expect(again.err).toMatch(
    /^error: .*ca\.pem.* exist already and nothing was written: add --force to replace them\.\n$/,
  );
  expect((await ctl('init', '--dir', dir, '--force')).code).toBe(0);
});

test.each([
  [['issue-client', 'Node_A', '--dir', 'DIR'], /No certificate for this name/],
  [['issue-server', 'cp', '--dir', 'DIR', '--hosts', 'https://cp'], /can't be a host/],
  [['issue-client', 'a', '--dir', 'DIR', '--days', '0'], /whole number from 1 to 3650/],
  [['issue-client', 'a', '--dir', 'DIR', '--hosts', 'x'], /unknown option '--hosts'/],
  [['issue-client', '--dir', 'DIR'], /missing required argument 'name'/],
  [['issue-client', 'a'], /required option '--dir <dir>' not specified/],
  [['issue-node', 'a'], /unknown command/],
])('%j is exit 2 with a sentence', async (args, sentence) => {
  await ctl('init', '--dir', dir);
  const { code, err } = await ctl(...args.map(a => (a === 'DIR' ? dir : a)));
  expect(code).toBe(2);
  expect(err).toMatch(sentence);
  expect(existsSync(join(dir, 'a.pem'))).toBe(false);
});

test('a missing CA is exit 1 and names the command that makes one', async () => {
  const { code, err } = await ctl('issue-client', 'a', '--dir', dir);
  expect([code, err]).toEqual([1, expect.stringContaining(`llmgw ctl cert init --dir ${dir}`)]);
});

test('--help is exit 0', async () => {
  const { code, out } = await ctl('issue-server', '--help');
  expect([code, out]).toEqual([0, expect.stringContaining('--hosts <list>')]);
});
