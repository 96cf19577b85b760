// The stand-in for `python -m sglang.launch_server`, alone or as a member of a gang. What a real one does that a
// supervisor trips over: it ends itself by SIGKILL after any fatal error; a follower's /health says 200 whatever happens;
// a follower ignores SIGTERM and waits for rank 0's word; rank 0's SIGTERM drains without a limit.
import { spawnChildren } from './children.mjs';
import { follow, Leader, splitAddress } from './gang.mjs';
import { GpuRegistry } from './gpu-registry.mjs';
import { Engine, flightsEnded } from './http.mjs';
import { readKnobs } from './knobs.mjs';
import { flood } from './load.mjs';
import { raw, silence } from './log.mjs';
import { parseLaunch } from './sglang-args.mjs';
import { COLLECTIVE_TIMEOUT, SCHEDULER_CRASH, SGLANG_FAILURES } from './sglang-failures.mjs';
import { createDummyServer, createSglangServer } from './sglang-http.mjs';
import { hangSglang, loadSglang, MEETING, say, stampNow } from './sglang-load.mjs';

export const SGLANG_VERSION = '0.5.23';

/** What a process holds on its GPU before the model is there: the CUDA context. */
const CONTEXT_MIB = 520;

/** Where the HTTP server opens; the warm-up is the rest. */
const WARM_UP = 0.95;

/** @param {string[]} argv what follows `-m sglang.launch_server` */
export function launchServer(argv) {
  const parsed = parseLaunch(argv);
  if (parsed.error !== undefined) usage(parsed.error);
  const set = settings(parsed.options);
  const { knobs, error } = readKnobs(process.env, Object.keys(SGLANG_FAILURES), set.rank);
  if (error !== undefined) usage(`llmgw-standin-python: error: ${error}`);
  raw(
    `llmgw-standin-python: a stand-in for SGLang ${SGLANG_VERSION}, not an engine: no model is loaded and the tokens are made up\n`,
  );
  if (knobs.SILENT !== 0) silence();
  void new Member(set, knobs).run();
}

function usage(message) {
  process.stderr.write(`usage: sglang serve [-h] --model-path MODEL_PATH [options]\n${message}\n`);
  process.exit(2);
}

function settings(options) {
  const model = options.get('--model-path');
  const key = options.get('--api-key');
  const meeting = options.get('--dist-init-addr');
  return {
    model,
    name: options.get('--served-model-name') ?? model,
    host: options.get('--host') ?? '127.0.0.1',
    port: Number(options.get('--port') ?? 30_000),
    tp: Number(options.get('--tp-size') ?? 1),
    pp: Number(options.get('--pp-size') ?? 1),
    nodes: Number(options.get('--nnodes') ?? 1),
    rank: Number(options.get('--node-rank') ?? 0),
    meeting: meeting === undefined ? null : splitAddress(meeting),
    maxLen: Number(options.get('--context-length') ?? 40_960),
    keys: key === undefined ? [] : [key],
    metrics: options.get('--enable-metrics') === true,
  };
}

class Member {
  /** Of rank 0 of a gang. */
  leader = null;
  /** Of a follower. */
  link = null;
  coreHangs = false;
  state = { status: 'Starting', exiting: false, healthMs: 0, metrics: false };

  constructor(set, knobs) {
    this.set = set;
    this.knobs = knobs;
    this.visible = process.env.CUDA_VISIBLE_DEVICES ?? '';
    this.registry = new GpuRegistry(knobs.GPU_DIR, this.visible);
    this.failure = knobs.FAIL === '' ? null : SGLANG_FAILURES[knobs.FAIL];
    Object.assign(this.state, { healthMs: knobs.HEALTH_MS, metrics: set.metrics });
  }

  async run() {
    const { set, knobs, registry } = this;
    // Python's own answer to SIGTERM, until the server has put its handler in its place.
    const interrupted = () => this.dieBy('SIGTERM');
    process.on('SIGTERM', interrupted);
    say(
      '',
      `server_args=ServerArgs(model_path='${set.model}', host='${set.host}', port=${set.port}, trust_remote_code=False)`,
    );
    this.refuseImpossible();
    await this.listenForMembers();
    registry.hold(process.pid, CONTEXT_MIB);
    const children = spawnChildren({ count: knobs.CHILDREN, ownSession: knobs.CHILDREN_SETSID !== 0 });
    for (const pid of children) registry.hold(pid, knobs.GPU_MIB);
    await loadSglang(set, { loadMs: knobs.LOAD_MS, onStep: part => this.step(part) });
    if (this.failure !== null) this.fail(this.failure);
    if (knobs.FLOOD > 0) flood(knobs.FLOOD);
    this.link?.loaded();
    await this.leader?.loaded;
    process.off('SIGTERM', interrupted);
    if (set.rank > 0) this.serveDummy();
    else await this.serve();
  }

  async step(part) {
    const { knobs } = this;
    if (this.failure !== null && part * 100 >= knobs.FAIL_AT) this.fail(this.failure);
    if (part >= MEETING) await this.meet();
    if (knobs.HANG_LOAD > 0 && part >= 0.1) await hangSglang(knobs.HANG_LOAD);
    if (part >= 0.62) this.registry.hold(process.pid, knobs.GPU_MIB);
  }

  refuseImpossible() {
    const { tp, pp, nodes, rank, meeting } = this.set;
    const there = this.visible.split(',').filter(gpu => gpu !== '').length;
    const here = (tp * pp) / nodes;
    const cause = !Number.isInteger(here)
      ? 'AssertionError: tp_size must be divisible by number of nodes'
      : rank >= nodes || (nodes > 1 && meeting === null)
        ? 'AssertionError: node_rank must be less than nnodes, and dist_init_addr given'
        : there > 0 && here > there
          ? 'RuntimeError: CUDA error: invalid device ordinal'
          : null;
    if (cause !== null) this.fail({ lines: ['Traceback (most recent call last):', cause], code: 1 });
  }

  async listenForMembers() {
    const { nodes, rank, meeting } = this.set;
    if (nodes === 1 || rank > 0) return;
    this.leader = await Leader.listen(meeting.host, meeting.port, nodes).catch(error =>
      this.fail({
        lines: [
          `ValueError: dist_init_port at ${meeting.port} is not available in 30 seconds. ${error.code}`,
        ],
        code: 1,
      }),
    );
    this.leader.onLost = () => {
      if (this.knobs.LOST_MS < 0) this.coreHangs = true;
      else setTimeout(() => this.fail(COLLECTIVE_TIMEOUT), this.knobs.LOST_MS);
    };
  }

  async meet() {
    await this.leader?.joined;
    const { rank, meeting } = this.set;
    if (rank === 0 || this.link !== null) return;
    const warn = text => raw(`[W1130 12:00:00.1 socket.cpp:767] [c10d] ${text}\n`);
    this.link = await follow(meeting.host, meeting.port, {
      rank,
      onWait: () =>
        warn(
          `The client socket has failed to connect to [${meeting.host}]:${meeting.port} (errno: 111 - Connection refused).`,
        ),
      onMessage: message => message.shutdown === true && this.end(0),
      // Without rank 0's word its schedulers go on waiting.
      onLost: () => warn('recvValue failed on SocketImpl(fd=71): Connection reset by peer'),
    });
  }

  serveDummy() {
    const { set, knobs } = this;
    process.on('SIGTERM', () =>
      say(
        '',
        `SIGTERM received on node_rank ${set.rank}; waiting for the rank-0 ShutdownReq broadcast to stop the schedulers.`,
      ),
    );
    const server = createDummyServer(this.engine());
    server.on('error', error => say('', `Dummy health check server failed to start: ${error.message}`));
    server.listen(set.port, set.host, () =>
      say('', `Dummy health check server started in background thread at ${set.host}:${set.port}`),
    );
    if (knobs.EXIT_AFTER_MS >= 0) setTimeout(() => this.crash(), knobs.EXIT_AFTER_MS);
  }

  async serve() {
    const { set, knobs, state } = this;
    const engine = this.engine();
    const server = createSglangServer(engine, state);
    raw(`INFO:     Started server process [${process.pid}]\nINFO:     Waiting for application startup.\n`);
    raw('INFO:     Application startup complete.\n');
    server.on('error', error =>
      this.fail({
        lines: [
          `ERROR:    [Errno 98] error while attempting to bind on address ('${set.host}', ${set.port}): ${error.code}`,
        ],
        code: 3,
      }),
    );
    process.on('SIGTERM', () => void this.shutDown(engine));
    await new Promise(resolve => server.listen(set.port, set.host, resolve));
    raw(`INFO:     Uvicorn running on http://${set.host}:${set.port} (Press CTRL+C to quit)\n`);
    await new Promise(resolve => setTimeout(resolve, (1 - WARM_UP) * knobs.LOAD_MS));
    while (this.coreHangs) await hangSglang(60_000);
    state.status = 'Up';
    say('', 'The server is fired up and ready to roll!');
    if (knobs.EXIT_AFTER_MS >= 0) setTimeout(() => this.crash(), knobs.EXIT_AFTER_MS);
  }

  engine() {
    const { set, knobs } = this;
    return new Engine({
      names: [set.name],
      root: set.model,
      version: SGLANG_VERSION,
      keys: set.keys,
      maxLen: set.maxLen,
      tokens: knobs.TOKENS,
      tokenMs: knobs.TOKEN_MS,
      hangFile: knobs.HANG_FILE,
      accessLog: true,
      coreHangs: () => this.coreHangs,
    });
  }

  /** Drains without a limit, then tells the others. */
  async shutDown(engine) {
    if (this.state.exiting) return;
    this.state.exiting = true;
    if (this.knobs.NEVER_END_ON_TERM === 'always') return;
    say(
      '',
      `Gracefully exiting... Remaining number of requests ${engine.open.size}. Remaining requests remaining_rids=[].`,
    );
    await flightsEnded(engine);
    this.leader?.tell({ shutdown: true });
    this.leader?.close();
    this.end(0);
  }

  /** An exit that nobody asked for. */
  crash() {
    const { EXIT_CODE } = this.knobs;
    this.fail(EXIT_CODE === 0 ? SCHEDULER_CRASH : { ...SCHEDULER_CRASH, code: EXIT_CODE });
  }

  /** Its last lines, then an exit with `code`, or SIGKILL of itself. */
  fail({ lines, code }) {
    for (const text of lines) raw(`${text.replace('STAMP', stampNow()).replaceAll('PID', process.pid)}\n`);
    if (code === undefined) this.dieBy('SIGKILL');
    else this.end(code);
  }

  dieBy(signal) {
    this.registry.release(process.pid);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  }

  end(code) {
    this.registry.release(process.pid);
    process.exit(code);
  }
}
