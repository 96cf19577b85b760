// A network for tests: a bridge on this machine and a namespace for each node, tied together by a pair of virtual
// interfaces, so that a node's cable can be pulled with all that goes over it: its stream, its engines, its clients.
import { execFileSync, type SpawnSyncReturns, spawnSync } from 'node:child_process';
import path from 'node:path';
import { kill, type Started, start } from '../e2e/processes.js';

export interface Cables {
  /** Address of a node on the bridge: what its peers and routers dial. */
  address(node: string): string;
  /** Name of the interface that has it. */
  interfaceOf(node: string): string;
  /** Words before a command that is to run on that node. */
  on(node: string): string[];
  pull(node: string): void;
  plug(node: string): void;
  close(): Promise<void>;
}

const ip = (...args: string[]): SpawnSyncReturns<string> => spawnSync('ip', args, { encoding: 'utf8' });

/** Why there can be none here: it takes the right to make namespaces. null: there can. */
export function noCables(): string | null {
  const name = `lgw-try-${process.pid}`;
  const made = ip('netns', 'add', name);
  if (made.error !== undefined) return 'there is no program `ip`';
  if (made.status !== 0) return made.stderr.trim();
  const link = ip('link', 'add', `lgt${process.pid % 100_000}`, 'type', 'bridge');
  if (link.status === 0) ip('link', 'del', `lgt${process.pid % 100_000}`);
  ip('netns', 'del', name);
  return link.status === 0 ? null : link.stderr.trim();
}

/**
 * @param forward a port of this machine's loopback that every node finds at its own loopback: a simulated node joins
 *   none but a control plane on 127.0.0.1.
 */
export async function layCables(nodes: string[], forward: number, dir: string): Promise<Cables> {
  const tag = `${process.pid % 100_000}`;
  const bridge = `lgb${tag}`;
  const net = `10.${64 + (process.pid % 64)}.${Math.floor(process.pid / 64) % 256}`;
  const must = (...args: string[]) => execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'pipe'] });
  const forwarders: Started[] = [];
  const space = (node: string) => `lgn${tag}-${nodes.indexOf(node)}`;
  const cable = (node: string) => `lgv${tag}${nodes.indexOf(node)}`;
  const inner = 'eth0';
  const close = async () => {
    for (const { pid } of forwarders) kill(pid, 'SIGKILL');
    await Promise.all(forwarders.map(f => f.ended));
    for (const node of nodes) ip('netns', 'del', space(node));
    ip('link', 'del', bridge);
  };
  try {
    must('link', 'add', bridge, 'type', 'bridge');
    must('addr', 'add', `${net}.1/24`, 'dev', bridge);
    must('link', 'set', bridge, 'up');
    const gate = startForwarder(
      `${net}.1:${forward}`,
      `127.0.0.1:${forward}`,
      [],
      path.join(dir, 'gate.log'),
    );
    forwarders.push(gate);
    for (const [index, node] of nodes.entries()) {
      must('netns', 'add', space(node));
      must('link', 'add', cable(node), 'type', 'veth', 'peer', 'name', inner, 'netns', space(node));
      must('link', 'set', cable(node), 'master', bridge, 'up');
      must('-n', space(node), 'addr', 'add', `${net}.${index + 10}/24`, 'dev', inner);
      must('-n', space(node), 'link', 'set', inner, 'up');
      must('-n', space(node), 'link', 'set', 'lo', 'up');
      const to = `${net}.1:${forward}`;
      const log = path.join(dir, `forward-${node}.log`);
      forwarders.push(startForwarder(`127.0.0.1:${forward}`, to, ['ip', 'netns', 'exec', space(node)], log));
    }
  } catch (error) {
    await close();
    throw error;
  }
  return {
    address: node => `${net}.${nodes.indexOf(node) + 10}`,
    interfaceOf: () => inner,
    on: node => ['ip', 'netns', 'exec', space(node)],
    pull: node => void must('link', 'set', cable(node), 'down'),
    plug: node => void must('link', 'set', cable(node), 'up'),
    close,
  };
}

const FORWARD = `
const net = require('node:net');
const [from, to] = process.argv.slice(1).map(a => a.split(':'));
net.createServer({ allowHalfOpen: true }, a => {
  const b = net.connect({ host: to[0], port: Number(to[1]), allowHalfOpen: true });
  for (const [x, y] of [[a, b], [b, a]]) x.on('error', () => y.destroy()).pipe(y);
}).listen(Number(from[1]), from[0]);
`;

function startForwarder(from: string, to: string, prefix: string[], logFile: string): Started {
  const [program, ...args] = [...prefix, process.execPath, '-e', FORWARD, from, to];
  return start(program!, args, { logFile });
}
