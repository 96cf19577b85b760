#!/usr/bin/env node
// `npx llmgw` from a checkout: builds when dist/ is missing or older than its sources, then runs what was built.
// An installed package has no scripts folder and is never built.
import { existsSync } from 'node:fs';

const steps = new URL('../scripts/lib/setup-steps.mjs', import.meta.url);
if (existsSync(steps)) {
  const { script } = await import('../scripts/lib/run.mjs');
  await script(async () => {
    const { checkNode, isInstalled } = await import('../scripts/lib/setup-steps.mjs');
    checkNode();
    const { SetupError } = await import('../scripts/lib/run.mjs');
    if (!isInstalled())
      throw new SetupError('the packages are missing or of another version: run `npm ci` here first.');
    const { buildIfStale, builtStamp, isFresh } = await import('../scripts/lib/build-steps.mjs');
    if (!isFresh()) {
      console.error(
        `llmgw: ${builtStamp() === null ? 'dist is missing' : 'the sources are newer than dist'}, building first.`,
      );
      await buildIfStale();
    }
  });
}
if (process.exitCode === undefined) await import('../dist/bin/main.js');
