// What /proc says of processes and sockets. Everything here may vanish between two reads: an unreadable entry is a
// process that has gone (or isn't ours to see), never an error.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import type { ProcId } from '../state/handle.js';

export interface ProcStat extends ProcId {
  comm: string;
  /** R, S, D, Z, … */
  state: string;
  ppid: number;
  session: number;
  /** User and system time in clock ticks. */
  cpu: number;
}

/** null: no such process. */
export function readStat(pid: number): ProcStat | null {
  const text = read(`/proc/${pid}/stat`);
  if (text === null) return null;
  // comm may hold spaces and parentheses: the last one ends it.
  const end = text.lastIndexOf(')');
  const f = text.slice(end + 2).split(' ');
  return {
    pid,
    comm: text.slice(text.indexOf('(') + 1, end),
    state: f[0]!,
    ppid: Number(f[1]),
    session: Number(f[3]),
    cpu: Number(f[11]) + Number(f[12]),
    start: f[19]!,
  };
}

/** A zombie is dead: it holds no memory, no port and no GPU, and where nobody reaps it stays for ever. */
export const isLive = (s: ProcStat | null): s is ProcStat => s !== null && s.state !== 'Z' && s.state !== 'X';

/** Same pid and same start time: a pid alone may belong to a stranger by now. */
export function isAlive(id: ProcId | null): boolean {
  if (id === null) return false;
  const stat = readStat(id.pid);
  return isLive(stat) && stat.start === id.start;
}

export function allStats(): ProcStat[] {
  return readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .map(name => readStat(Number(name)))
    .filter(isLive);
}

export const bootId = (): string => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();

/** Whether the environment that the process was started with holds this entry. */
export function environHas(pid: number, entry: string): boolean {
  const text = read(`/proc/${pid}/environ`);
  return text?.split('\0').includes(entry) === true;
}

/** Where a descriptor of the process points; null: nowhere, or not ours to see. */
export function fdTarget(pid: number, fd: number | string): string | null {
  try {
    return readlinkSync(`/proc/${pid}/fd/${fd}`);
  } catch {
    return null;
  }
}

/** Bytes read and written through system calls; null: not readable. */
export function ioBytes(pid: number): number | null {
  const text = read(`/proc/${pid}/io`);
  if (text === null) return null;
  return Number(/^rchar: (\d+)/m.exec(text)?.[1] ?? 0) + Number(/^wchar: (\d+)/m.exec(text)?.[1] ?? 0);
}

/** `python3 -m x`, at most 120 characters, for sentences; the kernel's short name where there is no argv. */
export function describePid(pid: number): string {
  const argv = (read(`/proc/${pid}/cmdline`) ?? '').replaceAll('\0', ' ').trim();
  return (argv === '' ? (readStat(pid)?.comm ?? 'gone') : argv).slice(0, 120);
}

interface SocketRow {
  port: number;
  listening: boolean;
  inode: string;
}

function tcpRows(): SocketRow[] {
  const rows: SocketRow[] = [];
  for (const file of ['/proc/net/tcp', '/proc/net/tcp6']) {
    for (const line of (read(file) ?? '').split('\n').slice(1)) {
      const f = line.trim().split(/\s+/);
      if (f.length < 10) continue;
      rows.push({
        port: Number.parseInt(f[1]!.slice(f[1]!.lastIndexOf(':') + 1), 16),
        listening: f[3] === '0A',
        inode: f[9]!,
      });
    }
  }
  return rows;
}

/** Any socket at all on that port of this machine, TIME_WAIT included. */
export const portHasSocket = (port: number): boolean => tcpRows().some(r => r.port === port);

/** Whether anything listens on the port. */
export const isListening = (port: number): boolean => tcpRows().some(r => r.port === port && r.listening);

/** The first of `pids` that holds a listening socket of that port; null: none of them. */
export function listenerAmong(port: number, pids: Iterable<number>): number | null {
  const inodes = new Set(
    tcpRows().flatMap(r => (r.port === port && r.listening ? [`socket:[${r.inode}]`] : [])),
  );
  if (inodes.size === 0) return null;
  for (const pid of pids) if (openFds(pid).some(target => inodes.has(target))) return pid;
  return null;
}

function openFds(pid: number): string[] {
  try {
    return readdirSync(`/proc/${pid}/fd`).flatMap(fd => fdTarget(pid, fd) ?? []);
  } catch {
    return [];
  }
}

function read(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}
