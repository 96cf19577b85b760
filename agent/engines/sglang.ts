// SGLang on one node or as a gang: `python -m sglang.launch_server`, which all versions have (`sglang serve`, which the
// newer ones recommend, asks the model hub first whether the model makes pictures, and has no other use here).
import type { MemberOrder } from '../../contracts/activities.js';
import { baseEnv } from './environment.js';
import { hostPort, leaderOf, networkEnv, portOf, withoutProxy } from './gang-env.js';
import { checkSglang } from './sglang-check.js';
import { explainSglang } from './sglang-failures.js';
import { sglangLifeSigns } from './sglang-life.js';
import { isSglangStall, sglangStage } from './sglang-progress.js';
import type { EngineRenderer, PortNeed, Probe, Rendered, RenderInput } from './types.js';

/** Arguments for the interpreter that print the version: the server itself has no flag for it, and imports torch first. */
export const SGLANG_VERSION_ARGS = ['-c', "import importlib.metadata as m; print(m.version('sglang'))"];

/** What the command line has: 13 beyond the rendezvous port is the farthest that SGLang reckons from it. */
const DIST_PORTS = 16;

/**
 * /health asks for a token, waits 20 s for one and takes at least 1 s; a probe that gives up earlier leaves a request
 * behind in the engine, and one that comes while another waits can be answered by the other's token.
 */
const PROBE_TIMEOUT_MS = 25_000;
const PROBE_PERIOD_MS = 25_000;

/**
 * A follower ignores SIGTERM: rank 0 tells it to end, at most 15 s after its own SIGTERM. With rank 0 dead nothing but
 * SIGKILL ends it, so more is never useful.
 */
const FOLLOWER_STOP_MS = 20_000;

const KEY_FILE = 'sglang-key.yaml';

export const sglang: EngineRenderer = {
  check: checkSglang,
  ports: sglangPorts,
  render: renderSglang,
  stage: sglangStage,
  isStall: isSglangStall,
  lifeSigns: sglangLifeSigns,
  stopMs: ({ rank }) => (rank > 0 ? FOLLOWER_STOP_MS : null),
  explain: explainSglang,
};

/** A follower has an HTTP port too: it answers 200 there, whatever happens, and nothing is asked of it. */
function sglangPorts({ rank }: MemberOrder): PortNeed[] {
  const own = [
    { name: 'http', count: 1 },
    { name: 'nccl', count: 1 },
  ];
  return rank === 0 ? [...own, { name: 'dist', count: DIST_PORTS }] : own;
}

function renderSglang(input: RenderInput): Rendered {
  const { order, engine, mgmtAddr, runDir } = input;
  const port = portOf(input.ports, 'http');
  // Only rank 0 serves, so that only it needs a key; the flag would be in everybody's process list.
  const key = order.rank === 0 ? input.engineKey : null;
  const keyArgs = key === null ? [] : ['--config', `${runDir}/${KEY_FILE}`];
  return {
    argv: [
      engine.bin,
      '-m',
      'sglang.launch_server',
      ...serverArgs(input, port),
      ...keyArgs,
      ...order.spec.args,
    ],
    env: environment(input),
    cwd: runDir,
    probe: order.rank === 0 ? probe(mgmtAddr, port, key) : null,
    files: key === null ? [] : [{ name: KEY_FILE, text: `api-key: ${JSON.stringify(key)}\n`, mode: 0o600 }],
    secrets: [input.engineKey, ...Object.values(input.secretEnv)].filter(
      (secret): secret is string => secret !== null && secret !== '',
    ),
  };
}

function serverArgs(input: RenderInput, port: number): string[] {
  const { order, mgmtAddr, ports } = input;
  const { spec } = order;
  return [
    '--model-path',
    spec.model,
    '--served-model-name',
    spec.served_model_name,
    '--host',
    mgmtAddr,
    '--port',
    String(port),
    '--tp-size',
    String(spec.tensor_parallel),
    '--pp-size',
    String(spec.pipeline_parallel),
    '--nnodes',
    String(order.nodes),
    '--node-rank',
    String(order.rank),
    '--dist-init-addr',
    rendezvous(input),
    '--nccl-port',
    String(portOf(ports, 'nccl')),
    '--enable-metrics',
  ];
}

/** Alone it meets itself on loopback; without an address it would reckon ports from its HTTP port, which aren't its own. */
function rendezvous({ order, ports, peers }: RenderInput): string {
  if (order.nodes === 1) return hostPort('127.0.0.1', portOf(ports, 'dist'));
  const leader = leaderOf(peers);
  return hostPort(leader.mgmt_addr, portOf(leader.ports, 'dist'));
}

/** The spec's own variables lie between the defaults and what llmgw owns: it can change the first, never the last. */
function environment(input: RenderInput): Record<string, string> {
  const { order, mgmtAddr, peers } = input;
  const members = order.nodes === 1 ? ['127.0.0.1', mgmtAddr] : peers.map(peer => peer.mgmt_addr);
  const given = {
    ...baseEnv(input.engine.bin, input.passEnv, input.runDir),
    ...order.spec.env,
    ...input.secretEnv,
  };
  return {
    ...given,
    // Its warm-up calls its own address, by a proxy if the environment names one.
    ...withoutProxy(given, [...new Set([mgmtAddr, ...members])]),
    NO_COLOR: '1',
    SPT_NOENV: '1',
    CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
    // Indices: its all-reduce reads them as numbers, and dies of a UUID (0.5.23 still does).
    CUDA_VISIBLE_DEVICES: input.gpus.map(gpu => String(gpu.index)).join(','),
    SGLANG_HOST_IP: mgmtAddr,
    // Its sockets between members take pickles from anybody whom this list doesn't keep out.
    SGLANG_ZMQ_ALLOWED_PEERS: members.join(','),
    ...networkEnv(input),
  };
}

function probe(host: string, port: number, bearer: string | null): Probe {
  const base = `http://${hostPort(host, port)}`;
  return {
    healthUrl: `${base}/health`,
    modelsUrl: `${base}/v1/models`,
    bearer,
    timeoutMs: PROBE_TIMEOUT_MS,
    periodMs: PROBE_PERIOD_MS,
  };
}
