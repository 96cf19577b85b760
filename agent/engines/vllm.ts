// vLLM on one node, or as a gang that joins by itself (launch_mode mp) or over Ray: `vllm serve` with the sizes, the
// devices and the ports that the ledger and the agent own (INV-13).
import { join } from 'node:path';
import type { MemberOrder } from '../../contracts/activities.js';
import { baseEnv } from './environment.js';
import { hostPort, networkEnv, portOf, withoutProxy } from './gang-env.js';
import { gcsAddress, RAY_ENV, rayPorts, rayStartArgs } from './ray.js';
import { rayLauncher } from './ray-launcher.js';
import type {
  EngineRenderer,
  PortNeed,
  Probe,
  RayProgram,
  Rendered,
  RenderInput,
  ResolvedEngine,
} from './types.js';
import { atLeast } from './version.js';
import { checkVllm, joinsByRay } from './vllm-check.js';
import { explainVllm } from './vllm-failures.js';
import { vllmLifeSigns } from './vllm-life.js';
import { isVllmStall, vllmStage } from './vllm-progress.js';
import { serveArgs, shutdownSeconds } from './vllm-serve.js';

/** First version that takes full UUIDs in CUDA_VISIBLE_DEVICES; before it, `invalid literal for int()`. */
const UUIDS_SINCE = '0.24';
/** First version that knows VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS; older ones warn of it. */
const WORKER_SHUTDOWN_SINCE = '0.24';

/** What EngineCore gets between SIGTERM and SIGKILL: unset, vLLM gives 0 s and NCCL leaves its segments in /dev/shm. */
const WORKER_SHUTDOWN_SECONDS = 5;

/**
 * Beyond its own --shutdown-timeout: 5 s for the workers, 4 from SIGTERM to SIGKILL of them, and as much again. Longer
 * is in vain: with a client's stream open, or while EngineCore starts, it never ends by itself.
 */
const STOP_MS = 20_000;
/** The rest of a Ray node, after vLLM. */
const RAY_STOP_MS = 15_000;

export const vllm: EngineRenderer = {
  check: checkVllm,
  ports: vllmPorts,
  render: renderVllm,
  stage: vllmStage,
  isStall: isVllmStall,
  lifeSigns: vllmLifeSigns,
  stopMs: ({ spec }) => STOP_MS + shutdownSeconds(spec.args) * 1_000 + (spec.nodes > 1 ? RAY_STOP_MS : 0),
  explain: explainVllm,
};

function vllmPorts(order: MemberOrder, engine: ResolvedEngine): PortNeed[] {
  const leads = order.rank === 0;
  const http = leads ? [{ name: 'http', count: 1 }] : [];
  if (order.nodes === 1) return http;
  if (joinsByRay(order, engine)) return [...http, ...rayPorts(leads, order.slots.length, rayOf(engine))];
  return leads ? [...http, { name: 'master', count: 1 }] : [];
}

function renderVllm(input: RenderInput): Rendered {
  const { order, engine, mgmtAddr, runDir } = input;
  const common = {
    env: environment(input),
    cwd: runDir,
    probe: order.rank === 0 ? probe(mgmtAddr, portOf(input.ports, 'http'), input.engineKey) : null,
    secrets: [input.engineKey, ...Object.values(input.secretEnv)].filter(
      (secret): secret is string => secret !== null && secret !== '',
    ),
  };
  if (!joinsByRay(order, engine)) return { ...common, argv: [engine.bin, ...serveArgs(input)] };
  const launcher = rayLauncher({
    rank: order.rank,
    ray: rayOf(engine).bin,
    gcs: gcsAddress(input),
    start: rayStartArgs(input),
  });
  // By its shell: the work_dir may lie on a file system that is mounted noexec.
  const argv = ['/bin/sh', join(runDir, launcher.name)];
  return {
    ...common,
    argv: order.rank === 0 ? [...argv, engine.bin, ...serveArgs(input)] : argv,
    files: [launcher],
  };
}

/** The spec's own variables lie between the defaults and what llmgw owns: it can change the first, never the last. */
function environment(input: RenderInput): Record<string, string> {
  const { order, engine, peers, mgmtAddr, mgmtInterface, engineKey } = input;
  const given = {
    ...baseEnv(engine.bin, input.passEnv, input.runDir),
    VLLM_NO_USAGE_STATS: '1',
    ...(atLeast(engine.version, WORKER_SHUTDOWN_SINCE) === true
      ? { VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS: String(WORKER_SHUTDOWN_SECONDS) }
      : {}),
    ...order.spec.env,
    ...input.secretEnv,
  };
  return {
    ...given,
    NO_COLOR: '1',
    SPT_NOENV: '1',
    CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
    CUDA_VISIBLE_DEVICES: visibleDevices(input),
    VLLM_HOST_IP: mgmtAddr,
    ...networkEnv(input),
    ...(peers.length > 1 && mgmtInterface !== null ? { TP_SOCKET_IFNAME: mgmtInterface } : {}),
    // gRPC, by which Ray's parts talk, goes by a proxy too.
    ...(joinsByRay(order, engine)
      ? {
          ...RAY_ENV,
          ...withoutProxy(
            given,
            peers.map(peer => peer.mgmt_addr),
          ),
        }
      : {}),
    // A follower serves nobody.
    ...(engineKey === null || order.rank > 0 ? {} : { VLLM_API_KEY: engineKey }),
  };
}

/** A version that nobody could ask is taken for an old one: indices work in all of them. */
function visibleDevices({ gpus, engine }: RenderInput): string {
  // An old Jetson has no UUID, and is listed by a name of ours.
  const uuids =
    atLeast(engine.version, UUIDS_SINCE) === true && gpus.every(gpu => /^(GPU|MIG)-/.test(gpu.uuid));
  return gpus.map(gpu => (uuids ? gpu.uuid : String(gpu.index))).join(',');
}

/** @throws Error when it isn't there: preflight looks for it before anything is held. */
function rayOf(engine: ResolvedEngine): RayProgram {
  if (engine.ray === undefined) throw new Error(`engine ${engine.name} has no Ray: preflight looks for it`);
  return engine.ray;
}

function probe(host: string, port: number, bearer: string | null): Probe {
  const base = `http://${hostPort(host, port)}`;
  return { healthUrl: `${base}/health`, modelsUrl: `${base}/v1/models`, bearer };
}
