// Engines in systemd's scopes: where PID 1 is systemd and the agent is root, each engine has a cgroup of its own. Its
// cgroup.procs is the tree whatever the engine does to sessions and parents, cgroup.kill ends what forks faster than it
// is killed, and memory.events tells the OOM killer from a crash. Elsewhere a session is all there is (shim.ts).
import { execFileSync } from 'node:child_process';
import { accessSync, constants, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';

export const SLICE = 'llmgw-engines.slice';
/** Ends engines in order before the host goes down; a scope that is stopped beside it would end unmarked. */
const STOPS_FIRST = 'llmgw-stop-engines.service';
/** systemd's own bound of a unit's name. */
const NAME_MAX = 255;
/** First version whose scopes have an OOMPolicy; before it they had none, and the OOM killer ended one process only. */
const OOM_POLICY_SINCE = 253;

export interface Systemd {
  /** Path of systemd-run. */
  run: string;
  version: number;
  /** How long it may take to answer; default 5 s. */
  timeoutMs?: number;
  /** Where cgroup v2 is mounted; null: not here, so that trees are known by their sessions and marks alone. */
  cgroups: string | null;
}

export interface Scope {
  unit: string;
  /** Below the root of cgroup v2, with a leading slash. */
  cgroup: string;
}

/** null: PID 1 is another, or the agent isn't root. `problem`: scopes would be right here and can't be had. */
export function findSystemd(env: NodeJS.ProcessEnv = process.env): Systemd | { problem: string } | null {
  const init = read('/proc/1/comm')?.trim();
  if (init !== 'systemd' || !existsSync('/run/systemd/system') || process.getuid?.() !== 0) return null;
  const run = (env.PATH ?? '/usr/bin:/bin')
    .split(path.delimiter)
    .map(dir => path.join(dir, 'systemd-run'))
    .find(isProgram);
  if (run === undefined) return { problem: 'there is no systemd-run on PATH' };
  try {
    const said = execFileSync(run, ['--version'], { encoding: 'utf8', timeout: 5_000 });
    const version = Number(/^systemd (\d+)/.exec(said)?.[1] ?? 0);
    return { run, version, cgroups: cgroupRoot() };
  } catch (error) {
    return { problem: `${run} --version: ${(error as Error).message.split('\n')[0]}` };
  }
}

/** Where cgroup v2 is mounted: alone, or beside v1. */
function cgroupRoot(): string | null {
  const roots = ['/sys/fs/cgroup', '/sys/fs/cgroup/unified'];
  return roots.find(root => existsSync(path.join(root, 'cgroup.procs'))) ?? null;
}

/** With the fence: what is left of an older generation keeps the name of its scope. */
export function unitOf(ref: EngineRef): string {
  const name = `llmgw-engine-${escaped(ref.replica)}-${ref.rank}-${ref.fence}.scope`;
  if (name.length > NAME_MAX)
    throw new Error(`${engineKeyOf(ref)} makes no unit name: ${name.length} characters`);
  return name;
}

const escaped = (text: string): string =>
  text.replace(/[^A-Za-z0-9:_.-]/gu, c =>
    [...Buffer.from(c)].map(byte => `\\x${byte.toString(16).padStart(2, '0')}`).join(''),
  );

/** systemd-run puts itself into the scope and becomes `argv` by exec: its pid is the shim's. */
export function scopeArgs({ version }: Systemd, ref: EngineRef, argv: string[]): string[] {
  const properties = [
    // The default is a share of the machine's; NCCL, Ray and tokenizers have thousands of threads.
    'TasksMax=infinity',
    'MemoryAccounting=yes',
    `Before=${STOPS_FIRST}`,
    // Else one worker that the OOM killer ends would take the record of it along.
    ...(version >= OOM_POLICY_SINCE ? ['OOMPolicy=continue'] : []),
  ];
  return [
    '--scope',
    '--quiet',
    // A scope that failed goes too, and with it its name.
    '--collect',
    `--unit=${unitOf(ref)}`,
    `--slice=${SLICE}`,
    `--description=llmgw engine ${ref.replica}, rank ${ref.rank}, fence ${ref.fence}`,
    ...properties.map(property => `--property=${property}`),
    '--',
    ...argv,
  ];
}

/** The scope that a process is in; null: it is in no scope of this engine, whoever says so. */
export function scopeOf(pid: number, ref: EngineRef): Scope | null {
  const cgroup = cgroupOf(pid);
  const unit = unitOf(ref);
  // By its name: the root's cgroup.procs would make the whole machine the engine's tree.
  return cgroup !== null && path.basename(cgroup) === unit ? { unit, cgroup } : null;
}

/** Of cgroup v2, without the root; null: gone, or no v2. */
function cgroupOf(pid: number): string | null {
  return /^0::(\/.+)$/m.exec(read(`/proc/${pid}/cgroup`) ?? '')?.[1] ?? null;
}

/** The cgroup of one scope, by its files. */
export class ScopeCgroup {
  private readonly dir: string;

  constructor(
    root: string,
    private readonly cgroup: string,
  ) {
    this.dir = path.join(root, cgroup);
  }

  has(pid: number): boolean {
    const own = cgroupOf(pid);
    return own === this.cgroup || own?.startsWith(`${this.cgroup}/`) === true;
  }

  /** Of it and of all below it; empty when it has gone. */
  pids(): Set<number> {
    return new Set(pidsBelow(this.dir));
  }

  /** Whether anything lives in it, told at one instant: a list may miss what is forked while it is read. */
  populated(): boolean {
    return /^populated 1$/m.test(read(path.join(this.dir, 'cgroup.events')) ?? '');
  }

  /** SIGKILL to all of it at once, those being forked included. */
  kill(): void {
    try {
      // No file is made where there is none.
      writeFileSync(path.join(this.dir, 'cgroup.kill'), '1', { flag: 'r+' });
    } catch {
      // Before Linux 5.14, or it has gone: signals to each are what is left.
    }
  }
}

function pidsBelow(dir: string): number[] {
  const own = (read(path.join(dir, 'cgroup.procs')) ?? '').split('\n').map(Number);
  // 0: a process of another pid namespace.
  return [...own.filter(pid => pid > 0), ...foldersIn(dir).flatMap(name => pidsBelow(path.join(dir, name)))];
}

function foldersIn(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true }).flatMap(e => (e.isDirectory() ? [e.name] : []));
  } catch {
    return [];
  }
}

function isProgram(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function read(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}
