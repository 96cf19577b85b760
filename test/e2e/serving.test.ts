// The main job, from `temporal workflow start` to a streamed token and back to free GPUs.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Installation, install, ROOT } from './harness.js';
import { waitFor } from './processes.js';

let at: Installation;
beforeAll(async () => {
  at = await install();
});
afterAll(() => at.close());

it('serves', async () => {
  const spec = JSON.parse(readFileSync(path.join(ROOT, 'deploy/examples/replica.json'), 'utf8'));
  console.log(await at.deploy('mine', spec));
  const s = await at.untilPhase('mine', 'ready');
  console.log(s, at.engines());
  console.log(await at.chat('qwen3-8b'), await at.stream('qwen3-8b'));
  console.log(await at.temporalCli('workflow', 'cancel', '--workflow-id', 'replica/mine'));
  console.log(await at.closed('mine'));
  console.log(JSON.stringify(await at.nodes()), at.engines(), await at.routes());
  console.log((await at.history('mine')).map(e => e.eventType));
});
