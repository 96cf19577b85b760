// What the host grants its engines and what it sets for them behind llmgw's back: shared memory, ports, NCCL's
// own configuration files. A wrong one shows as a hang or a crash of an engine minutes later, so it is told before.
import { readFileSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Condition } from '../contracts/inventory.js';
import { parsePortRange } from '../lib/address.js';
import type { AgentConfig } from './config.js';

/** Ring buffers of the ranks and NCCL's segments take a few hundred MiB; a container has 64 MiB unless told. */
const SHM_MIN_MIB = 1_024;
const SHM_FREE_MIN_MIB = 256;

export interface HostFacts {
  /** Hard limit; Infinity: none, null: it can't be read. */
  nofile: number | null;
  /** Soft limit in bytes. */
  memlock: number | null;
  shm: { sizeMib: number; freeMib: number } | null;
  /** The range in which the kernel picks ports of its own. */
  ephemeral: { first: number; last: number } | null;
  /** Files that set NCCL's variables where neither llmgw nor the spec does. */
  nccl: { file: string; names: string[] }[];
}

/**
 * @param root prefix of the host's own files.
 * @param pid the process whose limits are told.
 */
export async function hostFacts(
  root = '/',
  home: string = homedir(),
  pid: number | 'self' = 'self',
): Promise<HostFacts> {
  const limits = read(join(root, `proc/${pid}/limits`));
  const range = /^(\d+)\s+(\d+)/.exec(read(join(root, 'proc/sys/net/ipv4/ip_local_port_range')));
  // NCCL_CONF_FILE isn't among them: no variable of the agent's but a short list reaches an engine (INV-13).
  const files = [join(root, 'etc/nccl.conf'), join(home, '.nccl.conf')];
  return {
    nofile: limit(limits, 'Max open files', 'hard'),
    memlock: limit(limits, 'Max locked memory', 'soft'),
    shm: await spaceOf(join(root, 'dev/shm')),
    ephemeral: range === null ? null : { first: Number(range[1]), last: Number(range[2]) },
    nccl: files.map(file => ({ file, names: ncclNames(read(file)) })).filter(({ names }) => names.length > 0),
  };
}

type HostConfig = Pick<AgentConfig, 'engines'> & { supervisor: Pick<AgentConfig['supervisor'], 'ports'> };

/** Nothing is wrong with a host that has no engines. */
export function hostConditions(facts: HostFacts, config: HostConfig): Condition[] {
  if (Object.keys(config.engines).length === 0) return [];
  const found: Condition[] = [];
  const add = (code: string, message: string) => found.push({ code, message });
  const { shm } = facts;
  if (shm !== null && shm.sizeMib < SHM_MIN_MIB)
    add(
      'shm_small',
      `/dev/shm has ${shm.sizeMib} MiB, ${SHM_MIN_MIB} at least are needed: ranks of an engine exchange data there (mount -o remount,size=16G /dev/shm; in a container --shm-size)`,
    );
  else if (shm !== null && shm.freeMib < SHM_FREE_MIN_MIB)
    add(
      'shm_full',
      `/dev/shm has ${shm.freeMib} MiB left: engines crash without it; remove segments whose process is gone (ls -l /dev/shm)`,
    );
  for (const { file, names } of facts.nccl)
    add(
      'nccl_conf',
      `${file} sets ${names.join(', ')} for every engine of this node where neither llmgw nor the spec does: remove what isn't meant for all`,
    );
  const overlap = overlapOf(config.supervisor.ports, facts.ephemeral);
  if (overlap !== null)
    add(
      'ports_ephemeral',
      `supervisor.ports ${config.supervisor.ports} overlaps ${overlap}, from which the kernel gives ports to any connection: choose another range, or change net.ipv4.ip_local_port_range`,
    );
  return found;
}

function overlapOf(ports: string, ephemeral: HostFacts['ephemeral']): string | null {
  const range = parsePortRange(ports);
  if ('error' in range || ephemeral === null) return null;
  const apart = range.last < ephemeral.first || range.first > ephemeral.last;
  return apart ? null : `${ephemeral.first}-${ephemeral.last}`;
}

function limit(text: string, name: string, which: 'soft' | 'hard'): number | null {
  const match = new RegExp(`^${name}\\s+(\\S+)\\s+(\\S+)`, 'm').exec(text);
  const value = which === 'soft' ? match?.[1] : match?.[2];
  if (value === undefined) return null;
  if (value === 'unlimited') return Number.POSITIVE_INFINITY;
  return /^\d+$/.test(value) ? Number(value) : null;
}

/** The names alone: values are the operator's. */
function ncclNames(text: string): string[] {
  const names = [...text.matchAll(/^[ \t]*(NCCL_[A-Z0-9_]{1,60})[ \t]*=/gm)].map(match => match[1]!);
  return [...new Set(names)].slice(0, 20);
}

async function spaceOf(dir: string): Promise<HostFacts['shm']> {
  return await statfs(dir).then(
    ({ blocks, bavail, bsize }) => ({ sizeMib: mib(blocks * bsize), freeMib: mib(bavail * bsize) }),
    () => null,
  );
}

const mib = (bytes: number): number => Math.floor(bytes / 2 ** 20);

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8').slice(0, 64 * 1024);
  } catch {
    return '';
  }
}
