// `npm start [-- OPTIONS]`: from a fresh clone to everything running. Sets up what is missing, then runs `llmgw dev`.
import { spawn } from 'node:child_process';
import path from 'node:path';
import { ROOT, script } from './lib/run.mjs';
import { checkNode, ensureBuilt, ensureInstalled } from './lib/setup-steps.mjs';

await script(async () => {
  checkNode();
  await ensureInstalled();
  await ensureBuilt();
  process.exitCode = await runDev(process.argv.slice(2));
});

/** Waits for dev to the end: it is dev that stops what it started, so this process must not leave before it. */
function runDev(args) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [path.join(ROOT, 'dist/bin/main.js'), 'dev', ...args], {
      stdio: 'inherit',
    });
    // On a terminal Ctrl-C reaches dev directly as well; dev takes signals in quick succession for one.
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
    child.on('error', reject);
    child.on('exit', (code, signal) => resolve(signal === null ? code : 1));
  });
}
