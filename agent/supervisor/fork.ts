// The fork of a shim: in a scope of systemd's where that can be had, in a session of its own either way. A scope that
// can't be had is a condition of the node and no reason not to start.
import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import path from 'node:path';
import { LlmgwError } from '../../contracts/errors.js';
import type { EngineRef } from '../../contracts/ids.js';
import { makeDir, removeFile, spaceError } from '../state/files.js';
import type { ProcId } from '../state/handle.js';
import { type Context, pause } from './context.js';
import { logFile } from './logs.js';
import { isAlive, readStat } from './proc.js';
import { type Scope, type Systemd, scopeArgs, scopeOf, unitOf } from './scope.js';
import { installShim, isShim, readPid, shimArgs, shimWords } from './shim.js';
import { signalProc } from './tree.js';

/** The shim needs a few milliseconds; a machine that swaps needs more. */
const PID_MS = 15_000;
/** systemd answers in milliseconds; while it reloads, in seconds. */
const SCOPE_MS = 5_000;

export interface Program {
  argv: string[];
  env: Record<string, string>;
  cwd: string;
  /** Called when our child, the shim, ends. */
  onEnd: () => void;
}

export interface Started {
  shim: ProcId;
  scope: Scope | null;
}

export async function startShim(ctx: Context, ref: EngineRef, program: Program): Promise<Started> {
  const { systemd } = ctx.opts;
  const runDir = ctx.handles.runDir(ref);
  removeFile(path.join(runDir, 'shim'));
  if (systemd == null) return { shim: await inSession(ctx, runDir, program), scope: null };
  const scoped = await inScope(ctx, systemd, ref, program);
  if ('shim' in scoped) {
    ctx.opts.condition?.('no_scope', null);
    return scoped;
  }
  const sentence = `systemd gives engines no scope of their own: ${scoped.problem}; they run in sessions, where the OOM killer can not be told from a crash`;
  ctx.opts.condition?.('no_scope', sentence);
  ctx.opts.log.warn({ ...ref }, sentence);
  return { shim: await inSession(ctx, runDir, program), scope: null };
}

const inSession = (ctx: Context, runDir: string, program: Program): Promise<ProcId> =>
  fork(runDir, program, ['/bin/sh', ...shimOf(ctx, runDir, program)]);

const shimOf = (ctx: Context, runDir: string, { argv }: Program, scope: string | null = null): string[] =>
  shimArgs(installShim(ctx.opts.workDir), runDir, ctx.opts.logMaxBytes, argv, scope);

/** `problem`: no shim has run, and none will. */
async function inScope(
  ctx: Context,
  systemd: Systemd,
  ref: EngineRef,
  program: Program,
): Promise<Started | { problem: string }> {
  const runDir = ctx.handles.runDir(ref);
  const counted = systemd.cgroups === null ? null : path.join(systemd.cgroups, unitOf(ref));
  const shim = shimOf(ctx, runDir, program, counted);
  let child: ProcId;
  try {
    child = await fork(runDir, program, [systemd.run, ...scopeArgs(systemd, ref, ['/bin/sh', ...shim])]);
  } catch (e) {
    if (e instanceof LlmgwError && e.code === 'NO_SPACE') throw e;
    return { problem: (e as Error).message };
  }
  const patience = systemd.timeoutMs ?? SCOPE_MS;
  const limit = performance.now() + patience;
  while (!isShim(runDir, child.pid) && isAlive(child)) {
    if (performance.now() > limit) signalProc(child, 'SIGKILL');
    await pause(2);
  }
  if (isShim(runDir, child.pid)) return { shim: child, scope: scopeOf(child.pid, ref) };
  const late = performance.now() > limit;
  return { problem: late ? `systemd-run did not answer within ${patience / 1000} s` : shimWords(runDir) };
}

async function fork(
  runDir: string,
  { env, cwd, onEnd }: Program,
  [file, ...args]: string[],
): Promise<ProcId> {
  let log: number | null = null;
  try {
    const name = logFile(runDir);
    makeDir(path.dirname(name));
    log = openSync(name, 'a', 0o600);
    // No pipe of ours and a session of its own: nothing of the engine depends on this process (INV-5).
    const child = spawn(file!, args, { detached: true, stdio: ['ignore', log, log], cwd, env });
    await new Promise<void>((resolve, reject) => {
      child.once('error', reject);
      child.once('spawn', resolve);
    });
    child.once('exit', onEnd);
    child.unref();
    const pid = child.pid!;
    return { pid, start: readStat(pid)?.start ?? '0' };
  } catch (e) {
    const known = spaceError(e, runDir);
    if (known instanceof LlmgwError) throw known;
    throw new LlmgwError('SPAWN_FAILED', `the engine could not be started: ${(e as Error).message}`, {
      cause: e,
    });
  } finally {
    if (log !== null) closeSync(log);
  }
}

/** Waits for the pid that the shim writes. */
export async function engineOf(runDir: string, shim: ProcId): Promise<ProcId> {
  const limit = performance.now() + PID_MS;
  for (;;) {
    const alive = isAlive(shim);
    const pid = readPid(runDir);
    if (pid !== null) return pid;
    if (!alive) {
      throw new LlmgwError(
        'SPAWN_FAILED',
        `the engine's shim ended before the engine ran: ${shimWords(runDir)}`,
      );
    }
    if (performance.now() > limit) {
      throw new LlmgwError(
        'SPAWN_FAILED',
        `the engine's shim (pid ${shim.pid}) has not started it within ${PID_MS / 1000} s`,
      );
    }
    await pause(2);
  }
}
