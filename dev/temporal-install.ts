// The two ways to get a `temporal` binary into the cache. Each leaves nothing or the whole file, by rename.
import { existsSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { execa } from 'execa';
import { EnvHttpProxyAgent, request } from 'undici';
import { withProgress } from '../lib/progress.mjs';

export interface InstallOrder {
  /** The cache's folder; scratch folders go there too, since a rename needs the same file system. */
  dir: string;
  /** Where the binary has to be in the end. */
  target: string;
  version: string;
  env: NodeJS.ProcessEnv;
  say: (line: string) => void;
}
export type InstallOutcome = { done: true; how: string } | { done: false; why: string };
export type Installer = (order: InstallOrder) => Promise<InstallOutcome>;

/** A machine without internet must not cost more than this before the next way is tried. */
const REACH_MS = 5_000;
/** About 60 MB: enough for a slow line, an end for one that hangs. */
const DOWNLOAD_MS = 10 * 60_000;
/** Cold it takes 4 minutes on two cores. */
const BUILD_MS = 30 * 60_000;
const SCRATCH = '.new-';
const OLDEST_GO = [1, 25] as const;

/** The SDK's own download, in a process of its own, because it can't be cancelled. */
export const downloadWithSdk: Installer = async order => {
  const unreachable = await whyUnreachable();
  if (unreachable !== null) return { done: false, why: `temporal.download can't be reached: ${unreachable}` };
  return intoCache(order, 'download', async scratch => {
    const script = path.join(import.meta.dirname, 'temporal-download.js');
    const result = await withProgress('downloading Temporal', () =>
      execa(process.execPath, [script, scratch, order.version], {
        reject: false,
        timeout: DOWNLOAD_MS,
        stdin: 'ignore',
        env: order.env,
        extendEnv: false,
      }),
    );
    const file = path.join(scratch, `temporal-${order.version}`);
    return existsSync(file) ? { file } : { why: `the download failed: ${lastWords(result)}` };
  });
};

/** `go install` of the CLI at the pinned version. */
export const buildWithGo: Installer = async order => {
  const shown = await execa('go', ['env', 'GOVERSION'], {
    reject: false,
    timeout: 30_000,
    env: order.env,
    extendEnv: false,
  });
  if (shown.failed) return { done: false, why: 'there is no Go' };
  const version = shown.stdout.trim();
  const [, major, minor] = /^go(\d+)\.(\d+)/.exec(version) ?? [];
  if (Number(major) < OLDEST_GO[0] || (Number(major) === OLDEST_GO[0] && Number(minor) < OLDEST_GO[1])) {
    return { done: false, why: `${version} is older than go${OLDEST_GO.join('.')}` };
  }
  order.say(`Temporal is built with Go, once (about 4 minutes), into ${order.dir}.`);
  return intoCache(order, 'built with Go', async scratch => {
    let last: string | null = null;
    const result = await withProgress(
      `building Temporal ${order.version} with Go`,
      async () => {
        const build = execa('go', ['install', `github.com/temporalio/cli/cmd/temporal@${order.version}`], {
          reject: false,
          timeout: BUILD_MS,
          stdin: 'ignore',
          cwd: os.tmpdir(),
          // The user's own GOFLAGS (-mod=vendor, say) and go.work are about other code.
          env: { ...order.env, GOBIN: scratch, GOFLAGS: '', GOWORK: 'off' },
          extendEnv: false,
        });
        build.stderr?.on('data', (chunk: Buffer) => {
          last = chunk.toString().trim().split('\n').at(-1) ?? last;
        });
        return await build;
      },
      { detail: () => last },
    );
    const file = path.join(scratch, 'temporal');
    return !result.failed && existsSync(file) ? { file } : { why: `go install failed: ${lastWords(result)}` };
  });
};

async function intoCache(
  order: InstallOrder,
  how: string,
  make: (scratch: string) => Promise<{ file: string } | { why: string }>,
): Promise<InstallOutcome> {
  // Under the lock: what lies here is of an attempt that was killed.
  for (const name of readdirSync(order.dir).filter(n => n.startsWith(SCRATCH))) {
    rmSync(path.join(order.dir, name), { recursive: true, force: true });
  }
  const scratch = mkdtempSync(path.join(order.dir, SCRATCH));
  try {
    const made = await make(scratch);
    if ('why' in made) return { done: false, why: made.why };
    renameSync(made.file, order.target);
    return { done: true, how };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** Asks by the same proxies (http_proxy, https_proxy, no_proxy) as the download. */
async function whyUnreachable(): Promise<string | null> {
  const dispatcher = new EnvHttpProxyAgent({ connect: { timeout: REACH_MS } });
  try {
    const { body } = await request('https://temporal.download/', {
      method: 'HEAD',
      dispatcher,
      signal: AbortSignal.timeout(REACH_MS),
    });
    await body.dump();
    return null;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    return code ?? message;
  } finally {
    // Destroyed, not closed: a connection that still hangs would keep the process from ending.
    await dispatcher.destroy();
  }
}

function lastWords(result: { stderr?: string; timedOut: boolean; shortMessage?: string }): string {
  if (result.timedOut) return 'it took too long';
  return result.stderr?.trim().split('\n').at(-1) || result.shortMessage || 'without a word';
}
