// A process of many agents' streams: the product's own stream client, each with its own certificate, identity and
// reconnecting by its defaults. What a whole agent has besides is left out: supervisor, discovery, and the Temporal
// worker with its long poll. Its parent is told how many are connected whenever that changes.
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { logVerbosity, setLogVerbosity } from '@grpc/grpc-js';
import { Conditions } from '../../dist/agent/conditions.js';
import { SessionCounter } from '../../dist/agent/identity.js';
import { StreamClient } from '../../dist/agent/stream/client.js';

setLogVerbosity(logVerbosity.NONE);
process.once('message', start);
process.once('disconnect', () => process.exit(0));

/** Order: { names, pki, workDir, port, gpus }. */
function start({ names, pki, workDir, port, gpus, reconnect }) {
  const up = new Map();
  const ends = {};
  const tell = () =>
    process.send({
      connected: [...up.values()].filter(v => v.connected).length,
      welcomes: [...up.values()].reduce((n, v) => n + v.welcomes, 0),
      ends,
    });
  const quiet = { trace() {}, debug() {}, info() {}, warn() {}, error() {}, fatal() {} };
  for (const name of names) {
    const state = { connected: false, welcomes: 0 };
    up.set(name, state);
    // The one line that says that a stream has ended.
    const ended = (_fields, words) => {
      ends[words] = (ends[words] ?? 0) + 1;
      state.connected = false;
      tell();
    };
    const log = { ...quiet, warn: ended, error: ended };
    const dir = path.join(workDir, name);
    mkdirSync(dir, { recursive: true });
    const inventory = inventoryOf(name, gpus);
    const stream = new StreamClient({
      config: {
        nodeId: name,
        server: { host: '127.0.0.1', port, tls: true },
        tls: {
          ca: path.join(pki, 'ca.pem'),
          cert: path.join(pki, `${name}.pem`),
          key: path.join(pki, `${name}-key.pem`),
        },
        heartbeatIntervalMs: 5_000,
        reconnectBaseMs: reconnect.base,
        reconnectMaxMs: reconnect.max,
      },
      sources: {
        bootId: `boot-of-${name}`,
        agentVersion: 'bench',
        inventory: () => inventory,
        engines: () => [],
        outbox: { pending: () => [], ack: () => {}, onEvent: () => {} },
        serve: async function* () {},
      },
      conditions: new Conditions(),
      counter: new SessionCounter(dir, quiet),
      log,
      onWelcome: () => {
        state.connected = true;
        state.welcomes++;
        tell();
      },
    });
    void stream.run(new AbortController().signal);
  }
}

function inventoryOf(name, gpus) {
  const uuids = Array.from({ length: gpus }, (_, i) => `GPU-${name}-${i}`);
  return {
    node_id: name,
    boot_id: `boot-of-${name}`,
    agent_version: 'bench',
    mgmt_addr: '127.0.0.1',
    labels: {},
    source: 'simulated',
    driver_version: '580.95.05',
    gpus: uuids.map((uuid, index) => ({
      index,
      uuid,
      name: 'NVIDIA H100 80GB HBM3',
      pci_bus_id: `00000000:${(0x18 + index).toString(16)}:00.0`,
      memory_total_mib: 81_559,
      memory_free_mib: 81_000,
      foreign_mib: 0,
      compute_capability: '9.0',
      mig: false,
      usable: true,
      reason: null,
    })),
    nvlink_islands: [uuids],
    hcas: [],
    fabrics: [],
    engines: [{ name: 'vllm', type: 'vllm', version: '0.33.0', launch_mode: 'mp', problems: [] }],
    certificate: null,
    conditions: [],
  };
}
