// The environment that every engine starts from: a fixed short list and what the agent passes on by name, never the
// agent's own (INV-13): an inherited VLLM_PORT or CUDA_VISIBLE_DEVICES of a shell has sent engines to the wrong
// port and the wrong GPU, and a token in it would be in every engine.
import { dirname } from 'node:path';

const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Names that the agent hands from its own environment to its engines; each is a fact of the host. */
const PASSED = [
  /^(HOME|USER|LOGNAME|TZ)$/,
  /^(HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|HF_ENDPOINT|HF_HUB_ENABLE_HF_TRANSFER|TRANSFORMERS_OFFLINE|XDG_CACHE_HOME)$/,
  /^(LD_LIBRARY_PATH|CUDA_HOME|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE)$/,
  /^(https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)$/,
  /^LLMGW_STANDIN_/,
];

/** The part of the agent's environment that engines get (`RenderInput.passEnv`). */
export function passedEnv(env: NodeJS.ProcessEnv): Record<string, string> {
  const passed = Object.entries(env).filter(
    (entry): entry is [string, string] => entry[1] !== undefined && PASSED.some(name => name.test(entry[0])),
  );
  return Object.fromEntries(passed);
}

/**
 * What an engine has before its renderer and its spec add theirs.
 * @param bin absolute path of the engine's program: its folder comes first on PATH, where a virtual environment
 *   keeps the tools that the engine calls (ninja, ray, numactl wrappers).
 * @param runDir HOME of a user that has none.
 */
export function baseEnv(
  bin: string,
  passEnv: Record<string, string>,
  runDir: string,
): Record<string, string> {
  return {
    HOME: runDir,
    LANG: 'C.UTF-8',
    ...passEnv,
    PATH: bin.startsWith('/') ? `${dirname(bin)}:${PATH}` : PATH,
    // A terminal's colours would be in every line that is searched for a cause.
    NO_COLOR: '1',
    // setproctitle wipes /proc/PID/environ, and with it the mark by which a process is known as ours.
    SPT_NOENV: '1',
  };
}
