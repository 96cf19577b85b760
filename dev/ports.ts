// The five ports of dev: checked all together before anything starts, so that a taken one is one sentence and not a
// part that dies half a minute later.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import net from 'node:net';
import { Fault } from '../lib/fault.js';
import type { DevPorts } from './state.js';

export const PORT_OPTIONS: Record<keyof DevPorts, string> = {
  temporal: '--temporal-port',
  ui: '--ui-port',
  agent: '--agent-port',
  http: '--http-port',
  router: '--router-port',
};
const NAMES = Object.keys(PORT_OPTIONS) as (keyof DevPorts)[];
const HOST = '127.0.0.1';

/** The ports with each 0 replaced by a free one; a Fault that names every port that is taken and its option. */
export async function claimPorts(wanted: DevPorts): Promise<DevPorts> {
  const taken: string[] = [];
  const ports = { ...wanted };
  for (const name of NAMES) {
    const port = wanted[name];
    const twin = NAMES.slice(0, NAMES.indexOf(name)).find(other => port !== 0 && wanted[other] === port);
    if (twin !== undefined) {
      throw new Fault(
        `${PORT_OPTIONS[twin]} and ${PORT_OPTIONS[name]} are both ${port}: give each its own.`,
        2,
      );
    }
    if (port !== 0 && !(await isFree(port))) {
      const holder = holderOf(port);
      taken.push(
        `port ${port} is taken${holder === null ? '' : ` by ${holder}`}: free it or choose another with ${PORT_OPTIONS[name]}`,
      );
    }
  }
  if (taken.length > 0) throw new Fault(`${taken.join('; ')}.`);
  for (const name of NAMES) {
    while (ports[name] === 0) {
      const free = await freePort();
      if (!Object.values(ports).includes(free)) ports[name] = free;
    }
  }
  return ports;
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(false);
      else if (error.code === 'EACCES') {
        reject(new Fault(`port ${port} may not be used by this user: choose one above 1023.`));
      } else reject(error);
    });
    server.listen({ host: HOST, port, exclusive: true }, () => server.close(() => resolve(true)));
  });
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.once('error', reject);
    server.listen({ host: HOST, port: 0 }, () => {
      const { port } = server.address() as net.AddressInfo;
      server.close(() => resolve(port));
    });
  });
}

/** `pid 12 (node server.js)`, as far as this user may see it; null otherwise. */
export function holderOf(port: number): string | null {
  const inode = listenerInode(port);
  if (inode === null) return null;
  const link = `socket:[${inode}]`;
  for (const pid of list('/proc').filter(name => /^\d+$/.test(name))) {
    const fds = `/proc/${pid}/fd`;
    if (!list(fds).some(fd => read(() => readlinkSync(`${fds}/${fd}`)) === link)) continue;
    const command = read(() => readFileSync(`/proc/${pid}/cmdline`, 'utf8')) ?? '';
    const shown = command.replaceAll('\0', ' ').trim();
    return `pid ${pid} (${shown.length > 80 ? `${shown.slice(0, 79)}…` : shown})`;
  }
  return null;
}

function listenerInode(port: number): string | null {
  const hex = port.toString(16).toUpperCase().padStart(4, '0');
  for (const table of ['/proc/net/tcp', '/proc/net/tcp6']) {
    for (const line of (read(() => readFileSync(table, 'utf8')) ?? '').split('\n')) {
      const fields = line.trim().split(/\s+/);
      // Field 1 is the local address, 3 the state (0A: listening), 9 the socket's inode.
      if (fields[3] === '0A' && fields[1]?.endsWith(`:${hex}`)) return fields[9] ?? null;
    }
  }
  return null;
}

/** Processes and descriptors come and go, and others' are closed to us: what can't be read is left out. */
function read<T>(from: () => T): T | null {
  try {
    return from();
  } catch {
    return null;
  }
}
const list = (dir: string): string[] => read(() => readdirSync(dir)) ?? [];
