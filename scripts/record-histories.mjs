// Records test/replay/histories anew, on a real dev server. Before the first tagged release: whenever a workflow changes
// what it does. After it: only new files, since what a release has shipped must go on replaying (CONTRIBUTING.md).
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
  const { status } = spawnSync(
    process.execPath,
    [vitest, 'run', '--config', 'test/replay/record.config.ts'],
    {
      cwd: ROOT,
      stdio: 'inherit',
      env: { ...process.env, LLMGW_TEMPORAL_BIN: found.path },
    },
  );
  process.exitCode = status ?? 1;
});
