// `npm test [-- VITEST OPTIONS]`: all set-up, then all tests.
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { ROOT, script } from './lib/run.mjs';
import { checkNode, ensureBuilt, ensureInstalled, ensureTemporal } from './lib/setup-steps.mjs';

await script(async () => {
  checkNode();
  await ensureInstalled();
  await ensureBuilt();
  const found = await ensureTemporal();
  const vitest = path.join(ROOT, 'node_modules/vitest/vitest.mjs');
  const { status } = spawnSync(process.execPath, [vitest, 'run', ...process.argv.slice(2)], {
    cwd: ROOT,
    stdio: 'inherit',
    // The tests take the very binary that the set-up found.
    env: { ...process.env, LLMGW_TEMPORAL_BIN: found.path },
  });
  process.exitCode = status ?? 1;
});
