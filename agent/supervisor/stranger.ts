// A process that an operator names: whose it is, what it has of this node, and whether it can be an engine of ours.
// Nothing is touched here. Each refusal is one sentence that says what to do about it.
import type { LookedAt } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import type { EngineRef } from '../../contracts/ids.js';
import { errnoOf } from '../state/files.js';
import { refOf } from '../state/handle.js';
import type { Context } from './context.js';
import {
  allStats,
  describePid,
  hasArgv,
  isListening,
  isLive,
  listenAddresses,
  listenerAmong,
  type ProcStat,
  readStat,
} from './proc.js';
import { markOf } from './tree.js';

/** What an operator names: a pid of this node, and the port that it serves at. */
export interface Named {
  pid: number;
  port: number;
}

export interface Stranger {
  root: ProcStat;
  /** It leads its session: all of the session is its own, also what was left to PID 1. */
  leadsSession: boolean;
  /** The process and all below it. */
  members: ProcStat[];
}

export const refused = (sentence: string): LlmgwError => new LlmgwError('ADOPT_REFUSED', sentence);

/** Slots of a process' GPUs, or whose engine it is. See NodeActivities. */
export async function look(ctx: Context, named: Named): Promise<LookedAt> {
  const stranger = treeOf(named.pid);
  const engine = engineOf(ctx, stranger);
  if (engine !== null) {
    const order = ctx.handles.get(engine)?.order;
    return { slots: order?.slots ?? [], engine: { replica: engine.replica, fence: engine.fence } };
  }
  refuseUntouchable(named);
  addressesOf(stranger, named);
  const uuids = await gpusOf(ctx, stranger);
  return { slots: uuids === null ? [] : slotsOf(ctx, named.pid, uuids), engine: null };
}

/** Throws ADOPT_REFUSED for what isn't a program, or has this agent in its tree. */
export function treeOf(pid: number): Stranger {
  const root = readStat(pid);
  if (!isLive(root)) throw refused(`there is no process ${pid} on this node`);
  if (pid === 1)
    throw refused('pid 1 is the init of this node, no engine: name the pid of the engine itself');
  if (!hasArgv(pid)) {
    throw refused(`pid ${pid} (${root.comm}) has no command line: it is a thread of the kernel, no engine`);
  }
  const all = allStats();
  const leadsSession = root.session === pid;
  const members = new Map([[pid, root]]);
  if (leadsSession) for (const s of all) if (s.session === pid) members.set(s.pid, s);
  for (let grew = true; grew; ) {
    grew = false;
    for (const s of all) {
      if (members.has(s.pid) || !members.has(s.ppid)) continue;
      members.set(s.pid, s);
      grew = true;
    }
  }
  if (members.has(process.pid)) {
    throw refused(
      `pid ${pid} (${describePid(pid)}) is this agent, or this agent runs below it: name the pid of the engine itself`,
    );
  }
  return { root, leadsSession, members: [...members.values()] };
}

/** The engine of llmgw that the process, something above it or something below it belongs to; null: of none. */
export function engineOf(ctx: Context, { root, members }: Stranger): EngineRef | null {
  const handles = ctx.handles.all().filter(h => h.state !== 'stopped');
  for (const { pid } of [...members, ...ancestors(root)]) {
    const owner = handles.find(h => ctx.runtimes.of(h).tree.owns(pid));
    if (owner !== undefined) return refOf(owner);
    const mark = markOf(pid);
    if (mark !== null) return mark;
  }
  return null;
}

function ancestors(of: ProcStat): ProcStat[] {
  const above: ProcStat[] = [];
  for (let at = readStat(of.ppid); isLive(at) && at.pid > 1; at = readStat(at.ppid)) above.push(at);
  return above;
}

/** An engine that this agent could never stop isn't taken. */
export function refuseUntouchable({ pid }: Named): void {
  try {
    process.kill(pid, 0);
  } catch (e) {
    if (errnoOf(e) === 'ESRCH') throw refused(`there is no process ${pid} on this node`);
    throw refused(
      `pid ${pid} (${describePid(pid)}) belongs to a user whose processes this agent may not stop: run the agent as root, or as that user`,
    );
  }
}

/** Where the tree listens on the port that was named. Throws when it doesn't. */
export function addressesOf({ members }: Stranger, { pid, port }: Named): string[] {
  const pids = members.map(m => m.pid);
  const addresses = listenAddresses(port, pids);
  if (addresses.length > 0) return addresses;
  if (!isListening(port)) throw refused(`nothing listens on port ${port} of this node`);
  const other = listenerAmong(
    port,
    allStats().map(s => s.pid),
  );
  const who =
    other === null ? 'a process that this agent can not see' : `pid ${other} (${describePid(other)})`;
  throw refused(
    `port ${port} is listened on by ${who}, which is not of the tree of pid ${pid} (${describePid(pid)})`,
  );
}

/** UUIDs of the GPUs that the tree has; null: this node has no process lists to tell it by. */
export async function gpusOf(ctx: Context, { members }: Stranger): Promise<string[] | null> {
  const gpus = await ctx.opts.gpus.snapshot().then(
    s => s.gpus,
    (e: Error) => {
      throw refused(`which GPUs the process has can not be told, the driver does not answer: ${e.message}`);
    },
  );
  const listed = gpus.filter(g => g.processes !== null);
  if (listed.length === 0) return null;
  const pids = new Set(members.map(m => m.pid));
  return listed.filter(g => g.processes!.some(p => pids.has(p.pid))).map(g => g.uuid);
}

function slotsOf(ctx: Context, pid: number, uuids: string[]): number[] {
  if (uuids.length === 0) {
    throw refused(`pid ${pid} (${describePid(pid)}) and its children have none of the GPUs of this node`);
  }
  const slots = Object.entries(ctx.opts.slots());
  return uuids
    .map(uuid => {
      const slot = slots.find(([, known]) => known === uuid)?.[0];
      if (slot === undefined)
        throw refused(`GPU ${uuid}, which pid ${pid} has, has no slot on this node yet`);
      return Number(slot);
    })
    .sort((a, b) => a - b);
}
