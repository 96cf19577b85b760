// The stand-in for `ray`: `ray start` for a head and its workers, `ray status`, `ray health-check`. The head's process
// keeps the list of nodes on its GCS port; a worker holds a connection to it and dies with it, and whoever drives the
// cluster is told of nodes that die. docs/stand-in.md has its knobs.
import { mkdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { join as joinPath } from 'node:path';
import { FAILURES } from './failures.mjs';
import { dial, eachMessage, splitAddress } from './gang.mjs';
import { GpuRegistry } from './gpu-registry.mjs';
import { markedRank, readKnobs } from './knobs.mjs';
import { raw, silence } from './log.mjs';

export const RAY_VERSION = '2.60.0';

const START_FLAGS = new Set(
  `address port node-ip-address node-name num-gpus num-cpus temp-dir object-store-memory include-dashboard
  dashboard-host dashboard-port dashboard-agent-listen-port dashboard-agent-grpc-port ray-client-server-port
  min-worker-port max-worker-port worker-port-list node-manager-port object-manager-port runtime-env-agent-port
  metrics-export-port resources labels log-style log-color plasma-directory memory`
    .trim()
    .split(/\s+/)
    .map(name => `--${name}`),
);
const START_SWITCHES = new Set([
  '--head',
  '--block',
  '--disable-usage-stats',
  '--no-monitor',
  '--verbose',
  '-v',
]);
/** What `ray start` refuses without --head. */
const HEAD_ONLY = ['--port', '--include-dashboard'];

const READY_MS = 5_000;

/** @param {string[]} argv what follows the program's name */
export function ray(argv) {
  if (argv.includes('--version')) return raw(`ray, version ${RAY_VERSION}\n`);
  const [command, ...rest] = argv;
  if (command === 'start') return start(parse(rest, START_FLAGS, START_SWITCHES));
  if (command === 'status')
    return void status(parse(rest, new Set(['--address']), new Set(['-v', '--verbose'])));
  if (command === 'health-check')
    return void healthCheck(parse(rest, new Set(['--address']), new Set(['--skip-version-check'])));
  refuse(`Error: No such command '${command ?? ''}' (the stand-in knows start, status and health-check).`);
}

function parse(argv, flags, switches) {
  const options = new Map();
  for (let i = 0; i < argv.length; i++) {
    const [name, inline] = argv[i].split(/=(.*)/s, 2);
    if (switches.has(name)) options.set(name, true);
    else if (!flags.has(name)) refuse(`Error: No such option: ${name}`);
    else {
      const value = inline ?? argv[++i];
      if (value === undefined) refuse(`Error: Option '${name}' requires an argument.`);
      options.set(name, value);
    }
  }
  return options;
}

function refuse(message) {
  process.stderr.write(`Usage: ray [OPTIONS] COMMAND [ARGS]...\n${message}\n`);
  process.exit(2);
}

function start(options) {
  const head = options.get('--head') === true;
  const address = options.get('--address');
  if (head === (address !== undefined)) {
    refuse('Error: `ray start` must either be called with --head or with --address.');
  }
  const wrong = head ? undefined : HEAD_ONLY.find(name => options.has(name));
  if (wrong !== undefined) refuse(`Error: \`${wrong}\` should only be specified without \`--address\`.`);
  const rank = markedRank(process.env, head ? 0 : 1);
  const { knobs, error } = readKnobs(process.env, Object.keys(FAILURES), rank);
  if (error !== undefined) refuse(`llmgw-standin-ray: error: ${error}`);
  if (options.get('--block') !== true)
    refuse('llmgw-standin-ray: error: only `ray start --block` is stood in for');
  raw(`llmgw-standin-ray: a stand-in for Ray ${RAY_VERSION}, not a cluster: it runs no tasks\n`);
  if (knobs.SILENT !== 0) silence();
  const registry = new GpuRegistry(knobs.GPU_DIR, process.env.CUDA_VISIBLE_DEVICES ?? '');
  const end = code => {
    registry.release(process.pid);
    process.exit(code);
  };
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => end(0));
  const node = {
    ip: options.get('--node-ip-address') ?? '127.0.0.1',
    gpus: Number(options.get('--num-gpus') ?? 0),
    tempDir: options.get('--temp-dir') ?? null,
    end,
    place: mib => registry.hold(process.pid, mib),
  };
  if (head) return lead(node, Number(options.get('--port') ?? 6379));
  // A head's knobs are those of the engine that it is started for.
  if (knobs.FAIL !== '') return died(node, 'raylet [exit code=1]');
  void join(node, address).then(() => {
    if (knobs.EXIT_AFTER_MS >= 0) setTimeout(() => died(node, 'raylet [exit code=-9]'), knobs.EXIT_AFTER_MS);
  });
}

/** Its socket lies below the temporary folder, by a path that a unix socket may have. */
function startRaylet(node) {
  if (node.tempDir === null) return;
  const sockets = joinPath(node.tempDir, `session_${process.pid}`, 'sockets');
  mkdirSync(sockets, { recursive: true });
  const server = createServer();
  server.on('error', error => died(node, `raylet [exit code=1]: ${error.message}`));
  server.listen(joinPath(sockets, 'raylet')).unref();
}

/** A subprocess that `ray start --block` misses: it kills the rest and exits with 1. */
function died(node, what) {
  raw(`Some Ray subprocesses exited unexpectedly:\n  ${what}\nRemaining processes will be killed.\n`);
  node.end(1);
}

function lead(node, port) {
  /** Of all nodes, by the socket that they are joined with; the head's own is null. */
  const nodes = new Map([[null, { ip: node.ip, gpus: node.gpus }]]);
  const drivers = new Set();
  const tell = message => {
    for (const socket of [...nodes.keys(), ...drivers]) socket?.write(`${JSON.stringify(message)}\n`);
  };
  const answer = (socket, message) => {
    if (message.node !== undefined) nodes.set(socket, message.node);
    if (message.drive === true) drivers.add(socket);
    if (message.ask === 'nodes') socket.write(`${JSON.stringify({ nodes: [...nodes.values()] })}\n`);
    if (message.place !== undefined) {
      node.place(message.place);
      tell(message);
    }
  };
  const server = createServer(socket => {
    eachMessage(socket, message => answer(socket, message));
    socket.on('close', () => {
      drivers.delete(socket);
      const gone = nodes.get(socket);
      if (nodes.delete(socket)) tell({ dead: gone.ip });
    });
  });
  server.on('error', error => died(node, `gcs_server [exit code=1]: ${error.message}`));
  server.listen(port, node.ip, () => {
    startRaylet(node);
    raw(`Local node IP: ${node.ip}\n--------------------\nRay runtime started.\n--------------------\n`);
  });
}

async function join(node, address) {
  const { host, port } = splitAddress(address);
  const until = Date.now() + READY_MS;
  let socket = await dial(host, port);
  while (socket === null && Date.now() < until) {
    await new Promise(resolve => setTimeout(resolve, 100));
    socket = await dial(host, port);
  }
  if (socket === null) {
    raw(`ray.exceptions.RpcError: failed to connect to GCS at ${address}: Connection refused\n`);
    return node.end(1);
  }
  eachMessage(socket, message => message.place !== undefined && node.place(message.place));
  socket.on('close', () => died(node, 'raylet [exit code=1]: the GCS is gone'));
  startRaylet(node);
  socket.write(`${JSON.stringify({ node: { ip: node.ip, gpus: node.gpus } })}\n`);
  raw(`Local node IP: ${node.ip}\n--------------------\nRay runtime started.\n--------------------\n`);
}

/** The nodes of the cluster at that address; null: there is none. */
export async function nodesAt(address) {
  const { host, port } = splitAddress(address);
  const socket = await dial(host, port);
  if (socket === null) return null;
  const nodes = await new Promise(resolve => {
    eachMessage(socket, message => message.nodes !== undefined && resolve(message.nodes));
    socket.on('close', () => resolve(null));
    socket.write('{"ask":"nodes"}\n');
  });
  socket.end();
  return nodes;
}

async function status(options) {
  const address = options.get('--address') ?? process.env.RAY_ADDRESS;
  const nodes = address === undefined ? null : await nodesAt(address);
  if (nodes === null) {
    raw(
      `ConnectionError: Could not find any running Ray instance${address === undefined ? '' : ` at ${address}`}.\n`,
    );
    process.exit(1);
  }
  const gpus = nodes.reduce((sum, node) => sum + node.gpus, 0);
  const active = nodes.map(node => ` 1 node_${node.ip}\n`).join('');
  raw(
    `======== Autoscaler status ========\nNode status\n---------------------------------------------------------------\nActive:\n${active}Pending:\n (no pending nodes)\nRecent failures:\n (no failures)\n\nResources\n---------------------------------------------------------------\nTotal Usage:\n 0.0/${nodes.length}.0 CPU\n 0.0/${gpus}.0 GPU\n\nTotal Constraints:\n (no request_resources() constraints)\nTotal Demands:\n (no resource demands)\n`,
  );
}

async function healthCheck(options) {
  process.exit((await nodesAt(options.get('--address') ?? '')) === null ? 1 : 0);
}
