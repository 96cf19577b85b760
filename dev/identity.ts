// Who a process is: a pid is used again after its process ended, so a pid alone says nothing about yesterday's process.
// Linux only (/proc).
import { readFileSync } from 'node:fs';

/** A process for good: `start` is its start time in clock ticks since boot, as /proc has it. */
export interface ProcessIdentity {
  pid: number;
  start: string;
}

/**
 * The identity of a running process; null when there is none. A zombie is none: it holds nothing any more, unless
 * threads of it still run, for then its sockets and locks are still there.
 */
export function identify(pid: number): ProcessIdentity | null {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch {
    return null;
  }
  // The command's name stands in parentheses and may contain anything, so fields count from the last one:
  // 0 is the state, 17 the number of threads, 19 the start time.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  const [state, threads, start] = [fields[0], Number(fields[17]), fields[19]];
  if (start === undefined || state === 'X' || (state === 'Z' && threads <= 1)) return null;
  return { pid, start };
}

export function isAlive(who: ProcessIdentity): boolean {
  return identify(who.pid)?.start === who.start;
}

/**
 * Signals the process and nobody else; false when it is gone. With `group` its whole process group, which the parts
 * of dev lead themselves.
 */
export function signal(
  who: ProcessIdentity,
  sig: NodeJS.Signals,
  options: { group?: boolean } = {},
): boolean {
  if (!isAlive(who)) return false;
  try {
    process.kill(options.group === true ? -who.pid : who.pid, sig);
    return true;
  } catch {
    // It ended in between.
    return false;
  }
}

/** Waits until it is gone; false after `timeoutMs`. */
export async function waitGone(who: ProcessIdentity, timeoutMs: number): Promise<boolean> {
  const end = performance.now() + timeoutMs;
  while (isAlive(who)) {
    if (performance.now() >= end) return false;
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  return true;
}

/** SIGTERM, SIGKILL of its group after `graceMs`; resolves when it is gone. */
export async function end(who: ProcessIdentity, graceMs: number): Promise<void> {
  signal(who, 'SIGTERM');
  if (await waitGone(who, graceMs)) return;
  signal(who, 'SIGKILL', { group: true });
  // A killed process is gone at once unless the kernel holds it (disk, driver): no reason to wait for ever.
  await waitGone(who, 2_000);
}
