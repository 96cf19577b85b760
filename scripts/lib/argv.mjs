// What the pieces of `npm run test:argv` share: their cache, sources of a release from PyPI, and the command lines of
// the golden files, which the tests of the renderers hold.
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { ROOT, runQuietly, SetupError } from './run.mjs';

export const ARGV_CACHE = path.join(
  process.env.XDG_CACHE_HOME || path.join(os.homedir(), '.cache'),
  'llmgw/argv',
);
const GOLDEN = path.join(ROOT, 'test/engines/golden');

/** Extracts the Python sources of the wheel that pip has put into argv[1], into argv[2], and what names the release. */
const EXTRACT = `
import glob, sys, zipfile
with zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0]) as wheel:
    wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.endswith('.py') or '.dist-info/' in n])
`;

/** The folder with the sources of that release; fetched once with the pip of `python`. */
export async function sourcesOf(python, name, version, size) {
  const dir = path.join(ARGV_CACHE, name, version);
  // Written last: sources that were broken off count as none.
  const stamp = `${dir}-ready`;
  if (existsSync(stamp)) return dir;
  mkdirSync(path.dirname(dir), { recursive: true });
  const wheel = mkdtempSync(path.join(path.dirname(dir), 'wheel-'));
  try {
    await runQuietly(`fetching ${name} ${version} (${size})`, python, [
      ...['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary', ':all:', '--dest', wheel],
      `${name}==${version}`,
    ]);
    await runQuietly(`unpacking ${name} ${version}`, python, ['-c', EXTRACT, wheel, dir]);
  } finally {
    rmSync(wheel, { recursive: true, force: true });
  }
  writeFileSync(stamp, '');
  return dir;
}

export const hasSources = (name, version) => existsSync(path.join(ARGV_CACHE, name, `${version}-ready`));

/** Golden files whose name matches: [{name, text, argv}]. */
export function golden(pattern) {
  const names = readdirSync(GOLDEN).filter(name => pattern.test(name));
  if (names.length === 0) throw new SetupError(`there are no golden files ${pattern} in ${GOLDEN}`);
  return names.map(name => {
    const text = readFileSync(path.join(GOLDEN, name), 'utf8');
    const block = text.slice(text.indexOf('# argv\n') + 7, text.indexOf('# env\n'));
    const words = block.match(/"(?:[^"\\]|\\.)*"|\S+/g);
    return { name, text, argv: words.map(word => (word.startsWith('"') ? JSON.parse(word) : word)) };
  });
}

/** Says what was found, and that it failed where anything was. */
export function conclude(what, faults, good) {
  for (const fault of faults) console.error(`${what}: ${fault}`);
  if (faults.length > 0) process.exitCode = 1;
  else console.log(`${what}: ${good}`);
}
