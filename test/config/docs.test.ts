import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { agentConfigSchema, loadAgentConfig } from '../../agent/config.js';
import { agentFileWarnings } from '../../agent/config-files.js';
import { keyPaths } from '../../contracts/schema-walk.js';
import { checkConfigCommand } from '../../lib/config/check.js';
import { loadRouterConfig, routerConfigSchema } from '../../router/config.js';
import { routerFileWarnings } from '../../router/config-files.js';
import { loadServerConfig, serverConfigSchema } from '../../server/config.js';
import { serverFileWarnings } from '../../server/config-files.js';
import { makePki } from '../stream/support.js';

const examples = new URL('../../deploy/examples/', import.meta.url).pathname;
const loaders = { agent: loadAgentConfig, server: loadServerConfig, router: loadRouterConfig };
const files = readdirSync(examples).filter(name => /^(agent|server|router)\b.*\.yaml$/.test(name));

describe('deploy/examples', () => {
  it('has a minimal and a full file for each part', () => {
    expect(files).toEqual(
      expect.arrayContaining([
        'agent-minimal.yaml',
        'agent.yaml',
        'server-minimal.yaml',
        'server.yaml',
        'router-minimal.yaml',
        'router.yaml',
      ]),
    );
  });
  it.each(files)('%s passes', name => {
    const kind = name.match(/^[a-z]+/)![0] as keyof typeof loaders;
    expect(loaders[kind](`${examples}${name}`).errors).toEqual([]);
  });
});

describe('docs/config.md', () => {
  const text = readFileSync(new URL('../../docs/config.md', import.meta.url), 'utf8');
  const section = (name: string) => text.split(/^## /m).find(part => part.startsWith(name)) ?? '';
  it.each([
    ['agent.yaml', agentConfigSchema()],
    ['server.yaml', serverConfigSchema],
    ['router.yaml', routerConfigSchema],
  ] as const)('has a row for every key of %s, and none for others', (name, schema) => {
    const rows = [...section(name).matchAll(/^\| `([^`{]+)` \|/gm)].map(match => match[1]);
    expect(rows.toSorted()).toEqual(keyPaths(schema).toSorted());
  });
});

describe('--check-config', () => {
  const run = (file: string, json: boolean) => {
    const out: string[] = [];
    const err: string[] = [];
    const output = { out: (text: string) => void out.push(text), err: (text: string) => void err.push(text) };
    const part = Object.keys(loaders).find(name => basename(file).startsWith(name)) as keyof typeof loaders;
    const code =
      part === 'agent'
        ? checkConfigCommand(loadAgentConfig, file, { json, files: agentFileWarnings, output })
        : part === 'server'
          ? checkConfigCommand(loadServerConfig, file, { json, files: serverFileWarnings, output })
          : checkConfigCommand(loadRouterConfig, file, { json, files: routerFileWarnings, output });
    return { code, out: out.join(''), err: err.join('') };
  };
  const dir = mkdtempSync(join(tmpdir(), 'llmgw-check-'));
  afterAll(() => rmSync(dir, { recursive: true }));
  const written = (name: string, text: string) => {
    writeFileSync(join(dir, name), text, { mode: 0o600 });
    return join(dir, name);
  };

  it('exits 0 and prints the resolved configuration as JSON', () => {
    const minimal = `${examples}server-minimal.yaml`;
    expect(run(minimal, false)).toMatchObject({ code: 0, out: `${minimal}: ok\n` });
    const { code, out } = run(minimal, true);
    expect(code).toBe(0);
    expect(JSON.parse(out)).toMatchObject({
      ok: true,
      config: { liveness: { lost_after: 30_000 } },
      errors: [],
    });
  });

  it('exits 2 with every fault', () => {
    const file = written('router.yaml', 'max_boody: 1\nserver: x\ntimeouts: {connect: 1}\n');
    const { code, out, err } = run(file, true);
    expect({ code, err }).toEqual({ code: 2, err: '' });
    const { ok, config, errors, warnings } = JSON.parse(out);
    expect({ ok, config, warnings }).toEqual({ ok: false, config: null, warnings: [] });
    expect(errors.map((error: { key: string }) => error.key)).toEqual([
      'max_boody',
      'server',
      'timeouts.connect',
    ]);
    expect(errors[0]).toEqual({
      file,
      line: 1,
      column: 1,
      key: 'max_boody',
      message: 'unknown key',
      expected: expect.stringContaining('listen'),
      nearest: 'max_body',
    });
    expect(run(`${examples}nothing.yaml`, false)).toMatchObject({
      code: 2,
      err: expect.stringContaining('no such file'),
    });
  });

  it('passes a file of which nothing is there, and warns of each with its line', () => {
    const { code, out, err } = run(`${examples}agent.yaml`, false);
    expect({ code, out }).toEqual({ code: 0, out: `${examples}agent.yaml: ok\n` });
    expect(err).toMatch(
      /^warning: .*agent\.yaml:\d+:\d+: engines\.vllm\.bin: \/opt\/.*\/vllm does not exist$/m,
    );
    const { ok, errors, warnings } = JSON.parse(run(`${examples}agent.yaml`, true).out);
    expect({ ok, errors }).toEqual({ ok: true, errors: [] });
    expect(warnings[0]).toMatchObject({ key: 'engines.vllm.bin', line: expect.any(Number), nearest: null });
  });

  it('warns of what the named files hold', async () => {
    const pki = await makePki();
    const [one, other] = [await pki.client('gpu-a-01'), await pki.client('gpu-a-02')];
    chmodSync(one.key, 0o644);
    const tls = (key: string) => `tls: {ca: ${one.ca}, cert: ${one.cert}, key: ${key}}\n`;
    const agent = (text: string) =>
      run(written('agent.yaml', `server: https://a:1\nnode_id: gpu-a-01\n${text}`), false).err;
    expect(agent(tls(other.key))).toMatch(/agent.yaml:3:\d+: tls.key: .* is not the key of the certificate/);
    expect(agent(tls(one.key))).toMatch(/has mode 0644/);
    expect(agent(tls('/no/key'))).toContain('tls.key: /no/key does not exist');
    expect(agent(tls(one.ca))).toContain('not a PEM key');
    expect(agent(`${tls(one.key)}secrets_dir: ${one.ca}\n`)).toContain('is not a directory');
    expect(agent(`${tls(one.key)}engine_key_file: ${written('empty', '')}\n`)).toContain('empty is empty');
    const router = (text: string) => run(written('router.yaml', `server: http://a:1\n${text}`), false).err;
    expect(router(`tls: {cert: ${one.cert}, key: ${other.key}}\n`)).toContain(
      'is not the key of the certificate',
    );
    expect(router(`tls: {cert: ${one.cert}, key: ${one.key}}\n`)).toBe('');
    expect(router('token_file: /no/token\n')).toMatch(
      /router.yaml:2:1: token_file: \/no\/token does not exist/,
    );
    const server = run(written('server.yaml', 'tokens_file: /no/tokens\nsecrets_dir: /no/dir\n'), false).err;
    expect(server.split('\n')).toHaveLength(3);
    const secrets = (text: string) => {
      const folder = mkdtempSync(join(dir, 'secrets-'));
      if (text !== '') writeFileSync(join(folder, 'proxy-token.key'), text, { mode: 0o600 });
      return run(written('server.yaml', `secrets_dir: ${folder}\n`), false).err;
    };
    expect(secrets('')).toMatch(
      /server.yaml:1:1: secrets_dir: .*proxy-token.key does not exist; .*cert init/,
    );
    expect(secrets('no key\n')).toContain('must hold 64 hex digits');
    expect(secrets(`${'a'.repeat(64)}\n`)).toBe('');
  });
});
