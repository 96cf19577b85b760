// The stand-in's knobs: environment variables LLMGW_STANDIN_*, which a spec may set in `env`. docs/stand-in.md
// describes each; an unknown one is refused, since a misspelt fault makes a test that proves nothing.
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

/** @returns {{knobs: Record<string, any>} | {error: string}} */
export function readKnobs(env, failures) {
  const knobs = { ...NUMBERS, ...TEXTS };
  for (const [variable, value] of Object.entries(env)) {
    if (!variable.startsWith(PREFIX)) continue;
    const name = variable.slice(PREFIX.length);
    if (!(name in knobs)) {
      return { error: `${variable} is no knob of the stand-in; there are ${Object.keys(knobs).join(', ')}` };
    }
    if (name in TEXTS) knobs[name] = value;
    else {
      const number = value === '' ? Number.NaN : Number(value);
      if (!Number.isFinite(number)) return { error: `${variable} must be a number, not '${value}'` };
      knobs[name] = number;
    }
  }
  if (knobs.FAIL !== '' && !failures.includes(knobs.FAIL)) {
    return { error: `${PREFIX}FAIL must be one of ${failures.join(', ')}, not '${knobs.FAIL}'` };
  }
  return { knobs };
}
