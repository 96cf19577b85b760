// What llmgw renders for vLLM, parsed by vLLM's own parsers (part of `npm run test:argv`): that of the vLLM for the CPU,
// as installed, and those of other releases from their sources, on the libraries of that one. `--install` fetches what
// is missing (0.9 GB for the first, 0.3 GB for each release, of which 20 to 60 MB are kept); without it is skipped what
// isn't there.
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { conclude, golden, hasSources, sourcesOf } from '../lib/argv.mjs';
import { ROOT, SetupError, script } from '../lib/run.mjs';
import { ensureBuilt } from '../lib/setup-steps.mjs';
import { findVllm, installVllm } from '../lib/vllm-cpu.mjs';

const VERSIONS = ['0.11.2', '0.12.0', '0.20.0', '0.24.0', '0.33.0'];

/** By flag: the field of the parsed line. */
const FIELDS = {
  '--host': 'host',
  '--port': 'port',
  '--tensor-parallel-size': 'tensor_parallel_size',
  '--pipeline-parallel-size': 'pipeline_parallel_size',
  '--distributed-executor-backend': 'distributed_executor_backend',
  '--nnodes': 'nnodes',
  '--node-rank': 'node_rank',
  '--master-addr': 'master_addr',
  '--master-port': 'master_port',
  '--max-model-len': 'max_model_len',
};

await script(async () => {
  const install = process.argv.includes('--install');
  if (findVllm() === null && install) await installVllm();
  const vllm = findVllm();
  if (vllm === null) {
    console.log('vllm: skipped, there is no vLLM for the CPU here; with `--install` it is fetched (0.9 GB)');
    return;
  }
  await ensureBuilt();
  const { vllmFlags } = await import('../../dist/agent/engines/vllm-flags.js');
  const python = path.join(path.dirname(vllm.bin), 'python');
  // The installed one takes what the newest is given.
  check('vllm for the CPU', python, '', VERSIONS.at(-1), vllmFlags);
  for (const version of VERSIONS) {
    if (!install && !hasSources('vllm', version)) {
      console.log(`vllm ${version}: skipped, it isn't here; with \`--install\` it is fetched (0.3 GB)`);
      continue;
    }
    check(
      `vllm ${version}`,
      python,
      forCpu(await sourcesOf(python, 'vllm', version, '0.3 GB'), version),
      version,
      vllmFlags,
    );
  }
});

/** A release takes itself for one for the CPU by its version; one for CUDA finds no device here, and gives up. */
function forCpu(dir, version) {
  const file = path.join(dir, `vllm-${version}.dist-info/METADATA`);
  const text = readFileSync(file, 'utf8');
  const named = text.replace(`\nVersion: ${version}\n`, `\nVersion: ${version}+cpu\n`);
  if (named !== text) writeFileSync(file, named);
  return dir;
}

function check(what, python, sources, version, flagsOf) {
  const lines = golden(new RegExp(`^vllm-${version.replaceAll('.', '\\.')}-`)).flatMap(({ name, argv }) => {
    const at = argv.indexOf('serve');
    return at < 0 ? [] : [{ name, argv: argv.slice(at + 1) }]; // a follower on Ray has no vLLM
  });
  const misspelt = lines[0].argv.map(arg => arg.replace('--tensor-parallel-size', '--tensor-paralel-size'));
  const answer = ask(python, sources, [...lines.map(line => line.argv), misspelt]);
  const refused = answer.parsed.pop();
  const faults = lines.flatMap(({ name, argv }, i) =>
    wrong(argv, answer.parsed[i]).map(f => `${name}: ${f}`),
  );
  if (!/unrecognized arguments|ambiguous/.test(refused.error ?? '')) {
    faults.push('it takes a misspelt flag, so that this test proves nothing');
  }
  faults.push(...unknownFlags(answer, flagsOf));
  conclude(
    what,
    faults,
    `${answer.how} takes ${lines.length} command lines as they are meant, and refuses a misspelt flag`,
  );
}

/** Flags that the agent would refuse although this version has them. */
function unknownFlags({ version, flags }, flagsOf) {
  const known = new Set(flagsOf(version.split('.', 2).join('.')));
  return flags
    .filter(flag => flag.startsWith('--') && flag !== '--help' && !known.has(flag))
    .map(flag => `agent/engines/vllm-flags.ts has no ${flag} for ${version}`);
}

function ask(python, sources, lines) {
  const ran = spawnSync(python, [path.join(ROOT, 'scripts/argv/vllm_parser.py'), sources], {
    input: JSON.stringify({ lines }),
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
    cwd: '/',
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      VLLM_TARGET_DEVICE: 'cpu',
      HF_HUB_OFFLINE: '1',
      VLLM_NO_USAGE_STATS: '1',
      VLLM_LOGGING_LEVEL: 'ERROR',
    },
  });
  if (ran.status === 0) return JSON.parse(ran.stdout);
  throw new SetupError(`vLLM's parser can't be run: ${ran.stderr.trim().split('\n').slice(-3).join(' | ')}`);
}

function wrong(argv, { values, error }) {
  if (error !== undefined) return [error];
  const faults = [];
  const compare = (what, is, should) => {
    if (JSON.stringify(is) !== JSON.stringify(should)) faults.push(`${what} became ${JSON.stringify(is)}`);
  };
  compare(`model ${argv[0]}`, values.model_tag, argv[0]);
  for (const [flag, field] of Object.entries(FIELDS)) {
    const at = argv.indexOf(flag);
    if (at >= 0) compare(`${flag} ${argv[at + 1]}`, String(values[field]), argv[at + 1]);
  }
  const names = argv.slice(argv.indexOf('--served-model-name') + 1);
  compare(
    '--served-model-name',
    values.served_model_name,
    names.slice(
      0,
      names.findIndex(word => word.startsWith('--')),
    ),
  );
  compare('--headless', values.headless, argv.includes('--headless'));
  return faults;
}
