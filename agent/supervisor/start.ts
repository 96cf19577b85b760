// `spawn`: from a prepared handle to a running engine. The handle says `spawning` on disk before the fork; the shim
// writes the engine's pid before the engine runs. So at every line a restarted agent finds either nothing that was
// started, or something it knows (INV-6: a fence starts once).
import { chmodSync, chownSync } from 'node:fs';
import path from 'node:path';
import type { Peer } from '../../contracts/activities.js';
import { engineKeyOf } from '../../contracts/ids.js';
import type { Probe } from '../engines/types.js';
import { makeDir, removeFile } from '../state/files.js';
import type { Handle, ProcId } from '../state/handle.js';
import { type Context, pause, update } from './context.js';
import { engineOf, startShim } from './fork.js';
import { tempEnv } from './leftovers.js';
import { readStat } from './proc.js';
import { writeFiles } from './rendered-files.js';
import { scopeOf } from './scope.js';
import { readPid } from './shim.js';
import { MARKER } from './tree.js';

const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Returns the running handle. `peers`: all members of its gang, or none. `onShimEnd`: our child, the shim, has ended. */
export async function startEngine(
  ctx: Context,
  prepared: Handle,
  peers: Peer[],
  onShimEnd: () => void,
): Promise<Handle> {
  const order = prepared.order!;
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
    peers,
    mgmtAddr: network.mgmtAddr,
    mgmtInterface: network.mgmtInterface,
    fabricHcas: network.fabricHcas,
    engineKey: key?.key ?? null,
    secretEnv,
    runDir: home,
    passEnv: ctx.opts.passEnv,
  });
  writeFiles(home, rendered.files ?? [], ctx.opts.user);
  const runtime = ctx.runtimes.of(order);
  runtime.secrets = rendered.secrets;
  runtime.bearer = rendered.probe?.bearer ?? null;
  // Even a loss of power must not forget that this fence may have run.
  update(
    ctx,
    order,
    { state: 'spawning', probe: kept(rendered.probe), ...(peers.length > 0 ? { peers } : {}) },
    true,
  );
  ctx.opts.fault?.('after_spawning_handle');
  const env = {
    PATH,
    ...tempEnv(ctx, order),
    ...rendered.env,
    SPT_NOENV: '1',
    [MARKER]: engineKeyOf(order),
  };
  const program = { argv: asUser(ctx, rendered.argv), env, cwd: rendered.cwd, onEnd: onShimEnd };
  const { shim, scope } = await startShim(ctx, order, program);
  ctx.opts.fault?.('after_fork');
  const pid = await engineOf(runDir, shim);
  ctx.opts.fault?.('after_pid');
  return running(ctx, update(ctx, order, { state: 'running', shim, scope, engine: pid }));
}

/** What of a probe lies in the handle. */
function kept(probe: Probe | null): Handle['probe'] {
  if (probe === null) return null;
  return {
    health_url: probe.healthUrl,
    models_url: probe.modelsUrl,
    auth: probe.bearer !== null,
    ...(probe.timeoutMs === undefined ? {} : { timeout_ms: probe.timeoutMs }),
    ...(probe.periodMs === undefined ? {} : { period_ms: probe.periodMs }),
  };
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

/** Tells the tree whom it has. */
export function running(ctx: Context, handle: Handle): Handle {
  const { tree } = ctx.runtimes.of(handle);
  const root = ctx.opts.systemd?.cgroups ?? null;
  if (handle.scope != null && root !== null) tree.inScope(root, handle.scope.cgroup);
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
  const scope = scopeOf(pid.pid, handle);
  return running(ctx, update(ctx, handle, { state: 'running', engine: pid, shim: shimOf(pid), scope }));
}

/** The engine's parent, if it is still the shim (which leads the engine's session). */
function shimOf(engine: ProcId): ProcId | null {
  const stat = readStat(engine.pid);
  if (stat === null || stat.start !== engine.start || stat.session !== stat.ppid) return null;
  const parent = readStat(stat.ppid);
  return parent === null ? null : { pid: parent.pid, start: parent.start };
}
