// What llmgw renders for Ray (part of `npm run test:argv`): each `ray start` of the golden files parsed by Ray's own
// command line, and three nodes started by the rendered scripts as a real cluster on loopback, whose members are killed
// in turn. Ray comes from PyPI into the cache, 70 MB a version. vLLM isn't needed: a script stands in its place.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { withProgress } from '../../lib/progress.mjs';
import { ARGV_CACHE, conclude, golden } from '../lib/argv.mjs';
import { NODES, tryCluster } from '../lib/ray-cluster.mjs';
import { runQuietly, SetupError, script } from '../lib/run.mjs';
import { ensureBuilt } from '../lib/setup-steps.mjs';

/** The newest makes the cluster; the last is the oldest that the agent takes. */
const VERSIONS = ['2.60.0', '2.55.1'];

const venvOf = version => path.join(ARGV_CACHE, 'ray', version);

async function install(version) {
  const venv = venvOf(version);
  // Written last: an installation that was broken off counts as none.
  if (existsSync(`${venv}-ready`)) return;
  mkdirSync(path.dirname(venv), { recursive: true });
  const python = path.join(venv, 'bin/python');
  await runQuietly(`making a virtual environment for Ray ${version}`, 'python3', [
    '-m',
    'venv',
    '--clear',
    venv,
  ]);
  await runQuietly(`installing Ray ${version} (70 MB)`, python, [
    '-m',
    'pip',
    'install',
    '--quiet',
    `ray==${version}`,
  ]);
  writeFileSync(`${venv}-ready`, '');
}

/** Parses, and runs nothing. */
const PARSE = `
import json, sys, click
from ray.scripts.scripts import start
def parse(line):
    try:
        return {"values": {k: v for k, v in start.make_context("ray start", line).params.items() if v is not None}}
    except click.ClickException as error:
        return {"error": error.format_message()}
json.dump([parse(line) for line in json.load(sys.stdin)], sys.stdout, default=str)
`;

function checkLines(version) {
  const lines = golden(/^vllm-.*-ray-/).map(({ name, text }) => {
    const [, words] = /^ {2}"\$RAY" start (.*) "--temp-dir=\$temp" &$/m.exec(text);
    return { name, argv: [...words.split(' '), '--temp-dir=/tmp/r'] };
  });
  const misspelt = lines[0].argv.map(arg => arg.replace('--num-gpus', '--num-gpu-s'));
  const ran = spawnSync(path.join(venvOf(version), 'bin/python'), ['-c', PARSE], {
    input: JSON.stringify([...lines.map(line => line.argv), misspelt]),
    encoding: 'utf8',
  });
  if (ran.status !== 0) throw new SetupError(`Ray's command line can't be read: ${ran.stderr.trim()}`);
  const parsed = JSON.parse(ran.stdout);
  const faults = [];
  if (parsed.pop().error === undefined)
    faults.push('it takes a misspelt flag, so that this test proves nothing');
  for (const [i, { name, argv }] of lines.entries()) {
    const { values, error } = parsed[i];
    if (error !== undefined) faults.push(`${name}: ${error}`);
    else faults.push(...differences(argv, values).map(fault => `${name}: ${fault}`));
  }
  conclude(
    `ray ${version}`,
    faults,
    `its command line takes ${lines.length} \`ray start\` as they are meant, and refuses a misspelt flag`,
  );
}

function differences(argv, values) {
  return argv.flatMap(arg => {
    const [flag, value = 'true'] = arg.replace(/^--/, '').split('=');
    const is = values[flag.replaceAll('-', '_')];
    return String(is) === value ? [] : [`${arg} became ${JSON.stringify(is)}`];
  });
}

await script(async () => {
  for (const version of VERSIONS) {
    await install(version);
    checkLines(version);
  }
  if (process.platform !== 'linux') throw new SetupError('the cluster is tried on Linux only');
  await ensureBuilt();
  const faults = await withProgress('a cluster of three nodes', () =>
    tryCluster(path.join(venvOf(VERSIONS[0]), 'bin/ray'), VERSIONS[0]),
  );
  conclude(
    `ray ${VERSIONS[0]}`,
    faults,
    `${NODES} nodes met, on no other ports than theirs; each that was killed ended its script, and all of it could be ended`,
  );
});
