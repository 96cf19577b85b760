// `npm run check`: types, lint and format, import rules and the pure tests, in under a minute; no server is started.
import { spawn } from 'node:child_process';
import path from 'node:path';
import { elapsed } from '../lib/progress.mjs';
import { ROOT, SetupError, script } from './lib/run.mjs';
import { checkNode, ensureInstalled } from './lib/setup-steps.mjs';

/** Folders whose tests start neither a server nor an engine. What doesn't exist matches nothing. */
const PURE = ['architecture', 'config', 'contracts', 'discovery', 'domain', 'engines', 'pki', 'proto'].map(
  folder => `test/${folder}/`,
);

const bin = file => path.join(ROOT, 'node_modules', file);

function run(what, args) {
  return new Promise((resolve, reject) => {
    const start = performance.now();
    const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', chunk => {
        output += chunk;
      });
    }
    child.on('error', reject);
    child.on('close', code => {
      console.log(`${code === 0 ? 'ok    ' : 'FAILED'} ${what} (${elapsed(performance.now() - start)})`);
      if (code !== 0) console.log(output.trimEnd());
      resolve(code === 0);
    });
  });
}

await script(async () => {
  checkNode();
  await ensureInstalled();
  const results = [
    ...(await Promise.all([
      run('types', [bin('typescript/bin/tsc'), '--noEmit']),
      run('lint and format', [bin('@biomejs/biome/bin/biome'), 'check', '.']),
    ])),
    await run('import rules and unit tests', [bin('vitest/vitest.mjs'), 'run', '--reporter=dot', ...PURE]),
  ];
  if (results.includes(false)) throw new SetupError('npm run check found faults, see above.');
});
