// `spawn`: from a prepared handle to a running engine. The handle says `spawning` on disk before the fork; the shim
// writes the engine's pid before the engine runs. So at every line a restarted agent finds either nothing that was
// started, or something it knows (INV-6: a fence starts once).
import { spawn } from 'node:child_process';
import { chmodSync, chownSync, closeSync, openSync } from 'node:fs';
import path from 'node:path';
import type { SpawnOrder } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import { engineKeyOf } from '../../contracts/ids.js';
import { makeDir, removeFile, spaceError } from '../state/files.js';
import type { Handle, ProcId } from '../state/handle.js';
import { type Context, pause, update } from './context.js';
import { tempEnv } from './leftovers.js';
import { logFile } from './logs.js';
import { isAlive, readStat } from './proc.js';
import { readPid, shimArgs, shimWords } from './shim.js';
import { MARKER } from './tree.js';

/** The shim needs a few milliseconds; a machine that swaps needs more. */
const PID_MS = 15_000;
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Returns the running handle. `onShimEnd` is called when our child, the shim, ends. */
export async function startEngine(ctx: Context, prepared: Handle, onShimEnd: () => void): Promise<Handle> {
  const order: SpawnOrder = prepared.order!;
  const { engine, secretEnv } = await ctx.opts.engines.preflight(order);
  const key = await ctx.opts.secrets.engineKey(order);
  const network = await ctx.opts.network(order);
  const runDir = ctx.handles.runDir(order);
  const home = engineHome(ctx, runDir);
  const rendered = ctx.opts.engines.renderer(engine.type).render({
    order,
    engine,
    gpus: prepared.gpus,
    ports: prepared.ports,
    peers: order.peers ?? [],
    mgmtAddr: network.mgmtAddr,
    mgmtInterface: network.mgmtInterface,
    fabricHcas: network.fabricHcas,
    engineKey: key?.key ?? null,
    secretEnv,
    runDir: home,
    passEnv: ctx.opts.passEnv,
  });
  const runtime = ctx.runtimes.of(order);
  runtime.secrets = rendered.secrets;
  runtime.bearer = rendered.probe?.bearer ?? null;
  const spawning: Partial<Handle> = {
    state: 'spawning',
    probe:
      rendered.probe === null
        ? null
        : {
            health_url: rendered.probe.healthUrl,
            models_url: rendered.probe.modelsUrl,
            auth: rendered.probe.bearer !== null,
          },
  };
  // Even a loss of power must not forget that this fence may have run.
  update(ctx, order, spawning, true);
  ctx.opts.fault?.('after_spawning_handle');
  const env = {
    PATH,
    ...tempEnv(ctx, order),
    ...rendered.env,
    SPT_NOENV: '1',
    [MARKER]: engineKeyOf(order),
  };
  const shim = await fork(ctx, runDir, asUser(ctx, rendered.argv), env, rendered.cwd, onShimEnd);
  ctx.opts.fault?.('after_fork');
  const pid = await engineOf(runDir, shim);
  ctx.opts.fault?.('after_pid');
  return running(ctx, update(ctx, order, { state: 'running', shim, engine: pid }));
}

/** The engine's own folder. With `user` it is all of ours that the engine may write: the records stay the agent's. */
function engineHome(ctx: Context, runDir: string): string {
  const home = path.join(runDir, 'home');
  makeDir(home);
  const { user } = ctx.opts;
  if (user === null) return home;
  chownSync(home, user.uid, user.gid);
  const replicaDir = path.dirname(runDir);
  // Passed through, not listed.
  const temp = path.join(ctx.handles.workDir, 'tmp');
  makeDir(temp);
  for (const dir of [ctx.handles.workDir, path.dirname(replicaDir), replicaDir, runDir, temp])
    chmodSync(dir, 0o711);
  return home;
}

/** setpriv becomes the engine by exec, so that the pid on disk stays the engine's. */
function asUser(ctx: Context, argv: string[]): string[] {
  const { user } = ctx.opts;
  if (user === null) return argv;
  return ['setpriv', `--reuid=${user.uid}`, `--regid=${user.gid}`, '--init-groups', '--', ...argv];
}

async function fork(
  ctx: Context,
  runDir: string,
  argv: string[],
  env: Record<string, string>,
  cwd: string,
  onEnd: () => void,
): Promise<ProcId> {
  let log: number | null = null;
  try {
    const file = logFile(runDir);
    makeDir(path.dirname(file));
    log = openSync(file, 'a', 0o600);
    // No pipe of ours and a session of its own: nothing of the engine depends on this process (INV-5).
    const child = spawn('/bin/sh', shimArgs(ctx.shim, runDir, ctx.opts.logMaxBytes, argv), {
      detached: true,
      stdio: ['ignore', log, log],
      cwd,
      env,
    });
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

/** Tells the tree whom it has. */
export function running(ctx: Context, handle: Handle): Handle {
  const { tree } = ctx.runtimes.of(handle);
  tree.remember(handle.shim, true);
  for (const member of handle.process?.members ?? []) tree.remember(member);
  tree.remember(handle.engine, handle.process?.leads_session);
  return handle;
}

/**
 * A `spawning` handle of an agent that died: finds out what became of the start. null: nothing was started and
 * nothing is about to, so that it may be started (again).
 */
export async function recoverStart(ctx: Context, handle: Handle): Promise<Handle | null> {
  const runDir = ctx.handles.runDir(handle);
  let pid = readPid(runDir);
  // A live shim without a pid is on its way; its marker is in its environment from its first instruction on.
  for (let i = 0; pid === null && i < 500 && ctx.runtimes.of(handle).tree.scan().length > 0; i++) {
    await pause(10);
    pid = readPid(runDir);
  }
  if (pid === null) {
    removeFile(path.join(runDir, 'pid.tmp'));
    return null;
  }
  return running(ctx, update(ctx, handle, { state: 'running', engine: pid, shim: shimOf(pid) }));
}

/** The engine's parent, if it is still the shim (which leads the engine's session). */
function shimOf(engine: ProcId): ProcId | null {
  const stat = readStat(engine.pid);
  if (stat === null || stat.start !== engine.start || stat.session !== stat.ppid) return null;
  const parent = readStat(stat.ppid);
  return parent === null ? null : { pid: parent.pid, start: parent.start };
}
