// Finds the `temporal` binary (CLI with the dev server in it) where nothing is installed. In this order:
// LLMGW_TEMPORAL_BIN, PATH, the project's cache, the SDK's download, a build with Go. The last two fill the cache.
import { execFile } from 'node:child_process';
import { accessSync, constants, mkdirSync, statSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Fault } from '../lib/fault.js';
import { waitForLock } from '../lib/lock.mjs';
import { stderrOut } from '../lib/progress.mjs';
import type { Installer } from './temporal-install.js';

/** Newer tags hold a `replace` in go.mod and can't be built by `go install`. */
export const TEMPORAL_VERSION = 'v1.5.1';
export const BIN_ENV = 'LLMGW_TEMPORAL_BIN';

export interface FoundTemporal {
  path: string;
  source: string;
}

export interface FindOptions {
  env?: NodeJS.ProcessEnv;
  /** What to try when nothing is found, in order. */
  installers?: Installer[];
  say?: (line: string) => void;
}

/** The project's cache, outside the work tree so that a fresh clone finds it. */
export function cacheDir(env: NodeJS.ProcessEnv): string {
  const base = env.XDG_CACHE_HOME || path.join(env.HOME || os.homedir(), '.cache');
  return path.join(base, 'llmgw', `temporal-${TEMPORAL_VERSION}`);
}

/** Finds or installs it; a Fault with the choices when there is no way. */
export async function findTemporal(options: FindOptions = {}): Promise<FoundTemporal> {
  const env = options.env ?? process.env;
  const say = options.say ?? (line => stderrOut.write(`${line}\n`));
  const named = env[BIN_ENV];
  if (named) {
    if (!isExecutable(named)) {
      throw new Fault(`${BIN_ENV} is ${named}, which is not an executable file: correct it or unset it.`);
    }
    return { path: path.resolve(named), source: BIN_ENV };
  }
  const onPath = await findOnPath(env);
  if (onPath !== null) return { path: onPath, source: 'PATH' };
  const dir = cacheDir(env);
  const cached = path.join(dir, 'temporal');
  if (isExecutable(cached)) return { path: cached, source: 'cache' };

  mkdirSync(dir, { recursive: true });
  const lock = await waitForLock(`temporal:${dir}`, pid =>
    say(`Another start is installing Temporal${pid === null ? '' : ` (pid ${pid})`}: waiting for it.`),
  );
  try {
    if (isExecutable(cached)) return { path: cached, source: 'cache' };
    const tried: string[] = [];
    for (const install of options.installers ?? (await allInstallers())) {
      const outcome = await install({ dir, target: cached, version: TEMPORAL_VERSION, env, say });
      if (outcome.done) return { path: cached, source: outcome.how };
      tried.push(outcome.why);
    }
    throw new Fault(
      `The Temporal server is missing and can't be installed here (${tried.join('; ')}): put the temporal CLI on PATH ` +
        `(https://docs.temporal.io/cli), or name it in ${BIN_ENV}, or install Go 1.25 or newer, and start again.`,
    );
  } finally {
    await lock.release();
  }
}

/** Loaded only where it is needed: its packages cost a quarter of a second of every start. */
async function allInstallers(): Promise<Installer[]> {
  const { buildWithGo, downloadWithSdk } = await import('./temporal-install.js');
  return [downloadWithSdk, buildWithGo];
}

async function findOnPath(env: NodeJS.ProcessEnv): Promise<string | null> {
  for (const dir of (env.PATH ?? '').split(path.delimiter)) {
    const file = path.join(dir, 'temporal');
    if (!path.isAbsolute(file) || !isExecutable(file)) continue;
    // Other programs bear this name too.
    const stdout = await new Promise<string>(resolve =>
      execFile(file, ['--version'], { timeout: 10_000, env }, (_error, out) => resolve(out)),
    );
    if (/^temporal version /m.test(stdout)) return file;
  }
  return null;
}

export function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false;
  }
}
