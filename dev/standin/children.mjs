// Processes like `VLLM::EngineCore` and its workers: they ignore SIGTERM and outlive their parent, so that a
// supervisor which only ends the process it started leaves GPUs held.
import { spawn } from 'node:child_process';

/**
 * @param {{count: number, ownSession: boolean}} wanted
 * @returns {number[]} pids; the calling process doesn't wait for them.
 */
export function spawnChildren({ count, ownSession }) {
  const pids = [];
  for (let i = 0; i < count; i++) {
    // An ignored signal stays ignored across exec: one small process each, without a shell that waits.
    const script = 'trap "" TERM INT HUP; exec sleep 2147483647';
    const child = spawn('/bin/sh', ['-c', script], {
      detached: ownSession,
      stdio: ['ignore', 'inherit', 'inherit'],
    });
    child.unref();
    if (child.pid !== undefined) pids.push(child.pid);
  }
  return pids;
}
