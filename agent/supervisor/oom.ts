// The OOM killer told from a crash. A signal 9 alone says nothing: SGLang ends itself by SIGKILL on every fatal error,
// and a worker that is killed ends its API process with some code of its own. In a scope the kernel counts its victims
// (the shim keeps the figure); elsewhere its log names them, where the agent may read it.
import { closeSync, constants, openSync, readlinkSync, readSync } from 'node:fs';
import type { Explained } from '../engines/types.js';
import { errnoOf } from '../state/files.js';
import type { Handle } from '../state/handle.js';
import type { Context } from './context.js';
import { readOom } from './shim.js';

const KMSG = '/dev/kmsg';
/** PROC_PID_INIT_INO: in another pid namespace the kernel's pids are other processes. */
const INIT_PID_NS = 'pid:[4026531836]';
/** Clock ticks a second in /proc, on every Linux that there is. */
const TICKS = 100;
/** A record is 1 KiB at most; the ring has some thousands of them. */
const RECORD_BYTES = 8_192;
const RECORDS = 100_000;

/** Kernels before 5.1 say the reason in a record of its own. */
const VICTIM =
  /;(?:((?:Memory cgroup out|Out) of memory)[^:]{0,40}: )?Killed process (\d{1,10}) \((.{0,32}?)\)/;
/** The clock of the log isn't the one of start times: it runs up to 500 ppm off, and nobody sets it right. */
const slackOf = (uptimeSeconds: number): number => 60 + uptimeSeconds * 0.0005;

export interface Victim {
  pid: number;
  comm: string;
  /** It was the limit of a cgroup, not the end of the host's memory. */
  ofCgroup: boolean;
}

/** Why an engine ended that nobody had asked to; null: not by the OOM killer, as far as this machine can tell. */
export function explainOom(ctx: Context, handle: Handle): Explained | null {
  const counted = readOom(ctx.handles.runDir(handle));
  if (counted !== null) {
    const { kills, byOwnLimit } = counted;
    const who = `${kills} ${kills === 1 ? 'process' : 'processes'} of the engine`;
    return byOom(
      who,
      byOwnLimit ? `the memory limit of ${handle.scope?.unit ?? 'its cgroup'} was reached` : null,
    );
  }
  const victim = handle.scope == null ? victimOf(ctx, handle) : null;
  if (victim === null) return null;
  const who = `pid ${victim.pid} (${victim.comm}) of the engine`;
  return byOom(who, victim.ofCgroup ? 'the memory limit of its cgroup was reached' : null);
}

const byOom = (who: string, limit: string | null): Explained => ({
  class: 'retry',
  code: 'ENGINE_FAILED',
  sentence: `the kernel's OOM killer ended ${who}: ${limit ?? 'the host ran out of memory'}`,
});

/** The latest process of its tree that the kernel's log names. */
function victimOf(ctx: Context, handle: Handle): Victim | null {
  const { kmsg } = ctx.opts;
  if (kmsg === undefined && !inInitNamespace()) return null;
  const { tree } = ctx.runtimes.of(handle);
  const started = Number((handle.shim ?? handle.engine)?.start ?? Number.POSITIVE_INFINITY) / TICKS;
  return (
    killedSince(kmsg ?? KMSG, started - slackOf(started)).findLast(victim => tree.has(victim.pid)) ?? null
  );
}

function inInitNamespace(): boolean {
  try {
    return readlinkSync('/proc/self/ns/pid') === INIT_PID_NS;
  } catch {
    return false;
  }
}

/** What the OOM killer ended since `since` (seconds after boot), oldest first; none where the log can't be read. */
export function killedSince(file: string, since: number): Victim[] {
  const victims: Victim[] = [];
  for (const record of recordsOf(file)) {
    // `priority,sequence,microseconds,flags;text`
    const at = Number(/^\d+,\d+,(\d+),/.exec(record)?.[1] ?? Number.NaN) / 1e6;
    const m = VICTIM.exec(record);
    if (m === null || !(at >= since)) continue;
    victims.push({ pid: Number(m[2]), comm: m[3]!, ofCgroup: m[1]?.startsWith('Memory cgroup') === true });
  }
  return victims;
}

/** One read is one record; the end is EAGAIN, of a file it is nothing. */
function* recordsOf(file: string): Generator<string> {
  let fd: number;
  try {
    fd = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch {
    return;
  }
  const buffer = Buffer.allocUnsafe(RECORD_BYTES);
  try {
    for (let i = 0; i < RECORDS; i++) {
      let n: number;
      try {
        n = readSync(fd, buffer);
      } catch (e) {
        // The ring went over the record that was next: the following one is read.
        if (errnoOf(e) === 'EPIPE') continue;
        return;
      }
      if (n === 0) return;
      yield* buffer.toString('utf8', 0, n).split('\n');
    }
  } finally {
    closeSync(fd);
  }
}
