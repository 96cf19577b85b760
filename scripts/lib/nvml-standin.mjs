// Builds the stand-in for NVML (native/standin) with cc, and the helper from its source, into the cache below
// node_modules; once for each state of the sources. For tests and measurements.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { ROOT } from './run.mjs';

const CACHE = path.join(ROOT, 'node_modules/.cache');
const STANDIN = path.join(ROOT, 'native/standin');

/** The library; `without`: functions that it lacks, as an older driver's does. */
export function buildStandin({ without = [] } = {}) {
  const sources = ['nvml.c', 'nvml-layouts.h'].map(name => path.join(STANDIN, name));
  const dir = cached('nvml', [...sources.map(file => readFileSync(file)), without.join()], into => {
    const missing = without.map(name => `-D${name}=absent_${name}`);
    const options = ['-O1', '-Wall', '-Werror', '-shared', '-fPIC', '-fvisibility=hidden', '-pthread'];
    execFileSync('cc', [...options, ...missing, '-o', path.join(into, 'libnvidia-ml.so.1'), sources[0]]);
  });
  return path.join(dir, 'libnvidia-ml.so.1');
}

/** The helper, compiled: what a build has as dist/native/helper.js. */
export function buildHelper() {
  const native = path.join(ROOT, 'native');
  const sources = readdirSync(native).filter(name => name.endsWith('.ts'));
  const contents = sources.map(name => readFileSync(path.join(native, name)));
  const dir = cached('nvml-helper', contents, into => {
    const options = ['--ignoreConfig', '--outDir', into, '--rootDir', ROOT, '--module', 'nodenext'];
    const more = ['--target', 'es2023', '--types', 'node', '--noCheck', '--skipLibCheck'];
    const tsc = path.join(ROOT, 'node_modules/typescript/bin/tsc');
    execFileSync(process.execPath, [tsc, ...options, ...more, path.join(native, 'helper.ts')], { cwd: ROOT });
    writeFileSync(path.join(into, 'package.json'), '{"type":"module"}');
  });
  return path.join(dir, 'native/helper.js');
}

/** Made beside and renamed: of several test files at once each finds it whole. */
function cached(name, contents, make) {
  const hash = createHash('sha256');
  for (const content of contents) hash.update(content).update('\0');
  const dir = path.join(CACHE, `${name}-${hash.digest('hex').slice(0, 16)}`);
  if (existsSync(dir)) return dir;
  mkdirSync(CACHE, { recursive: true });
  for (const old of readdirSync(CACHE).filter(entry => new RegExp(`^${name}-[0-9a-f]{16}$`).test(entry)))
    if (name === 'nvml-helper') rmSync(path.join(CACHE, old), { recursive: true, force: true });
  const next = mkdtempSync(path.join(CACHE, `${name}-next-`));
  make(next);
  try {
    renameSync(next, dir);
  } catch (error) {
    if (!existsSync(dir)) throw error;
    rmSync(next, { recursive: true, force: true }); // another one was quicker
  }
  return dir;
}
