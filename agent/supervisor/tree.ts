// The processes of one engine. Parentage alone isn't enough: a killed API server leaves its workers to PID 1, and a
// wrapper may put its children into a session of their own. A process belongs to the engine when it is a known one
// (pid and start time), is in the engine's scope, carries our marker, sits in the shim's session, writes into our log or holds our lock, or
// descends from such a one. Never by name: titles are cut to 15 characters and change while the engine starts.
import path from 'node:path';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import type { ProcId } from '../state/handle.js';
import { logFile } from './logs.js';
import { allStats, environHas, environValue, fdTarget, isLive, type ProcStat, readStat } from './proc.js';
import { ScopeCgroup } from './scope.js';

export const MARKER = 'LLMGW_ENGINE';

/** The engine whose mark a process carries; null: none's. */
export function markOf(pid: number): EngineRef | null {
  const m = /^([^/]+)\/(\d{1,16})\/(\d{1,9})$/.exec(environValue(pid, MARKER) ?? '');
  return m === null ? null : { replica: m[1]!, fence: Number(m[2]), rank: Number(m[3]) };
}

export class EngineTree {
  /** Everything that was ever seen in it: a child that has cut all other ties is still found. */
  private readonly known = new Map<number, string>();
  private readonly marker: string;
  private session: number | null = null;
  private scope: ScopeCgroup | null = null;
  /** Start time of the shim, clock ticks: what started before it isn't ours, and needs no look. */
  private since = 0;

  constructor(
    ref: EngineRef,
    private readonly runDir: string,
  ) {
    this.marker = `${MARKER}=${engineKeyOf(ref)}`;
  }

  /** The shim leads its own session: its pid is the session's id. */
  remember(id: ProcId | null, leadsSession = false): void {
    if (id === null) return;
    this.known.set(id.pid, id.start);
    if (!leadsSession) return;
    this.session = id.pid;
    this.since = Number(id.start);
  }

  /** `root`: of cgroup v2. */
  inScope(root: string, cgroup: string): void {
    this.scope = new ScopeCgroup(root, cgroup);
  }

  /** Whether its scope has live processes, also such as a scan has missed. */
  get scopeLives(): boolean {
    return this.scope?.populated() ?? false;
  }

  /** Ends all of its scope at once; nothing where it has none, or the kernel is too old. */
  killScope(): void {
    this.scope?.kill();
  }

  /** Whether this pid is, or was, one of the tree's. */
  has(pid: number): boolean {
    const start = this.known.get(pid);
    if (start === undefined) return false;
    const stat = readStat(pid);
    return stat === null || stat.start === start;
  }

  /** Those of these pids that are, or were, the tree's, with their start times. */
  knownAmong(pids: number[]): ProcId[] {
    return pids.filter(pid => this.has(pid)).map(pid => ({ pid, start: this.known.get(pid)! }));
  }

  /** As `has`, and for a process that no scan has met yet: by marker, session or files. Descent isn't looked at. */
  owns(pid: number): boolean {
    if (this.has(pid)) return true;
    const stat = readStat(pid);
    if (!isLive(stat)) return false;
    if (this.scope?.has(pid) === true || this.isSeed(stat)) return true;
    return this.session !== null && stat.session === this.session;
  }

  /** Live processes of the tree now; reads all of /proc, so only at an event, never on a timer. */
  scan(): ProcStat[] {
    const scoped = this.scope?.pids();
    const stats = allStats().filter(s => s.pid !== process.pid);
    const members = new Map<number, ProcStat>();
    for (const s of stats) if (scoped?.has(s.pid) === true || this.isSeed(s)) members.set(s.pid, s);
    // The kernel gives a pid to nobody while a session of that number has members: one sure member makes it ours.
    if (this.session !== null && [...members.values()].some(s => s.session === this.session)) {
      for (const s of stats) if (s.session === this.session) members.set(s.pid, s);
    }
    for (let grew = true; grew; ) {
      grew = false;
      for (const s of stats) {
        if (members.has(s.pid) || !members.has(s.ppid)) continue;
        members.set(s.pid, s);
        grew = true;
      }
    }
    for (const s of members.values()) this.known.set(s.pid, s.start);
    return [...members.values()];
  }

  /** Those seen before that still live: cheap enough for every probe. */
  seen(): ProcStat[] {
    return [...this.known].flatMap(([pid, start]) => {
      const stat = readStat(pid);
      return isLive(stat) && stat.start === start ? [stat] : [];
    });
  }

  private isSeed(s: ProcStat): boolean {
    if (this.known.get(s.pid) === s.start) return true;
    if (Number(s.start) < this.since) return false;
    if (environHas(s.pid, this.marker)) return true;
    // Names of the run folder's own files: a pager that reads the log has it on another descriptor.
    const log = logFile(this.runDir);
    return (
      fdTarget(s.pid, 1) === log ||
      fdTarget(s.pid, 2) === log ||
      fdTarget(s.pid, 9) === path.join(this.runDir, 'lock')
    );
  }
}

/** SIGKILLs by identity, checked right before; returns how many got it. */
export function killAll(procs: ProcId[], signal: NodeJS.Signals): number {
  let sent = 0;
  for (const p of procs) if (signalProc(p, signal)) sent++;
  return sent;
}

/** false: it has gone, or the pid is another's by now. */
export function signalProc(id: ProcId, signal: NodeJS.Signals): boolean {
  const stat = readStat(id.pid);
  if (!isLive(stat) || stat.start !== id.start) return false;
  try {
    process.kill(id.pid, signal);
    return true;
  } catch {
    // ESRCH: it went in between. EPERM: it stays in the scan, so the stop reports it.
    return false;
  }
}
