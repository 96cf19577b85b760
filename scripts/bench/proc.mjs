// Reading /proc for the benchmarks: CPU time, proportional memory, identity of a process.
import { readdirSync, readFileSync } from 'node:fs';

const TICKS_PER_S = 100;

export function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** CPU seconds (user and system) of one process, its threads included. */
export function cpuSeconds(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_S;
}

/** Proportional set size, MiB: shared pages count by share, so that a sum over processes is honest. */
export function pssMib(pid) {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  return Number(/^Pss:\s+(\d+) kB/m.exec(text)[1]) / 1024;
}

export function children(pid) {
  const found = [];
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8');
      if (Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]) === pid) found.push(Number(name));
    } catch {
      // It ended while we looked.
    }
  }
  return found;
}

/** Mean share of one core and mean PSS of each process over `ms`. */
export async function idle(pids, ms) {
  const before = Object.fromEntries(Object.entries(pids).map(([name, pid]) => [name, cpuSeconds(pid)]));
  const started = performance.now();
  await new Promise(resolve => setTimeout(resolve, ms));
  const seconds = (performance.now() - started) / 1000;
  return Object.fromEntries(
    Object.entries(pids).map(([name, pid]) => [
      name,
      { cpu_percent: ((cpuSeconds(pid) - before[name]) / seconds) * 100, pss_mib: pssMib(pid) },
    ]),
  );
}
