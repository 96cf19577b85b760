// The build: TypeScript to dist/, the files that aren't TypeScript beside it, and the workflow bundle. It grows in
// dist.next and takes dist's place whole, so that a starting part never loads half of a build.
import { createHash } from 'node:crypto';
import { cpSync, existsSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { waitForLock } from '../../lib/lock.mjs';
import { withProgress } from '../../lib/progress.mjs';
import { ROOT, runQuietly, SetupError } from './run.mjs';

const DIST = path.join(ROOT, 'dist');
const NEXT = path.join(ROOT, 'dist.next');
const STAMP = 'build.json';
const BUNDLE = 'workflow-bundle.js';

/** What goes into dist. */
const SOURCES = [
  'bin',
  'lib',
  'contracts',
  'domain',
  'workflows',
  'activities',
  'agent',
  'server',
  'router',
  'ctl',
  'dev',
  'native',
  'proto',
];
/** What the workflow bundle is made of; when none of it changed, the last bundle is taken over (webpack takes seconds). */
const BUNDLE_SOURCES = ['workflows', 'domain', 'contracts'];
const ALWAYS = [
  'package-lock.json',
  'tsconfig.json',
  'scripts/tsconfig.build.json',
  'scripts/lib/build-steps.mjs',
];

/** Files that are run or read as they are. bin/llmgw.mjs isn't one: it is what builds. */
const isCopied = file =>
  file !== 'bin/llmgw.mjs' && /\.(mjs|proto|sh|json|yaml)$/.test(file) && !file.endsWith('.d.mts');

/** The hash of the sources (names and contents), independent of times and of the checkout's place. */
export function sourceHash(folders = SOURCES) {
  const hash = createHash('sha256');
  for (const file of [...ALWAYS, ...folders.flatMap(filesUnder)]) {
    hash
      .update(`${file}\0`)
      .update(readFileSync(path.join(ROOT, file)))
      .update('\0');
  }
  return hash.digest('hex');
}

/** The stamp of the build in dist, or null when there is none that is whole. */
export function builtStamp() {
  try {
    const stamp = JSON.parse(readFileSync(path.join(DIST, STAMP), 'utf8'));
    return existsSync(path.join(DIST, 'bin/main.js')) ? stamp : null;
  } catch {
    return null;
  }
}

export const isFresh = () => builtStamp()?.sources === sourceHash();

/** Builds unless dist is that of the present sources; of several callers at once one builds and the others wait. */
export async function buildIfStale({ force = false } = {}) {
  if (!force && isFresh()) return;
  const lock = await waitForLock(`build:${ROOT}`, pid =>
    console.error(`Another build is going on${pid === null ? '' : ` (pid ${pid})`}: waiting for it.`),
  );
  try {
    if (force || !isFresh()) await build();
  } finally {
    await lock.release();
  }
}

async function build() {
  rmSync(NEXT, { recursive: true, force: true });
  const sources = sourceHash();
  const tsc = path.join(ROOT, 'node_modules/typescript/bin/tsc');
  if (!existsSync(tsc))
    throw new SetupError('TypeScript is not installed: run `npm ci` with the dev dependencies.');
  await runQuietly('building', process.execPath, [tsc, '-p', path.join(ROOT, 'scripts/tsconfig.build.json')]);
  for (const file of SOURCES.flatMap(filesUnder).filter(isCopied)) {
    cpSync(path.join(ROOT, file), path.join(NEXT, file), { recursive: true });
  }
  const bundleSources = sourceHash(BUNDLE_SOURCES);
  const last = builtStamp();
  if (last?.bundle_sources === bundleSources && existsSync(path.join(DIST, BUNDLE))) {
    cpSync(path.join(DIST, BUNDLE), path.join(NEXT, BUNDLE));
  } else {
    await withProgress('bundling the workflows', bundleWorkflows);
  }
  const bundle = createHash('sha256')
    .update(readFileSync(path.join(NEXT, BUNDLE)))
    .digest('hex');
  const stamp = { sources, bundle_sources: bundleSources, bundle };
  writeFileSync(path.join(NEXT, STAMP), `${JSON.stringify(stamp, null, 2)}\n`);
  const old = path.join(ROOT, 'dist.old');
  rmSync(old, { recursive: true, force: true });
  if (existsSync(DIST)) renameSync(DIST, old);
  renameSync(NEXT, DIST);
  rmSync(old, { recursive: true, force: true });
}

async function bundleWorkflows() {
  const workflowsPath = path.join(NEXT, 'workflows/index.js');
  if (!existsSync(workflowsPath)) {
    throw new SetupError('workflows/index.ts is missing, so there is nothing to bundle for the worker.');
  }
  const { bundleWorkflowCode, DefaultLogger } = await import('@temporalio/worker');
  const said = [];
  const logger = new DefaultLogger('INFO', entry => said.push(entry.message));
  try {
    const { code } = await bundleWorkflowCode({
      workflowsPath,
      logger,
      webpackConfigHook: samePathsEverywhere,
    });
    writeFileSync(path.join(NEXT, BUNDLE), code);
  } catch (error) {
    throw new SetupError(`the workflows can't be bundled: ${error.message}\n${said.join('\n')}`);
  }
}

/** Paths relative to the root, so that the bundle's hash and the stack traces don't depend on where it was built. */
function samePathsEverywhere(config) {
  return {
    ...config,
    context: ROOT,
    output: {
      ...config.output,
      devtoolModuleFilenameTemplate: info =>
        path.relative(ROOT, info.absoluteResourcePath).replace(/^dist\.next\//, ''),
    },
  };
}

function filesUnder(folder) {
  const top = path.join(ROOT, folder);
  if (!existsSync(top)) return [];
  return (
    readdirSync(top, { recursive: true, withFileTypes: true })
      // A folder's README is no source: rewording it builds nothing.
      .filter(entry => entry.isFile() && !entry.name.endsWith('.md'))
      .map(entry => path.relative(ROOT, path.join(entry.parentPath, entry.name)))
      .sort()
  );
}
