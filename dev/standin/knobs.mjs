// The stand-ins' knobs: environment variables LLMGW_STANDIN_*, which a spec may set in `env`, and LLMGW_STANDIN_R<n>_*
// for the member of rank n alone. docs/stand-in.md describes each; an unknown one is refused, since a misspelt fault
// makes a test that proves nothing.
const PREFIX = 'LLMGW_STANDIN_';

const NUMBERS = {
  /** From start to ready. */
  LOAD_MS: 0,
  /** From ready to an exit nobody asked for; negative: never. */
  EXIT_AFTER_MS: -1,
  /** Code of that exit. vLLM itself ends with 0 when its engine core dies. */
  EXIT_CODE: 0,
  /** Where in the load FAIL strikes, percent. */
  FAIL_AT: 50,
  /** Milliseconds between stall lines of a load that never ends; 0: the load ends. */
  HANG_LOAD: 0,
  /** Delay before each token. */
  TOKEN_MS: 0,
  /** Tokens of an answer whose request sets no limit. */
  TOKENS: 16,
  /** Child processes that ignore SIGTERM and outlive it. */
  CHILDREN: 0,
  /** Children in sessions of their own. */
  CHILDREN_SETSID: 0,
  /** MB of output while loading. */
  FLOOD: 0,
  /** Memory that it says it holds on each GPU once loaded. */
  GPU_MIB: 60_000,
  /** From the loss of a member to the failure of the one that misses it; negative: it hangs, and says nothing. */
  LOST_MS: 1_000,
  /** SGLang: how long /health takes to get its token. */
  HEALTH_MS: 1_000,
  /** 1: no line after the first, as an engine that hangs before it has said anything. */
  SILENT: 0,
  /** Binds as a program without SO_REUSEADDR would: a TIME_WAIT on the port is a conflict. */
  BIND_NO_REUSE: 0,
};

const TEXTS = {
  /** One of FAILURES in failures.mjs. */
  FAIL: '',
  /** `1`: SIGTERM never ends it while a stream is open; `always`: SIGTERM never ends it. */
  NEVER_END_ON_TERM: '',
  /** While this file exists its core hangs: /health goes on saying 200, no token comes, /metrics stands still. */
  HANG_FILE: '',
  /** Folder in which it registers its processes as holders of GPUs. */
  GPU_DIR: '',
};

/** The rank that the supervisor's mark names (LLMGW_ENGINE=<replica>/<fence>/<rank>), for programs that aren't told it. */
export const markedRank = (env, otherwise) => Number(env.LLMGW_ENGINE?.split('/')[2] ?? otherwise);

/**
 * @param {string[]} failures names that FAIL may have
 * @param {number} rank whose own knobs count
 * @returns {{knobs: Record<string, any>} | {error: string}}
 */
export function readKnobs(env, failures, rank = 0) {
  const knobs = { ...NUMBERS, ...TEXTS };
  const given = Object.entries(env).filter(([variable]) => variable.startsWith(PREFIX));
  // A member's own after everybody's.
  given.sort(([a], [b]) => Number(OF_RANK.test(a)) - Number(OF_RANK.test(b)));
  for (const [variable, value] of given) {
    const own = OF_RANK.exec(variable);
    const name = own === null ? variable.slice(PREFIX.length) : own[2];
    const read = readKnob(variable, name, value, knobs, failures);
    if (typeof read === 'object') return read;
    if (own === null || Number(own[1]) === rank) knobs[name] = read;
  }
  return { knobs };
}

/** `LLMGW_STANDIN_R2_FAIL` */
const OF_RANK = new RegExp(`^${PREFIX}R(\\d+)_(.+)$`);

/** @returns {string | number | {error: string}} */
function readKnob(variable, name, value, knobs, failures) {
  if (!(name in knobs)) {
    return { error: `${variable} is no knob of the stand-in; there are ${Object.keys(knobs).join(', ')}` };
  }
  if (name === 'FAIL' && value !== '' && !failures.includes(value)) {
    return { error: `${variable} must be one of ${failures.join(', ')}, not '${value}'` };
  }
  if (name in TEXTS) return value;
  const number = value === '' ? Number.NaN : Number(value);
  return Number.isFinite(number) ? number : { error: `${variable} must be a number, not '${value}'` };
}
