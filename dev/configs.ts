// The configurations that dev writes for plain `llmgw server|agent|router`, anew at each start.
import { writeFileSync } from 'node:fs';
import { stringify } from 'yaml';
import { type DevPki, NODE_ID } from './certificates.js';
import type { Hardware } from './hardware.js';
import { type DataPaths, STANDIN_VLLM } from './paths.js';
import type { DevPorts } from './state.js';

const HOST = '127.0.0.1';
const HEAD = '# Written by `llmgw dev` at each start: changes here are lost.\n';

export interface ConfigInput {
  paths: DataPaths;
  ports: DevPorts;
  pki: DevPki;
  hardware: Hardware;
}

/** Writes server.yaml, agent.yaml and router.yaml into the data directory. */
export function writeConfigs(input: ConfigInput): void {
  const { paths } = input;
  writeFileSync(paths.serverConfig, HEAD + stringify(serverConfig(input)), { mode: 0o600 });
  writeFileSync(paths.agentConfig, HEAD + stringify(agentConfig(input)), { mode: 0o600 });
  writeFileSync(paths.routerConfig, HEAD + stringify(routerConfig(input)), { mode: 0o600 });
}

function serverConfig({ paths, ports, pki }: ConfigInput) {
  return {
    listen: `${HOST}:${ports.agent}`,
    http_listen: `${HOST}:${ports.http}`,
    tls: pki.server,
    temporal: { address: `${HOST}:${ports.temporal}` },
    secrets_dir: paths.pki,
    state_dir: paths.serverState,
  };
}

function agentConfig({ paths, ports, pki, hardware }: ConfigInput) {
  return {
    node_id: NODE_ID,
    server: `https://${HOST}:${ports.agent}`,
    tls: pki.agent,
    mgmt_addr: HOST,
    // The server starts at the same moment, and nobody else dials it: a wait of a second would show in every start.
    reconnect_base: '100ms',
    reconnect_max: '250ms',
    secrets_dir: paths.secrets,
    engines: { vllm: { bin: hardware.simulated ? STANDIN_VLLM : hardware.vllm } },
    supervisor: { work_dir: paths.agentWork },
  };
}

function routerConfig({ paths, ports, pki }: ConfigInput) {
  return {
    listen: `${HOST}:${ports.router}`,
    server: `http://${HOST}:${ports.http}`,
    master_secret_file: pki.engineMaster,
    state_dir: paths.routerState,
    // Dev promises to be gone in 5 s, running answers included.
    timeouts: { shutdown: '500ms' },
  };
}
