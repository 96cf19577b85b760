// argparse as `python -m sglang.launch_server` uses it, as far as llmgw meets it: `--flag=value`, unique beginnings, no
// underscores, and its words for what it refuses; `--config FILE` is put before the other arguments.
import { readFileSync } from 'node:fs';
import { LISTS, OPTIONAL, SWITCHES, VALUES } from './sglang-flags.mjs';

const KIND = new Map([
  ...SWITCHES.map(name => [name, 'switch']),
  ...LISTS.map(name => [name, 'list']),
  ...OPTIONAL.map(name => [name, 'optional']),
  ...VALUES.map(name => [name, 'value']),
]);

/** Spellings of one setting. */
const ALIASES = {
  '--model': '--model-path',
  '--tensor-parallel-size': '--tp-size',
  '--pipeline-parallel-size': '--pp-size',
  '--nccl-init-addr': '--dist-init-addr',
};

const INTEGERS = [
  '--port',
  '--nccl-port',
  '--tp-size',
  '--pp-size',
  '--nnodes',
  '--node-rank',
  '--context-length',
];

/**
 * @param {string[]} argv what follows `-m sglang.launch_server`
 * @returns {{options: Map<string, string | boolean | string[]>} | {error: string}}
 */
export function parseLaunch(argv) {
  const options = new Map();
  const extras = [];
  const args = withConfig(argv);
  for (let i = 0; i < args.length; i++) {
    if (!isFlag(args[i])) {
      extras.push(args[i]);
      continue;
    }
    const [spelled, inline] = args[i].split(/=(.*)/s, 2);
    const found = resolve(spelled);
    if (found === null) {
      extras.push(args[i]);
      continue;
    }
    if (found.ambiguous) {
      return {
        error: `sglang serve: error: ambiguous option: ${spelled} could match ${found.ambiguous.join(', ')}`,
      };
    }
    const { name, kind } = found;
    if (kind === 'switch') {
      options.set(name, true);
      continue;
    }
    const values = inline === undefined ? [] : [inline];
    const most = inline !== undefined ? 0 : kind === 'list' ? Number.POSITIVE_INFINITY : 1;
    while (values.length < most && i + 1 < args.length && !isFlag(args[i + 1])) values.push(args[++i]);
    if (values.length === 0 && kind === 'value') {
      return { error: `sglang serve: error: argument ${name}: expected one argument` };
    }
    if (INTEGERS.includes(name) && !/^-?\d+$/.test(values[0])) {
      return { error: `sglang serve: error: argument ${name}: invalid int value: '${values[0]}'` };
    }
    options.set(name, kind === 'list' ? values : (values[0] ?? true));
  }
  if (extras.length > 0) return { error: `sglang serve: error: unrecognized arguments: ${extras.join(' ')}` };
  if (!options.has('--model-path')) {
    return { error: 'sglang serve: error: the following arguments are required: --model-path/--model' };
  }
  return { options };
}

const isFlag = arg => /^-(?!\d)./.test(arg);

function resolve(spelled) {
  const kind = KIND.get(spelled);
  if (kind !== undefined) return { name: ALIASES[spelled] ?? spelled, kind };
  if (!spelled.startsWith('--')) return null;
  const matches = [...KIND.keys()].filter(name => name.startsWith(spelled));
  if (matches.length === 1) return { name: ALIASES[matches[0]] ?? matches[0], kind: KIND.get(matches[0]) };
  return matches.length > 1 ? { ambiguous: matches } : null;
}

/** Of YAML only what llmgw writes: `key: "text"`, a line each. */
function withConfig(argv) {
  const at = argv.indexOf('--config');
  if (at < 0) return argv;
  const lines = readFileSync(argv[at + 1], 'utf8').split('\n');
  const given = lines.flatMap(line => {
    const found = /^([a-z-]+): (".*")$/.exec(line);
    return found === null ? [] : [`--${found[1]}`, JSON.parse(found[2])];
  });
  return [...given, ...argv.slice(0, at), ...argv.slice(at + 2)];
}
