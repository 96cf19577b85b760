// argparse as `vllm serve` uses it, as far as llmgw meets it: underscores for dashes, `--flag=value`, unique
// prefixes, `--no-flag`, `--json-arg.key value`, and its words for what it refuses.
import { LISTS, OPTIONAL, SHORT, SWITCHES, VALUES } from './flags.mjs';

const KIND = new Map([
  ...SWITCHES.flatMap(name => [
    [name, 'switch'],
    [name.replace('--', '--no-'), 'switch'],
  ]),
  ...LISTS.map(name => [name, 'list']),
  ...OPTIONAL.map(name => [name, 'optional']),
  ...VALUES.map(name => [name, 'value']),
]);

const INTEGERS = [
  '--port',
  '--tensor-parallel-size',
  '--pipeline-parallel-size',
  '--shutdown-timeout',
  '--nnodes',
  '--node-rank',
  '--master-port',
];

/**
 * @param {string[]} argv what follows `serve`
 * @returns {{model: string | null, options: Map<string, string | boolean | string[]>} | {error: string}}
 *   `error` is argparse's whole last line; the process then ends with 2.
 */
export function parseServe(argv) {
  const options = new Map();
  const extras = [];
  let model = null;
  for (let i = 0; i < argv.length; i++) {
    const arg = argv[i];
    if (!isFlag(arg)) {
      if (model === null) model = arg;
      else extras.push(arg);
      continue;
    }
    const [spelled, inline] = splitValue(arg);
    const found = resolve(spelled);
    if (found === null) {
      extras.push(arg);
      continue;
    }
    if (found.ambiguous) {
      const all = found.ambiguous.join(', ');
      return { error: `vllm serve: error: ambiguous option: ${spelled} could match ${all}` };
    }
    const { name, kind } = found;
    if (kind === 'switch') {
      options.set(name.replace('--no-', '--'), !name.startsWith('--no-'));
      continue;
    }
    const values = inline === undefined ? [] : [inline];
    const most = inline !== undefined ? 0 : kind === 'list' ? Number.POSITIVE_INFINITY : 1;
    while (values.length < most && i + 1 < argv.length && !isFlag(argv[i + 1])) values.push(argv[++i]);
    if (values.length === 0 && kind !== 'optional') {
      const wanted = kind === 'list' ? 'expected at least one argument' : 'expected one argument';
      return { error: `vllm serve: error: argument ${name}: ${wanted}` };
    }
    if (INTEGERS.includes(name) && !/^-?\d+$/.test(values[0])) {
      return { error: `vllm serve: error: argument ${name}: invalid int value: '${values[0]}'` };
    }
    options.set(name, kind === 'list' ? values : (values[0] ?? true));
  }
  if (extras.length > 0) return { error: `vllm: error: unrecognized arguments: ${extras.join(' ')}` };
  const given = options.get('--model');
  return { model: model ?? (typeof given === 'string' ? given : null), options };
}

/** A negative number is a value, as argparse has it. */
const isFlag = arg => /^-(?!\d)./.test(arg);

function splitValue(arg) {
  const at = arg.indexOf('=');
  return arg.startsWith('--') && at > 0 ? [arg.slice(0, at), arg.slice(at + 1)] : [arg, undefined];
}

function resolve(spelled) {
  if (/^-O[0-3]?$/.test(spelled)) return { name: '--optimization-level', kind: 'optional' };
  if (!spelled.startsWith('--')) {
    const name = SHORT[spelled];
    return name === undefined ? null : { name, kind: KIND.get(name) };
  }
  const [head, ...keys] = spelled.split('.');
  const flag = head.replaceAll('_', '-');
  const exact = KIND.get(flag);
  if (exact !== undefined) return { name: flag, kind: keys.length > 0 ? 'value' : exact };
  const matches = [...KIND.keys()].filter(name => name.startsWith(flag));
  if (matches.length === 1) return { name: matches[0], kind: KIND.get(matches[0]) };
  return matches.length > 1 ? { ambiguous: matches } : null;
}
