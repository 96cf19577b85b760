// The stand-in engine: `vllm serve MODEL --flags…` without vLLM, for machines without a GPU and for tests. Node's
// builtins only and no build, so that it starts in a few tens of milliseconds. docs/stand-in.md has its knobs.
import { parseServe } from './args.mjs';
import { spawnChildren } from './children.mjs';
import { ENGINE_DEATH, FAILURES } from './failures.mjs';
import { GpuRegistry } from './gpu-registry.mjs';
import { createEngineServer, Engine, endFlights, flightsEnded, logRoutes } from './http.mjs';
import { readKnobs } from './knobs.mjs';
import { flood, hang, load } from './load.mjs';
import { line, raw, silence, uvicorn } from './log.mjs';
import { portTaken } from './port.mjs';
import { driveRay } from './ray-driver.mjs';
import { followGang, leadGang } from './vllm-gang.mjs';

export const VERSION = '0.33.0';

/** What a process holds on its GPU before the model is there: the CUDA context. */
const CONTEXT_MIB = 520;

/** @param {string[]} argv what follows the program's name */
export function main(argv) {
  if (argv.includes('--version') || argv[0] === '-v') {
    raw(`${VERSION}\n`);
    return;
  }
  if (argv[0] !== 'serve') {
    const what = argv[0] === undefined ? 'a command is required' : `invalid choice: '${argv[0]}'`;
    usage(`vllm: error: argument subparser: ${what} (the stand-in knows only 'serve')`);
  }
  const parsed = parseServe(argv.slice(1));
  if (parsed.error !== undefined) usage(parsed.error);
  const set = settings(parsed);
  const { knobs, error: misspelt } = readKnobs(process.env, Object.keys(FAILURES), set.rank);
  if (misspelt !== undefined) usage(`llmgw-standin-vllm: error: ${misspelt}`);
  void serve(set, knobs);
}

function usage(message) {
  process.stderr.write(`usage: vllm serve [model_tag] [options]\n${message}\n`);
  process.exit(2);
}

function settings({ model, options }) {
  const tag = model ?? 'Qwen/Qwen3-0.6B';
  const names = options.get('--served-model-name') ?? [tag];
  return {
    model: tag,
    names,
    host: options.get('--host') ?? '0.0.0.0',
    port: Number(options.get('--port') ?? 8000),
    tp: Number(options.get('--tensor-parallel-size') ?? 1),
    pp: Number(options.get('--pipeline-parallel-size') ?? 1),
    maxLen: tokensOf(options.get('--max-model-len') ?? '40960'),
    shutdownTimeout: Number(options.get('--shutdown-timeout') ?? 0),
    keys: options.get('--api-key') ?? (process.env.VLLM_API_KEY ? [process.env.VLLM_API_KEY] : []),
    accessLog: options.get('--disable-uvicorn-access-log') !== true,
    version: VERSION,
    nnodes: Number(options.get('--nnodes') ?? 1),
    rank: Number(options.get('--node-rank') ?? 0),
    masterAddr: options.get('--master-addr') ?? '127.0.0.1',
    masterPort: Number(options.get('--master-port') ?? 29501),
    headless: options.get('--headless') === true,
    ray: options.get('--distributed-executor-backend') === 'ray',
  };
}

/** `8192`, `8k` (thousands), `8K` (1,024); `auto` and -1 are the model's own. */
function tokensOf(text) {
  const match = /^(\d+(?:\.\d+)?)([kKmMgG]?)$/.exec(text);
  if (match === null) return 40_960;
  const factor = { '': 1, k: 1e3, m: 1e6, g: 1e9, K: 1024, M: 1024 ** 2, G: 1024 ** 3 }[match[2]];
  return Math.floor(Number(match[1]) * factor);
}

async function serve(set, knobs) {
  raw(
    `llmgw-standin-vllm: a stand-in for vLLM ${VERSION}, not an engine: no model is loaded and the tokens are made up\n`,
  );
  if (knobs.SILENT !== 0) silence();
  const visible = process.env.CUDA_VISIBLE_DEVICES ?? '';
  const registry = new GpuRegistry(knobs.GPU_DIR, visible);
  const failing = failure => fail(failure, registry);
  refuseImpossible(set, visible, failing);
  if (set.rank > 0) {
    registry.hold(process.pid, CONTEXT_MIB);
    return followGang(set, knobs, registry, { fail: failing, end: code => end(code, registry) });
  }
  const interrupted = () => dieInLoad(registry);
  process.on('SIGTERM', interrupted);
  process.on('SIGINT', interrupted);
  line('APIServer', 'INFO', 'api_utils.py:95', `vLLM API server version ${VERSION}, serving ${set.model}`);
  if (portTaken(set.port, { reuse: knobs.BIND_NO_REUSE === 0 })) fail(FAILURES.port, registry);
  registry.hold(process.pid, CONTEXT_MIB);
  const children = spawnChildren({ count: knobs.CHILDREN, ownSession: knobs.CHILDREN_SETSID !== 0 });
  for (const pid of children) registry.hold(pid, knobs.GPU_MIB);

  const failure = knobs.FAIL === '' ? null : FAILURES[knobs.FAIL];
  let engine = null;
  let coreHangs = false;
  const member = { fail: failing, isReady: () => engine !== null, hangCore: () => (coreHangs = true) };
  const gang = set.ray ? await driveRay(set, knobs, member) : await leadGang(set, knobs, member);
  await load(
    { model: set.model, served: set.names[0], tp: set.tp, pp: set.pp, maxLen: set.maxLen },
    {
      loadMs: knobs.LOAD_MS,
      onStep: async part => {
        if (failure !== null && part * 100 >= knobs.FAIL_AT) fail(failure, registry);
        await gang.onStep(part);
        if (knobs.HANG_LOAD > 0 && part >= 0.1) await hang(knobs.HANG_LOAD);
        if (part >= 0.61) registry.hold(process.pid, knobs.GPU_MIB);
      },
    },
  );
  if (failure !== null) fail(failure, registry);
  if (knobs.FLOOD > 0) flood(knobs.FLOOD);
  await gang.loaded();
  while (coreHangs) await hang(60_000);

  engine = new Engine({
    names: set.names,
    root: set.model,
    version: VERSION,
    keys: set.keys,
    maxLen: set.maxLen,
    tokens: knobs.TOKENS,
    tokenMs: knobs.TOKEN_MS,
    hangFile: knobs.HANG_FILE,
    coreHangs: () => coreHangs,
    accessLog: set.accessLog,
  });
  const server = createEngineServer(engine);
  const address = `http://${set.host.includes(':') ? `[${set.host}]` : set.host}:${set.port}`;
  line('APIServer', 'INFO', 'entry.py:140', `Starting vLLM server on ${address}`);
  logRoutes();
  uvicorn(`Started server process [${process.pid}]`);
  uvicorn('Waiting for application startup.');
  uvicorn('Application startup complete.');
  server.on('error', error => {
    raw(
      `(APIServer pid=${process.pid}) ERROR:    [Errno 98] error while attempting to bind on address: ${error.message}\n`,
    );
    end(3, registry);
  });
  server.listen(set.port, set.host, () => {
    uvicorn(`Uvicorn running on ${address} (Press CTRL+C to quit)`);
    if (knobs.EXIT_AFTER_MS >= 0) {
      setTimeout(() => fail({ lines: ENGINE_DEATH, code: knobs.EXIT_CODE }, registry), knobs.EXIT_AFTER_MS);
    }
  });
  process.off('SIGTERM', interrupted);
  process.off('SIGINT', interrupted);
  const stop = once(() => shutDown({ server, engine, set, knobs, registry }));
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
}

/** What vLLM refuses of sizes and ranks before it loads. */
function refuseImpossible(set, visible, failing) {
  const there = visible.split(',').filter(gpu => gpu !== '').length;
  const world = set.tp * set.pp;
  const here = world / set.nnodes;
  const cause =
    set.rank > 0 && !set.headless
      ? 'AssertionError: collective_rpc should not be called on follower node'
      : !Number.isInteger(here) || set.rank >= set.nnodes
        ? `ValueError: world size ${world} is not divisible by nnodes ${set.nnodes}, or node_rank ${set.rank} is not below it`
        : !set.ray && there > 0 && here > there
          ? `ValueError: World size (${world}) is larger than the number of available GPUs (${there}) in this node.`
          : null;
  if (cause === null) return;
  failing({
    lines: ['(APIServer pid=PID) Traceback (most recent call last):', `(APIServer pid=PID) ${cause}`],
    code: 1,
  });
}

/** vLLM's order: the engine client first, then the HTTP server; a second signal changes nothing. */
async function shutDown({ server, engine, set, knobs, registry }) {
  const say = message => line('APIServer', 'INFO', 'launcher.py:254', `[shutdown] API server: ${message}`);
  say('shutdown triggered');
  if (knobs.NEVER_END_ON_TERM === 'always') return;
  const drain = set.shutdownTimeout > 0;
  say(`stopping engine client mode=${drain ? 'drain' : 'abort'} timeout=${set.shutdownTimeout}s`);
  engine.stopping = true;
  if (drain) {
    const limit = new Promise(resolve => setTimeout(resolve, set.shutdownTimeout * 1000));
    await Promise.race([flightsEnded(engine), limit]);
  }
  const frozen = knobs.NEVER_END_ON_TERM !== '';
  endFlights(engine, { frozen });
  say('engine client stopped');
  say('signalling HTTP server shutdown');
  server.close();
  server.closeIdleConnections();
  say('shutting down FastAPI HTTP server');
  await flightsEnded(engine);
  uvicorn('Shutting down');
  uvicorn('Waiting for application shutdown.');
  uvicorn('Application shutdown complete.');
  uvicorn(`Finished server process [${process.pid}]`);
  end(0, registry);
}

/** A signal before it serves: Python dies by the interrupt that vLLM turns it into. */
function dieInLoad(registry) {
  raw(`(APIServer pid=${process.pid}) KeyboardInterrupt: terminated\n`);
  registry.release(process.pid);
  process.removeAllListeners('SIGINT');
  process.kill(process.pid, 'SIGINT');
}

function fail({ lines, code }, registry) {
  const at = new Date();
  const two = n => String(n).padStart(2, '0');
  const stamp = `${two(at.getMonth() + 1)}-${two(at.getDate())} ${at.toTimeString().slice(0, 8)}`;
  for (const text of lines) raw(`${text.replaceAll('PID', process.pid).replace('MM-DD HH:MM:SS', stamp)}\n`);
  end(code, registry);
}

function end(code, registry) {
  registry.release(process.pid);
  process.exit(code);
}

function once(run) {
  let ran = false;
  return () => {
    if (ran) return;
    ran = true;
    run();
  };
}
