// What `agent --check` finds out about the agent's own files, as conditions.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { inventoryOf } from '../../agent/check.js';
import { loadAgentConfigText } from '../../agent/config.js';
import { agentPid } from '../../agent/identity.js';
import { checkedSources, limitsProblem } from '../../agent/limits.js';
import { makePki, tempDir } from '../stream/support.js';

async function conditionsWith(
  changes: { node?: string; key?: string; text?: string } = {},
): Promise<string[]> {
  const { node = 'gpu-a-01', text = '' } = changes;
  const tls = await (await makePki()).client('gpu-a-01');
  const yaml = `node_id: ${node}\nserver: https://a:1\ndiscovery: {skip_gpus: true, ib_root: /none}\nsupervisor: {work_dir: ${tempDir()}}\ntls: {ca: ${tls.ca}, cert: ${tls.cert}, key: ${changes.key ?? tls.key}}\n${text}`;
  const loaded = loadAgentConfigText(yaml, 'a');
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.errors));
  return (await inventoryOf(loaded.config)).conditions.map(({ code, message }) => `${code}: ${message}`);
}

it('a certificate that fits is no condition', async () => {
  expect(await conditionsWith()).toEqual([]);
});

it('one of another node, or without its key, is', async () => {
  expect(await conditionsWith({ node: 'gpu-b-02' })).toEqual([
    expect.stringMatching(/^certificate: .*is of gpu-a-01, and node_id is gpu-b-02.*issue-client gpu-b-02/),
  ]);
  expect(await conditionsWith({ key: '/no/key.pem' })).toEqual(['certificate: /no/key.pem does not exist.']);
});

it("an engines' key that is missing or no key is, where there are engines", async () => {
  const bin = `${tempDir()}/python`;
  writeFileSync(bin, '#!/bin/sh\necho 0.5.23\n', { mode: 0o755 });
  const engines = `engines: {sglang: {python: ${bin}}}\n`;
  const codes = (all: string[]) => all.filter(text => text.startsWith('engine_auth_off'));
  expect(codes(await conditionsWith({ text: `${engines}engine_key_file: /no/engine.key\n` }))).toEqual([
    'engine_auth_off: Engines run without a key: /no/engine.key does not exist.',
  ]);
  expect(codes(await conditionsWith({ text: `${engines}engine_key_file: ${bin}\n` }))[0]).toContain(
    'no key of 64',
  );
});

it('the limits are those of the agent that runs with this work_dir, else those of the shell', async () => {
  const dir = tempDir();
  const held = spawn(
    'prlimit',
    [
      '--nofile=512:512',
      process.execPath,
      '--input-type=module',
      '-e',
      `import { statSync } from 'node:fs';
       import { tryLock } from ${JSON.stringify(new URL('../../lib/lock.mjs', import.meta.url).href)};
       const { dev, ino } = statSync(${JSON.stringify(dir)});
       await tryLock('agent-work-dir:' + dev + ':' + ino);
       console.log('held');
       setInterval(() => {}, 60_000);`,
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  try {
    await once(held.stdout!, 'data');
    expect(await agentPid(dir)).toBe(held.pid);
    const config = {
      fabrics: [{ name: 'ib-a', hcas: ['mlx5_0'], rate_gbps: null }],
      supervisor: { user: null },
    };
    expect(limitsProblem(config, checkedSources(held.pid!))).toMatch(/get from the agent.*open files 512,/);
  } finally {
    held.kill('SIGKILL');
    await once(held, 'exit');
  }
  expect(await agentPid(dir)).toBeNull();
  expect(await agentPid('/no/such/dir')).toBeNull();
  expect(checkedSources(null).of).toBe('shell');
  expect(checkedSources(held.pid!).of).toBe('shell');
});
