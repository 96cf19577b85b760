// `npm run build`: builds dist/ when a source has changed; --force builds in any case.

import { script } from './lib/run.mjs';
import { ensureInstalled } from './lib/setup-steps.mjs';

await script(async () => {
  await ensureInstalled();
  const { buildIfStale } = await import('./lib/build-steps.mjs');
  await buildIfStale({ force: process.argv.includes('--force') });
});
