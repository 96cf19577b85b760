// Limits of processes that engines inherit from the agent: too small ones show after minutes, as an NCCL error about
// memory registration or as Ray without files.
import { readFileSync } from 'node:fs';
import type { AgentConfig } from './config.js';

/** Ray's own advice; a head of a large gang has more than half of it open. */
const LEAST_FILES = 65_536;
/** Threads count: NCCL, Ray and tokenizers of eight GPUs have some thousands. */
const LEAST_PROCESSES = 16_384;
const CAP_IPC_LOCK = 14n;

export interface LimitSources {
  /** /proc/PID/limits. */
  limits: string;
  /** /proc/PID/status. */
  status: string;
  /** Whose they are: an agent's, or those of the shell in which `agent --check` runs without one. */
  of: 'agent' | 'shell';
}

const sourcesOf = (pid: number | 'self', of: LimitSources['of']): LimitSources => ({
  limits: readFileSync(`/proc/${pid}/limits`, 'utf8'),
  status: readFileSync(`/proc/${pid}/status`, 'utf8'),
  of,
});

/** @param agent pid of the running agent, if there is one. */
export function checkedSources(agent: number | null): LimitSources {
  try {
    if (agent !== null) return sourcesOf(agent, 'agent');
  } catch {
    // It has just ended, or its files are hidden from this user.
  }
  return sourcesOf('self', 'shell');
}

/** One sentence with what to do; null: nothing is too small, or this node is on no fabric. */
export function limitsProblem(
  config: Pick<AgentConfig, 'fabrics'> & { supervisor: Pick<AgentConfig['supervisor'], 'user'> },
  sources: LimitSources = sourcesOf('self', 'agent'),
): string | null {
  if (config.fabrics.length === 0) return null;
  const { limits, status, of } = sources;
  const memlock = hard(limits, 'Max locked memory');
  const files = hard(limits, 'Max open files');
  const processes = hard(limits, 'Max processes');
  const exempt = config.supervisor.user === null && pinsAtWill(status);
  const small = [
    ...(memlock < Number.POSITIVE_INFINITY && !exempt
      ? [`locked memory ${Math.floor(memlock / 1024)} KiB, and RDMA pins what it sends`]
      : []),
    ...(files < LEAST_FILES ? [`open files ${files}, and Ray wants ${LEAST_FILES}`] : []),
    ...(processes < LEAST_PROCESSES
      ? [`processes ${processes}, and engines have more than ${LEAST_PROCESSES} threads`]
      : []),
  ];
  if (small.length === 0) return null;
  const set = 'LimitMEMLOCK=infinity, LimitNOFILE=1048576 and LimitNPROC=infinity';
  return of === 'agent'
    ? `limits that engines get from the agent are small for a fabric: ${small.join('; ')}: set ${set} in the unit of the agent, and start it again`
    : `limits of this shell are small for a fabric, and engines of an agent that is started here would get them: ${small.join('; ')}: no running agent with this work_dir was found to look at; its unit must set ${set}`;
}

/** NaN in a file of another form: no such comparison holds. */
function hard(limits: string, name: string): number {
  const text = new RegExp(`^${name} +\\S+ +(\\S+)`, 'm').exec(limits)?.[1] ?? '';
  return text === 'unlimited' ? Number.POSITIVE_INFINITY : Number(text === '' ? Number.NaN : text);
}

/** Root may pin what it wants, where nothing took the capability from it. */
function pinsAtWill(status: string): boolean {
  const caps = /^CapEff:\s+([0-9a-f]+)/m.exec(status)?.[1];
  const root = /^Uid:\s+\d+\s+0\s/m.test(status);
  return root && caps !== undefined && ((BigInt(`0x${caps}`) >> CAP_IPC_LOCK) & 1n) === 1n;
}
