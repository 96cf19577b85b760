// The workflow bundle for tests, built once for each content of its sources (webpack takes seconds on a busy core).
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { bundleWorkflowCode, DefaultLogger } from '@temporalio/worker';
import type { TIMING } from '../../contracts/timing.js';
import { waitForLock } from '../../lib/lock.mjs';

const ROOT = path.join(import.meta.dirname, '../..');
const CACHE = path.join(ROOT, 'node_modules/.cache/llmgw-test-bundle');
const ENTRY = 'test/workflow/entry.ts';
const SLOT = '@@TIMES@@';

export type Times = Partial<Record<keyof typeof TIMING, number>>;

/** The present workflows; `times` (ms) replaces rows of contracts/timing.ts. */
export async function workflowBundle(times: Times = {}): Promise<{ code: string }> {
  const code = await builtOnce();
  if (!code.includes(SLOT)) throw new Error(`the bundle lacks ${SLOT}: see ${ENTRY}`);
  return { code: code.replace(SLOT, JSON.stringify(times)) };
}

async function builtOnce(): Promise<string> {
  const file = path.join(CACHE, `${sourceHash()}.js`);
  const lock = await waitForLock(`test-bundle:${ROOT}`);
  try {
    return read(file) ?? (await build(file));
  } finally {
    await lock.release();
  }
}

function read(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}

async function build(file: string): Promise<string> {
  const { code } = await bundleWorkflowCode({
    workflowsPath: path.join(ROOT, ENTRY),
    logger: new DefaultLogger('ERROR'),
  });
  rmSync(CACHE, { recursive: true, force: true });
  mkdirSync(CACHE, { recursive: true });
  writeFileSync(`${file}.part`, code);
  renameSync(`${file}.part`, file);
  return code;
}

function sourceHash(): string {
  const hash = createHash('sha256');
  const folders = ['contracts', 'domain', 'workflows'].flatMap(folder =>
    readdirSync(path.join(ROOT, folder), { recursive: true, withFileTypes: true })
      .filter(entry => entry.isFile())
      .map(entry => path.relative(ROOT, path.join(entry.parentPath, entry.name)))
      .sort(),
  );
  for (const name of [...folders, ENTRY, 'package-lock.json']) {
    hash.update(`${name}\0`).update(readFileSync(path.join(ROOT, name)));
  }
  return hash.digest('hex').slice(0, 20);
}
