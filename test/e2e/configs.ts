// The configuration files of an installation, and the ports in them.
import { mkdirSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { stringify } from 'yaml';

export const ROOT = path.resolve(import.meta.dirname, '../..');
export const NODE = 'gpu-a-01';
export const GPUS = 8;
const STANDIN = path.join(ROOT, 'bin/llmgw-standin-vllm.mjs');

/** agent.yaml's `engines`: a stand-in for each launch mode. */
export const ENGINES = {
  vllm: { bin: STANDIN, launch_mode: 'mp' },
  'vllm-ray': {
    type: 'vllm',
    bin: STANDIN,
    launch_mode: 'ray',
    ray_bin: path.join(ROOT, 'bin/llmgw-standin-ray.mjs'),
  },
  sglang: { python: path.join(ROOT, 'bin/llmgw-standin-python.mjs') },
};

export interface Ports {
  temporal: number;
  ui: number;
  agent: number;
  http: number;
  router: number;
}

/** `agent` and `server` replace top-level keys. */
export function writeConfigs(
  dir: string,
  pki: string,
  ports: Ports,
  agent: Record<string, unknown>,
  server: Record<string, unknown>,
) {
  const files = {
    server: path.join(dir, 'server.yaml'),
    agent: path.join(dir, 'agent.yaml'),
    router: path.join(dir, 'router.yaml'),
    simulation: path.join(dir, 'simulation.json'),
  };
  const gpuDir = path.join(dir, 'gpus');
  mkdirSync(gpuDir);
  const simulation = {
    gpus: { count: GPUS, name: 'NVIDIA H100 80GB HBM3' },
    islands: [Array.from({ length: GPUS }, (_, index) => index)],
    fabrics: [{ name: 'sim-ib', hcas: ['mlx5_0'] }],
    gpu_dir: gpuDir,
  };
  writeFileSync(files.simulation, JSON.stringify(simulation));
  const serverConfig = {
    listen: `127.0.0.1:${ports.agent}`,
    http_listen: `127.0.0.1:${ports.http}`,
    tls: tlsFiles(pki, 'server'),
    temporal: { address: `127.0.0.1:${ports.temporal}` },
    secrets_dir: pki,
    state_dir: path.join(dir, 'server'),
    ...server,
  };
  writeFileSync(files.server, stringify(serverConfig));
  writeFileSync(files.agent, stringify(agentConfig(dir, pki, ports, NODE, agent)));
  const router = {
    listen: `127.0.0.1:${ports.router}`,
    server: `http://127.0.0.1:${ports.http}`,
    master_secret_file: path.join(pki, 'engine-master.key'),
    state_dir: path.join(dir, 'router'),
    timeouts: { shutdown: '500ms' },
  };
  writeFileSync(files.router, stringify(router));
  return files;
}

/** agent.yaml of a node; `more` replaces top-level keys. */
export function agentConfig(
  dir: string,
  pki: string,
  ports: Ports,
  nodeId: string,
  more: Record<string, unknown> = {},
) {
  // Slices of a range that nothing else of the machine's tests uses.
  const first = 23_000 + (process.pid % 60) * 100;
  return {
    node_id: nodeId,
    server: `https://127.0.0.1:${ports.agent}`,
    tls: tlsFiles(pki, nodeId),
    mgmt_addr: '127.0.0.1',
    heartbeat_interval: '1s',
    reconnect_base: '100ms',
    reconnect_max: '1s',
    secrets_dir: path.join(dir, 'secrets'),
    engines: { vllm: { bin: STANDIN } },
    supervisor: {
      work_dir: path.join(dir, `work-${nodeId}`),
      ports: `${first}-${first + 99}`,
      stop_timeout: '3s',
      gpu_release_timeout: '5s',
    },
    ...more,
  };
}

export const tlsFiles = (pki: string, name: string) => ({
  ca: path.join(pki, 'ca.pem'),
  cert: path.join(pki, `${name}.pem`),
  key: path.join(pki, `${name}-key.pem`),
});

let nextPort = 12_000 + (process.pid % 70) * 100;

/** Below the kernel's ephemeral range: a part that is killed finds its port free when it comes back. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = nextPort++;
    const free = await new Promise<boolean>(resolve => {
      const probe = net.createServer();
      probe.once('error', () => resolve(false));
      probe.listen({ host: '127.0.0.1', port, exclusive: true }, () => probe.close(() => resolve(true)));
    });
    if (free) return port;
  }
}

export async function freePorts(): Promise<Ports> {
  return {
    temporal: await freePort(),
    ui: await freePort(),
    agent: await freePort(),
    http: await freePort(),
    router: await freePort(),
  };
}
