// `npm run test:fault [-- VITEST OPTIONS]`: the fault tests with outages of minutes and many random walks, about three
// quarters of an hour. LLMGW_FAULT_AWAY (s), LLMGW_FAULT_SEED, LLMGW_FAULT_ROUNDS and LLMGW_FAULT_STEPS change that.
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { ROOT, script } from './lib/run.mjs';
import { checkNode, ensureBuilt, ensureInstalled, ensureTemporal } from './lib/setup-steps.mjs';

await script(async () => {
  checkNode();
  await ensureInstalled();
  await ensureBuilt();
  const temporal = await ensureTemporal();
  const vitest = path.join(ROOT, 'node_modules/vitest/vitest.mjs');
  const { status } = spawnSync(
    process.execPath,
    [vitest, 'run', '--project', 'e2e', 'test/fault', ...process.argv.slice(2)],
    {
      cwd: ROOT,
      stdio: 'inherit',
      env: {
        LLMGW_FAULT_AWAY: '120',
        LLMGW_FAULT_ROUNDS: '10',
        ...process.env,
        LLMGW_FAULT_LONG: '1',
        LLMGW_TEMPORAL_BIN: temporal.path,
      },
    },
  );
  process.exitCode = status ?? 1;
});
