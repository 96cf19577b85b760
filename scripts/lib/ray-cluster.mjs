// Three Ray nodes on loopback, started by the scripts that llmgw renders, and ended one by one.
import { spawn, spawnSync } from 'node:child_process';
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { SetupError } from './run.mjs';

export const NODES = 3;
const DEADLINE_MS = 180_000;

/** In vLLM's place: serves until it is ended. */
const PROGRAM =
  '#!/bin/sh\ntrap "exit 0" TERM\necho "serving at $RAY_ADDRESS"\nwhile :; do sleep 1 & wait $!; done\n';

/** What went wrong, a sentence each. */
export async function tryCluster(ray, version) {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'lr-'));
  const mark = `LLMGW_ARGV=${path.basename(dir)}`;
  try {
    const members = await render(dir, ray, version);
    const faults = [];
    const gcs = `${members[0].address}:${members[0].ports.gcs}`;
    for (const member of members) start(member, mark);
    await until('all nodes have joined', members, () => {
      const status = rayStatus(ray, gcs, mark);
      return (status.match(/^ 1 node_/gm) ?? []).length === NODES && status.includes(`/${NODES}.0 GPU`);
    });
    const strays = listening(mark).filter(port => !members.some(member => member.owns(port)));
    if (strays.length > 0) faults.push(`it listens on ports that are not its own: ${strays.join(', ')}`);
    // A node whose raylet dies, one that is asked to end, and the head by its GCS.
    kill(find(mark, 'raylet_socket_name', members[2].dir), 'SIGKILL');
    await until('node 2 has ended', members, () => members[2].ended !== null);
    if (members[2].ended === 0) faults.push('the script of a node whose raylet was killed ended with 0');
    kill(members[1].child.pid, 'SIGTERM');
    await until('node 1 has ended', members, () => members[1].ended !== null);
    kill(find(mark, 'gcs_server', members[0].dir), 'SIGKILL');
    await until('the head has ended', members, () => members[0].ended !== null);
    if (members[0].ended === 0) faults.push('the script of a head whose GCS was killed ended with 0');
    // Ray's agents miss a GCS after a minute; the supervisor doesn't wait for them either.
    for (const pid of marked(mark)) kill(pid, 'SIGKILL');
    await until('nothing is left', members, () => marked(mark).length === 0);
    return faults;
  } catch (error) {
    if (error instanceof SetupError) throw error;
    return [error.message];
  } finally {
    for (const pid of marked(mark)) kill(pid, 'SIGKILL');
    rmSync(dir, { recursive: true, force: true });
  }
}

async function render(dir, bin, version) {
  const { vllm } = await import('../../dist/agent/engines/vllm.js');
  const { parseReplicaSpec } = await import('../../dist/contracts/spec.js');
  const program = path.join(dir, 'vllm');
  writeFileSync(program, PROGRAM, { mode: 0o755 });
  const raw = { model: 'm', engine: 'vllm', pipeline_parallel: NODES, nodes: NODES };
  const { spec } = parseReplicaSpec(raw, 'argv');
  const ray = { bin, version, client: false };
  const engine = { name: 'vllm', type: 'vllm', bin: program, version: '0.33.0', launch_mode: 'ray', ray };
  const orderOf = rank => ({
    replica: 'argv',
    fence: 1,
    rank,
    generation: 1,
    nodes: NODES,
    spec,
    slots: [0],
    fabric: 'a',
  });
  const peers = [];
  for (let rank = 0; rank < NODES; rank++) {
    const needs = vllm.ports(orderOf(rank), engine);
    const ports = await freePorts(needs);
    peers.push({ rank, node: `n${rank}`, mgmt_addr: `127.0.0.${rank + 2}`, ports, needs });
  }
  return peers.map(({ rank, mgmt_addr, ports, needs }) => {
    const home = path.join(dir, String(rank));
    mkdirSync(path.join(home, 't'), { recursive: true });
    const rendered = vllm.render({
      order: orderOf(rank),
      engine,
      gpus: [{ uuid: `GPU-${rank}`, index: rank }],
      ports,
      peers,
      mgmtAddr: mgmt_addr,
      mgmtInterface: 'lo',
      fabricHcas: [],
      engineKey: null,
      secretEnv: {},
      runDir: home,
      passEnv: {},
    });
    for (const { name, text, mode } of rendered.files) writeFileSync(path.join(home, name), text, { mode });
    const owns = port => needs.some(({ name, count }) => port >= ports[name] && port < ports[name] + count);
    return { dir: home, address: mgmt_addr, ports, owns, rendered, ended: null, child: null };
  });
}

let nextPort = 24_000 + (process.pid % 60) * 100;

/** Free ones below the kernel's ephemeral range, those of one name in a row. */
async function freePorts(needs) {
  const ports = {};
  for (const { name, count } of needs) {
    for (let run = 0; run < count; nextPort++) run = (await isFree(nextPort)) ? run + 1 : 0;
    ports[name] = nextPort - count;
  }
  return ports;
}

const isFree = port =>
  new Promise(resolve => {
    const server = net.createServer();
    server.on('error', () => resolve(false));
    server.listen({ port, host: '0.0.0.0', exclusive: true }, () => server.close(() => resolve(true)));
  });

function start(member, mark) {
  const [name, value] = mark.split('=');
  const log = openSync(path.join(member.dir, 'log'), 'a');
  const [program, ...args] = member.rendered.argv;
  member.child = spawn(program, args, {
    detached: true,
    cwd: member.dir,
    stdio: ['ignore', log, log],
    env: { ...member.rendered.env, TMPDIR: path.join(member.dir, 't'), [name]: value },
  });
  closeSync(log);
  member.child.on('exit', (code, signal) => {
    member.ended = signal ?? code;
  });
}

function rayStatus(ray, address, mark) {
  const [name, value] = mark.split('=');
  const env = { PATH: process.env.PATH, RAY_AUTH_MODE: 'disabled', SPT_NOENV: '1', [name]: value };
  return spawnSync(ray, ['status', `--address=${address}`], { encoding: 'utf8', env, timeout: 20_000 })
    .stdout;
}

async function until(what, members, holds) {
  const limit = performance.now() + DEADLINE_MS;
  while (!holds()) {
    if (performance.now() > limit) {
      const logs = members.map(m =>
        readFileSync(path.join(m.dir, 'log'), 'utf8').trimEnd().split('\n').slice(-5).join('\n'),
      );
      throw new Error(`in vain was waited that ${what}; the logs end:\n${logs.join('\n--\n')}`);
    }
    await new Promise(resolve => setTimeout(resolve, 250));
  }
}

const read = file => {
  try {
    return readFileSync(file, 'latin1');
  } catch {
    return '';
  }
};

/** Pids of the processes that carry the mark in their environment; a zombie has none. */
const marked = mark =>
  readdirSync('/proc')
    .filter(name => /^\d+$/.test(name) && `\0${read(`/proc/${name}/environ`)}`.includes(`\0${mark}\0`))
    .map(Number);

const find = (mark, ...words) =>
  marked(mark).find(pid => words.every(word => read(`/proc/${pid}/cmdline`).includes(word)));

function kill(pid, signal) {
  try {
    if (pid !== undefined) process.kill(pid, signal);
  } catch {
    // gone
  }
}

/** TCP ports that the marked processes listen on. */
function listening(mark) {
  const inodes = new Map();
  for (const line of [...read('/proc/net/tcp').split('\n'), ...read('/proc/net/tcp6').split('\n')]) {
    const fields = line.trim().split(/\s+/);
    if (fields[3] === '0A') inodes.set(fields[9], Number.parseInt(fields[1].split(':').at(-1), 16));
  }
  const ports = marked(mark).flatMap(pid => {
    try {
      return readdirSync(`/proc/${pid}/fd`).flatMap(fd => {
        const inode = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1];
        return inode === undefined ? [] : (inodes.get(inode) ?? []);
      });
    } catch {
      return []; // it ended meanwhile
    }
  });
  return [...new Set(ports)].sort((a, b) => a - b);
}
