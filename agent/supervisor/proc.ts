// What /proc says of processes and sockets. Everything here may vanish between two reads: an unreadable entry is a
// process that has gone (or isn't ours to see), never an error.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import os from 'node:os';
import type { ProcId } from '../state/handle.js';
import { shownCommand } from './redact.js';

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

/** Value of a variable in the environment that the process was started with; null: not set, or not ours to see. */
export function environValue(pid: number, name: string): string | null {
  const entry = read(`/proc/${pid}/environ`)
    ?.split('\0')
    .find(e => e.startsWith(`${name}=`));
  return entry?.slice(name.length + 1) ?? null;
}

/** Where a descriptor of the process points; null: nowhere, or not ours to see. */
export function fdTarget(pid: number, fd: number | string): string | null {
  try {
    return readlinkSync(`/proc/${pid}/fd/${fd}`);
  } catch {
    return null;
  }
}

/** Files that it has mapped into its memory, each once; empty: none, or not ours to see. */
export function mappedFiles(pid: number): { inode: string; file: string }[] {
  const found = new Map<string, string>();
  for (const line of (read(`/proc/${pid}/maps`) ?? '').split('\n')) {
    const m = /^\S+ \S+ \S+ \S+ (\d+) +(\/.*)$/.exec(line);
    if (m !== null) found.set(m[2]!, m[1]!);
  }
  return [...found].map(([file, inode]) => ({ inode, file }));
}

/** Bytes read and written through system calls; null: not readable. */
export function ioBytes(pid: number): number | null {
  const text = read(`/proc/${pid}/io`);
  if (text === null) return null;
  return Number(/^rchar: (\d+)/m.exec(text)?.[1] ?? 0) + Number(/^wchar: (\d+)/m.exec(text)?.[1] ?? 0);
}

/** Threads of the kernel have none; a program that has wiped its own counts as one. */
export const hasArgv = (pid: number): boolean => (read(`/proc/${pid}/cmdline`) ?? '') !== '';

/** What redaction costs of an argv is bounded by this; 120 characters of it are shown. */
const ARGV_MAX = 65_536;

/**
 * `python3 -m x`, at most 120 characters, for sentences, which go into logs and the history: without the secrets of a
 * command line (INV-12), and cut after these are gone, since half a token has no shape by which it is known. The
 * kernel's short name where there is no argv.
 */
export function describePid(pid: number): string {
  const argv = (read(`/proc/${pid}/cmdline`) ?? '').slice(0, ARGV_MAX).replaceAll('\0', ' ').trim();
  return shownCommand(argv === '' ? (readStat(pid)?.comm ?? 'gone') : argv).slice(0, 120);
}

interface SocketRow {
  /** As text; an IPv4 address in IPv6's clothes is IPv4. */
  address: string;
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
      const [address, port] = f[1]!.split(':');
      rows.push({
        address: addressOf(address!),
        port: Number.parseInt(port!, 16),
        listening: f[3] === '0A',
        inode: f[9]!,
      });
    }
  }
  return rows;
}

/** /proc/net has each 32 bits of an address as one number of this machine's byte order, in hex. */
function addressOf(hex: string): string {
  const bytes = Buffer.from(hex, 'hex');
  if (os.endianness() === 'LE') bytes.swap32();
  const v4 = (at: number) => bytes.subarray(at, at + 4).join('.');
  if (bytes.length === 4) return v4(0);
  if (bytes.subarray(0, 12).equals(V4_MAPPED)) return v4(12);
  const groups = Array.from({ length: 8 }, (_, i) => bytes.readUInt16BE(i * 2).toString(16));
  return plainAddress(groups.join(':'));
}

const V4_MAPPED = Buffer.from('00000000000000000000ffff', 'hex');

/** One spelling for each IPv6 address; IPv4 as it is. */
export const plainAddress = (text: string): string =>
  text.includes(':') ? new URL(`http://[${text}]`).hostname.slice(1, -1) : text;

/** Ports of this machine that have any socket at all, TIME_WAIT included. */
export const portsWithSockets = (): Set<number> => new Set(tcpRows().map(r => r.port));

/** Whether anything listens on the port. */
export const isListening = (port: number): boolean => tcpRows().some(r => r.port === port && r.listening);

/** Addresses that these processes listen on with that port, each once. */
export function listenAddresses(port: number, pids: Iterable<number>): string[] {
  const rows = tcpRows().filter(r => r.port === port && r.listening);
  if (rows.length === 0) return [];
  const held = new Set([...pids].flatMap(openFds));
  return [...new Set(rows.filter(r => held.has(`socket:[${r.inode}]`)).map(r => r.address))];
}

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
