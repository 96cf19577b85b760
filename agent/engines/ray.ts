// A Ray cluster for one generation of one replica: `ray start` of its head and of its other nodes, with every port
// pinned. Two clusters on a node collide in each port that is left to its default, and Ray's random ones collide with
// each other.
import { LlmgwError } from '../../contracts/errors.js';
import { hostPort, leaderOf, portOf } from './gang-env.js';
import type { PortNeed, RayProgram, RenderInput } from './types.js';
import { atLeast } from './version.js';

/** Before it, a node that joins put its files at the path of the head's: on another machine, nobody's. */
const RAY_SINCE = '2.55';

/** vLLM's tensors go by NCCL; the default (30 % of the memory, in /dev/shm) would leave NCCL and vLLM no room. */
const OBJECT_STORE_BYTES = 1024 ** 3;

/** An actor for each GPU, as many idle processes that Ray starts ahead, drivers, and those that are just ending. */
const workerPorts = (gpus: number): number => 16 + 4 * gpus;

/** Names of the ports that every node has, and the flags that pin them. */
const NODE_PORTS = {
  node_manager: '--node-manager-port',
  object_manager: '--object-manager-port',
  agent_http: '--dashboard-agent-listen-port',
  agent_grpc: '--dashboard-agent-grpc-port',
  runtime_env: '--runtime-env-agent-port',
  metrics: '--metrics-export-port',
} as const;
const WORKERS = 'worker';

/** @throws LlmgwError ENGINE_UNFIT for a Ray that is too old. */
export function checkRay(ray: RayProgram, engine: string): void {
  if (atLeast(ray.version, RAY_SINCE) !== false) return;
  throw new LlmgwError(
    'ENGINE_UNFIT',
    `nodes: Ray ${ray.version} (${ray.bin}, engine ${engine}) can't join several nodes here, which needs Ray ${RAY_SINCE} or newer: install it, or use launch_mode mp`,
  );
}

export function rayPorts(isHead: boolean, gpus: number, ray: RayProgram): PortNeed[] {
  const head = ['gcs', 'dashboard', ...(ray.client ? ['client'] : [])];
  return [
    ...[...(isHead ? head : []), ...Object.keys(NODE_PORTS)].map(name => ({ name, count: 1 })),
    { name: WORKERS, count: workerPorts(gpus) },
  ];
}

/** Where the head's GCS listens: what RAY_ADDRESS says. */
export function gcsAddress({ peers }: Pick<RenderInput, 'peers'>): string {
  const leader = leaderOf(peers);
  return hostPort(leader.mgmt_addr, portOf(leader.ports, 'gcs'));
}

/** What follows `ray`; the launcher adds --temp-dir, which it knows when it runs. */
export function rayStartArgs(input: RenderInput): string[] {
  const { order, ports, gpus, mgmtAddr } = input;
  const first = portOf(ports, WORKERS);
  const role =
    order.rank === 0
      ? [
          '--head',
          `--port=${portOf(ports, 'gcs')}`,
          // It runs without its pages all the same, and takes a port.
          '--include-dashboard=false',
          `--dashboard-port=${portOf(ports, 'dashboard')}`,
          // Of a Ray without its client the flag is refused; with it, two heads want the same default port.
          ...(ports.client === undefined ? [] : [`--ray-client-server-port=${ports.client}`]),
        ]
      : [`--address=${gcsAddress(input)}`];
  return [
    'start',
    '--block',
    ...role,
    // The one that vLLM goes by (VLLM_HOST_IP): with two different ones its placement waits for ever.
    `--node-ip-address=${mgmtAddr}`,
    `--num-gpus=${gpus.length}`,
    // vLLM's actors ask for none; each is a process that Ray starts ahead.
    `--num-cpus=${gpus.length}`,
    `--object-store-memory=${OBJECT_STORE_BYTES}`,
    ...Object.entries(NODE_PORTS).map(([name, flag]) => `${flag}=${portOf(ports, name)}`),
    `--min-worker-port=${first}`,
    `--max-worker-port=${first + workerPorts(gpus.length) - 1}`,
  ];
}

/** For `ray start` and for what runs on it, on every node. */
export const RAY_ENV = {
  RAY_USAGE_STATS_ENABLED: '0',
  // Unset, a head turns tokens on by itself where it finds one, and the others don't.
  RAY_AUTH_MODE: 'disabled',
  // A node that ends would wait 30 s for its actors to move elsewhere.
  RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S: '0',
};
