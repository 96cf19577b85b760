// What `agent --check` finds out about the agent's own files, as conditions.
import { writeFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { inventoryOf } from '../../agent/check.js';
import { loadAgentConfigText } from '../../agent/config.js';
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
