// All set-up that tests and CI need: packages, build, the `temporal` binary (found, downloaded or built).
import { script } from './lib/run.mjs';
import { checkNode, ensureBuilt, ensureInstalled, ensureTemporal } from './lib/setup-steps.mjs';

await script(async () => {
  checkNode();
  await ensureInstalled();
  await ensureBuilt();
  const found = await ensureTemporal();
  console.log(`temporal: ${found.path} (${found.source})`);
});
