// What llmgw renders for SGLang, parsed by SGLang's own parser (part of `npm run test:argv`). The wheels come from PyPI
// into the cache, 60 MB, of which the Python sources are kept; sglang.py says what of them runs and what doesn't.
import { spawnSync } from 'node:child_process';
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
import * as flags from '../../dev/standin/sglang-flags.mjs';
import { ROOT, runQuietly, SetupError, script } from '../lib/run.mjs';

/** The newest is the one whose flags the agent knows. */
const VERSIONS = ['0.5.23', '0.5.15', '0.5.10', '0.5.5', '0.5.3'];

const CACHE = path.join(process.env.XDG_CACHE_HOME || path.join(os.homedir(), '.cache'), 'llmgw/argv/sglang');
const VENV = path.join(CACHE, 'venv');
const PYTHON = path.join(VENV, 'bin/python');
const GOLDEN = path.join(ROOT, 'test/engines/golden');
/** What the parser imports beside Python's own modules. */
const NEEDED = ['msgspec==0.20.0', 'pyyaml==6.0.3'];

/** Extracts the Python sources of the wheel that pip has put into argv[1], into argv[2]. */
const EXTRACT = `
import glob, sys, zipfile
with zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.endswith('.py')])
`;

/** By flag: the field of the parsed line, which older versions call otherwise. */
const FIELDS = {
  '--model-path': ['model_path'],
  '--served-model-name': ['served_model_name'],
  '--host': ['host'],
  '--port': ['port'],
  '--tp-size': ['tp_size', 'tensor_parallel_size'],
  '--pp-size': ['pp_size', 'pipeline_parallel_size'],
  '--nnodes': ['nnodes'],
  '--node-rank': ['node_rank'],
  '--dist-init-addr': ['dist_init_addr'],
  '--nccl-port': ['nccl_port'],
};

await script(async () => {
  await install();
  const lines = renderedLines();
  let failed = 0;
  for (const version of VERSIONS) {
    const faults = check(version, lines);
    for (const fault of faults) console.error(`sglang ${version}: ${fault}`);
    failed += faults.length;
    if (faults.length === 0)
      console.log(`sglang ${version}: its parser takes ${lines.length} command lines as they are meant`);
  }
  if (failed > 0) process.exitCode = 1;
});

async function install() {
  mkdirSync(CACHE, { recursive: true });
  if (!existsSync(path.join(CACHE, 'venv-ready'))) {
    await runQuietly('making a virtual environment for SGLang’s parser', 'python3', [
      '-m',
      'venv',
      '--clear',
      VENV,
    ]);
    await runQuietly('installing what the parser imports', PYTHON, [
      '-m',
      'pip',
      'install',
      '--quiet',
      ...NEEDED,
    ]);
    writeFileSync(path.join(CACHE, 'venv-ready'), '');
  }
  for (const version of VERSIONS) {
    // Written last: sources that were broken off count as none.
    const stamp = path.join(CACHE, `${version}-ready`);
    if (existsSync(stamp)) continue;
    const wheel = mkdtempSync(path.join(CACHE, 'wheel-'));
    try {
      await runQuietly(`fetching sglang ${version}`, PYTHON, [
        ...['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary', ':all:', '--dest', wheel],
        `sglang==${version}`,
      ]);
      await runQuietly(`unpacking sglang ${version}`, PYTHON, [
        '-c',
        EXTRACT,
        wheel,
        path.join(CACHE, version),
      ]);
    } finally {
      rmSync(wheel, { recursive: true, force: true });
    }
    writeFileSync(stamp, '');
  }
}

/** The command lines of the golden files, which the tests of the renderer hold: [{name, argv}]. */
function renderedLines() {
  const names = readdirSync(GOLDEN).filter(name => /^sglang-.*\.txt$/.test(name));
  if (names.length === 0) throw new SetupError(`there are no golden files of SGLang in ${GOLDEN}`);
  return names.map(name => {
    const text = readFileSync(path.join(GOLDEN, name), 'utf8');
    const block = text.slice(text.indexOf('# argv\n') + 7, text.indexOf('# env\n'));
    const words = block
      .match(/"(?:[^"\\]|\\.)*"|\S+/g)
      .map(word => (word.startsWith('"') ? JSON.parse(word) : word));
    const at = words.indexOf('sglang.launch_server');
    const file = /^# file (\S+), mode \d+\n([\s\S]*?)\n# probe$/m.exec(text);
    return { name, argv: words.slice(at + 1), file };
  });
}

function check(version, lines) {
  const files = mkdtempSync(path.join(os.tmpdir(), 'llmgw-argv-'));
  try {
    const argvs = lines.map(({ argv, file }) => withFile(argv, file, files));
    const ran = spawnSync(PYTHON, [path.join(ROOT, 'scripts/argv/sglang.py'), path.join(CACHE, version)], {
      input: JSON.stringify({ lines: argvs }),
      encoding: 'utf8',
      maxBuffer: 64 * 1024 * 1024,
    });
    if (ran.status !== 0)
      return [`its parser refuses: ${ran.stderr.trim().split('\n').slice(-3).join(' | ')}`];
    const { flags: known, parsed } = JSON.parse(ran.stdout);
    const differences = lines.flatMap(({ name, argv, file }, index) =>
      wrongValues(argv, file, parsed[index]).map(fault => `${name}: ${fault}`),
    );
    return [...differences, ...(version === VERSIONS[0] ? wrongFlags(known) : [])];
  } finally {
    rmSync(files, { recursive: true });
  }
}

/** The key file lies elsewhere here. */
function withFile(argv, file, dir) {
  if (file === null) return argv;
  const [, name, text] = file;
  const target = path.join(mkdtempSync(path.join(dir, 'f-')), name);
  writeFileSync(target, `${text}\n`, { mode: 0o600 });
  return argv.map(arg => (path.basename(arg) === name ? target : arg));
}

function wrongValues(argv, file, values) {
  const faults = [];
  for (const [flag, fields] of Object.entries(FIELDS)) {
    const at = argv.indexOf(flag);
    if (at < 0) continue;
    const field = fields.find(name => name in values);
    if (String(values[field]) !== argv[at + 1])
      faults.push(`${flag} ${argv[at + 1]} became ${values[field]}`);
  }
  if (values.enable_metrics !== true) faults.push('--enable-metrics was not taken');
  const key = file === null ? null : JSON.parse(/^api-key: (".*")$/m.exec(file[2])[1]);
  if (values.api_key !== key) faults.push('the key of its --config file was not taken');
  return faults;
}

/** The list of the agent and the stand-in against the parser's, kinds included. */
function wrongFlags(known) {
  const ours = new Map([
    ...flags.SWITCHES.map(name => [name, 'switch']),
    ...flags.LISTS.map(name => [name, 'list']),
    ...flags.OPTIONAL.map(name => [name, 'optional']),
    ...flags.VALUES.map(name => [name, 'value']),
  ]);
  const names = new Set([...ours.keys(), ...Object.keys(known)]);
  return [...names]
    .filter(name => ours.get(name) !== known[name])
    .map(
      name => `dev/standin/sglang-flags.mjs has ${name} as ${ours.get(name)}, the parser as ${known[name]}`,
    );
}
