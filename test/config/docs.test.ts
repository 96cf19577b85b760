import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { agentConfigSchema, loadAgentConfig } from '../../agent/config.js';
import { keyPaths } from '../../contracts/schema-walk.js';
import { checkConfigCommand } from '../../lib/config/check.js';
import { loadRouterConfig, routerConfigSchema } from '../../router/config.js';
import { loadServerConfig, serverConfigSchema } from '../../server/config.js';

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
    const rows = [...section(name).matchAll(/^\| `([^`]+)` \|/gm)].map(match => match[1]);
    expect(rows.toSorted()).toEqual(keyPaths(schema).toSorted());
  });
});

describe('--check-config', () => {
  const run = (file: string, json: boolean) => {
    const out: string[] = [];
    const err: string[] = [];
    const code = checkConfigCommand(loadServerConfig, file, json, {
      out: text => void out.push(text),
      err: text => void err.push(text),
    });
    return { code, out: out.join(''), err: err.join('') };
  };
  it('exits 0 and prints the resolved configuration as JSON', () => {
    expect(run(`${examples}server.yaml`, false)).toEqual({
      code: 0,
      out: `${examples}server.yaml: ok\n`,
      err: '',
    });
    const { code, out } = run(`${examples}server-minimal.yaml`, true);
    expect(code).toBe(0);
    expect(JSON.parse(out)).toMatchObject({
      ok: true,
      config: { liveness: { lost_after: 30_000 } },
      errors: [],
    });
  });
  it('exits 2 with every fault', () => {
    const { code, out } = run(`${examples}router.yaml`, true);
    expect(code).toBe(2);
    const { ok, config, errors } = JSON.parse(out);
    expect({ ok, config }).toEqual({ ok: false, config: null });
    expect(errors).toContainEqual({
      file: `${examples}router.yaml`,
      line: expect.any(Number),
      column: 1,
      key: 'max_body',
      message: 'unknown key',
      expected: expect.stringContaining('listen'),
      nearest: null,
    });
    expect(run(`${examples}nothing.yaml`, false)).toMatchObject({
      code: 2,
      err: expect.stringContaining('no such file'),
    });
  });
});
