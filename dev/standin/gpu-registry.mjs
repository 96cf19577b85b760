// What NVML would tell of a real engine: which processes hold which GPUs, and how much. Each process has a file
// `<pid>.json` in LLMGW_STANDIN_GPU_DIR; a reader believes it only while a process with that pid and start time
// lives, as the files of a process that was killed stay behind.
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export class GpuRegistry {
  #dir;
  #gpus;
  #pids = new Set();

  /** @param {string} dir '' registers nothing. @param {string} visible value of CUDA_VISIBLE_DEVICES */
  constructor(dir, visible) {
    this.#dir = dir;
    this.#gpus = visible.split(',').filter(gpu => gpu !== '');
    if (dir !== '') mkdirSync(dir, { recursive: true });
  }

  /** Says that `pid` holds `usedMib` on each GPU that is visible here. */
  hold(pid, usedMib) {
    if (this.#dir === '' || this.#gpus.length === 0) return;
    const startTime = startTimeOf(pid);
    if (startTime === null) return;
    const file = join(this.#dir, `${pid}.json`);
    const entry = { pid, start_time: startTime, gpus: this.#gpus, used_mib: usedMib };
    writeFileSync(`${file}.tmp`, `${JSON.stringify(entry)}\n`);
    renameSync(`${file}.tmp`, file);
    this.#pids.add(pid);
  }

  /** What this process itself held is free again; its children speak for themselves. */
  release(pid) {
    if (this.#pids.delete(pid)) rmSync(join(this.#dir, `${pid}.json`), { force: true });
  }
}

/** Clock ticks since boot at which the process started (field 22 of /proc/PID/stat); null when there is none. */
function startTimeOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
  } catch {
    return null;
  }
}
