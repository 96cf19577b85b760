// Programs of agent.yaml: where one is, and what it prints when it is asked for its version.
import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { access, readdir, stat } from 'node:fs/promises';
import { delimiter, dirname, isAbsolute, join } from 'node:path';
import { baseEnv, passedEnv } from './environment.js';

/** A path as it is; a bare name is looked for in `path` (PATH's form). */
export async function findProgram(
  bin: string,
  path: string,
): Promise<{ path: string } | { problem: string }> {
  if (isAbsolute(bin) || bin.includes('/')) {
    const state = await executable(bin);
    return state === 'yes' ? { path: bin } : { problem: `${bin} ${state}` };
  }
  for (const folder of path.split(delimiter)) {
    if (folder === '') continue;
    const candidate = join(folder, bin);
    if ((await executable(candidate)) === 'yes') return { path: candidate };
  }
  return { problem: `there is no program ${bin} on the agent's PATH; give its path in agent.yaml` };
}

async function executable(
  path: string,
): Promise<'yes' | 'does not exist' | 'is not a program (not executable)'> {
  const found = await stat(path).catch(() => null);
  if (found === null) return 'does not exist';
  const allowed = await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
  return found.isFile() && allowed ? 'yes' : 'is not a program (not executable)';
}

/** Changes whenever a package is installed, removed or replaced in the environment whose interpreter this is. */
export async function packagesStamp(python: string): Promise<string> {
  const lib = join(dirname(dirname(python)), 'lib');
  const versions = (await readdir(lib).catch(() => [])).filter(name => /^python3/.test(name)).sort();
  const folders = versions.flatMap(name =>
    ['site-packages', 'dist-packages'].map(sub => join(lib, name, sub)),
  );
  const times = await Promise.all(
    folders.map(folder =>
      stat(folder).then(
        found => found.mtimeMs,
        () => 0,
      ),
    ),
  );
  return times.join(' ');
}

export interface VersionAnswer {
  version: string | null;
  problem: string | null;
}

/** Runs `path args`, whose last line has the version. */
export function askVersion(
  path: string,
  args: string[],
  env: NodeJS.ProcessEnv,
  deadlineMs: number,
): Promise<VersionAnswer> {
  return new Promise(resolve => {
    const options = {
      cwd: '/',
      env: baseEnv(path, passedEnv(env), '/'),
      timeout: deadlineMs,
      killSignal: 'SIGKILL',
      maxBuffer: 1024 * 1024,
    } as const;
    // A script for an interpreter (`-c …`) says less than what it is asked for.
    const asked = args[0] === '-c' ? `asking ${path} for its version` : `\`${[path, ...args].join(' ')}\``;
    execFile(path, args, options, (error, stdout, stderr) => {
      if (error !== null) {
        const how = error.killed
          ? `did not answer within ${Math.round(deadlineMs / 1000)} s`
          : typeof error.code === 'number'
            ? `exited with ${error.code}`
            : `could not be run (${error.code ?? error.signal})`;
        const said = lastLine(stderr) ?? lastLine(stdout);
        return resolve({ version: null, problem: `${asked} ${how}${said === null ? '' : `: ${said}`}` });
      }
      const version = /\d+\.\d+(?:\.\d+)?\S*/.exec(lastLine(stdout) ?? '')?.[0] ?? null;
      resolve({ version, problem: version === null ? `${asked} printed no version` : null });
    });
  });
}

function lastLine(text: string): string | null {
  const line = text.trimEnd().split('\n').at(-1)?.trim().slice(0, 200);
  return line === undefined || line === '' ? null : line;
}
