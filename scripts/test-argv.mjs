// `npm run test:argv [-- --install]`: what llmgw renders, parsed by the engines' real parsers. Each file of argv/ is a
// piece of its own; what they need is kept in the cache, outside the tree. `--install` also fetches what is large.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { ROOT, script } from './lib/run.mjs';
import { checkNode, ensureInstalled } from './lib/setup-steps.mjs';

await script(async () => {
  checkNode();
  await ensureInstalled();
  const dir = path.join(ROOT, 'scripts/argv');
  const pieces = readdirSync(dir).filter(name => name.endsWith('.mjs'));
  const failed = pieces.filter(
    name =>
      spawnSync(process.execPath, [path.join(dir, name), ...process.argv.slice(2)], { stdio: 'inherit' })
        .status !== 0,
  );
  console.log(`${pieces.length - failed.length} passed, ${failed.length} failed`);
  if (failed.length > 0) process.exitCode = 1;
});
