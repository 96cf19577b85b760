// The steps from a fresh clone to something that runs. Each looks first and does nothing when nothing is to be done,
// so that a second start costs no time.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { ROOT, runQuietly, SetupError } from './run.mjs';

const readJson = file => JSON.parse(readFileSync(path.join(ROOT, file), 'utf8'));

/** Refuses a Node that is older than package.json's `engines` says. */
export function checkNode() {
  const wanted = readJson('package.json').engines.node.replace(/^>=/, '');
  const have = process.versions.node;
  const [a, b] = [have, wanted].map(v => v.split('.').map(Number));
  const at = a.findIndex((part, i) => part !== b[i]);
  if (at !== -1 && a[at] < b[at]) {
    throw new SetupError(
      `Node ${wanted} or newer is needed, this is ${have}: install a newer one from https://nodejs.org.`,
    );
  }
}

/** Whether node_modules holds what package-lock.json asks for, by npm's own record of what it installed. */
export function isInstalled() {
  const record = 'node_modules/.package-lock.json';
  if (!existsSync(path.join(ROOT, record))) return false;
  const installed = readJson(record).packages;
  const wanted = readJson('package-lock.json').packages;
  return Object.entries(wanted).every(([name, entry]) => {
    if (name === '' || entry.link) return true;
    // Packages for other platforms are optional and left out.
    if (!(name in installed)) return entry.optional === true || entry.peer === true;
    return installed[name].version === entry.version && installed[name].integrity === entry.integrity;
  });
}

export async function ensureInstalled() {
  if (isInstalled()) return;
  // Under `npm start` this is the npm that the person runs, wherever it lies.
  const npm = process.env.npm_execpath;
  const args = ['ci', '--no-audit', '--no-fund', '--loglevel=error'];
  const what = 'installing packages (npm ci)';
  if (npm?.endsWith('.js')) await runQuietly(what, process.execPath, [npm, ...args]);
  else await runQuietly(what, 'npm', args);
}

/** Builds when a source has changed since the last build. */
export async function ensureBuilt() {
  const { buildIfStale } = await import('./build-steps.mjs');
  await buildIfStale();
}

/** The path of the `temporal` binary; finds, downloads or builds it (dev/temporal-binary.ts). */
export async function ensureTemporal() {
  const { findTemporal } = await import('../../dist/dev/temporal-binary.js');
  try {
    return await findTemporal();
  } catch (error) {
    throw error.name === 'Fault' ? new SetupError(error.message) : error;
  }
}
