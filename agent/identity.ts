// What makes this agent the one of its node: the lock on its work_dir, the boot it runs in, and the number of its
// connection, which grows over restarts so that of two connections of a node the newer is known.
import { readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { type Lock, lockHolder, tryLock } from '../lib/lock.mjs';
import type { Logger } from '../lib/log.js';
import { makeDir, readText, writeAtomic } from './state/files.js';

/** The kernel's id of this boot: another one proves that every process of before is gone (INV-2). */
export const readBootId = (file = '/proc/sys/kernel/random/boot_id'): string =>
  readFileSync(file, 'utf8').trim();

/**
 * Two agents must never share a work_dir: each would take the other's engines for its own. The kernel frees the lock
 * however its holder ends. Keyed by the folder itself, so that two paths to it are one.
 */
export async function lockWorkDir(workDir: string): Promise<{ lock: Lock } | { problem: string }> {
  makeDir(workDir);
  const result = await tryLock(workDirLock(workDir));
  if ('lock' in result) return result;
  const holder = result.holder === null ? 'another process' : `the agent with pid ${result.holder}`;
  return {
    problem: `supervisor.work_dir ${workDir} is in use by ${holder}: stop it, or give this agent its own.`,
  };
}

/** The agent that runs with this work_dir; null: none, or it can't be told. Takes no lock, makes no folder. */
export async function agentPid(workDir: string): Promise<number | null> {
  try {
    return await lockHolder(workDirLock(workDir));
  } catch {
    return null; // no such folder, or none that this user may look at
  }
}

function workDirLock(workDir: string): string {
  const { dev, ino } = statSync(workDir);
  return `agent-work-dir:${dev}:${ino}`;
}

/**
 * Two agents of one node on one host would take the node's stream from each other for ever, each with engines that the
 * other doesn't know. `server`: host and port; agents of other installations may have the same node id.
 */
export async function lockNode(
  nodeId: string,
  server: string,
  workDir: string,
): Promise<{ lock: Lock } | { problem: string }> {
  const result = await tryLock(`agent-node:${server}:${nodeId}`, workDir);
  if ('lock' in result) return result;
  const { holder, note } = result;
  const who = holder === null ? 'another process' : `pid ${holder}, with the work_dir ${note || 'unknown'}`;
  return {
    problem: `node ${nodeId} has an agent on this host already (${who}) for the server ${server}: stop it, or give this one a node_id of its own.`,
  };
}

/** Session numbers: max(last + 1, wall clock ms), kept in `<work_dir>/session.json`. */
/** Sessions are wall clock times: a clock that was set back by more than a year is not expected. */
const MAX_AHEAD_MS = 366 * 86_400_000;

export class SessionCounter {
  private readonly file: string;
  private last: number;

  constructor(
    workDir: string,
    private readonly log: Logger,
  ) {
    this.file = path.join(workDir, 'session.json');
    this.last = this.read();
  }

  /** For a new connection; `above`: the highest that the control plane has seen. */
  next(above = 0): number {
    this.last = Math.max(this.last + 1, above + 1, Date.now());
    try {
      writeAtomic(this.file, `${JSON.stringify({ session: this.last })}\n`);
    } catch (err) {
      // A full disk must not cut the node off: the clock, or the control plane's answer, makes up for the number.
      this.log.warn({ err }, `${this.file} can't be written`);
    }
    return this.last;
  }

  private read(): number {
    try {
      const stored: unknown = JSON.parse(readText(this.file) ?? '{}').session;
      // Far above the clock it is no session of ours; taken, it would lock the node out for as long.
      const sane = Number.isSafeInteger(stored) && (stored as number) < Date.now() + MAX_AHEAD_MS;
      return sane ? (stored as number) : 0;
    } catch {
      return 0; // cut off by a crash: the wall clock is above it
    }
  }
}
