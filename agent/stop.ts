// How the agent stops: at SIGTERM, SIGINT or the end of the `llmgw dev` that started it, in under a second, whatever
// the stream, the worker or a driver is doing then. Engines go on (INV-5).
import { endWithParent } from '../lib/dev-channel.js';
import type { Logger } from '../lib/log.js';

/** All of stopping must fit in one second: what hasn't ended by then ends with the process. */
const HARD_LIMIT = 900;

export interface AgentStop {
  /** Aborts once, when the agent is to stop. Nothing but the process's own end may abort it. */
  signal: AbortSignal;
  /** All parts have ended by themselves: nothing is held up by the limit any more. */
  clean(): void;
}

export function listenForStop(log: Logger): AgentStop {
  const controller = new AbortController();
  let limit: NodeJS.Timeout | null = null;
  const stop = (why: string) => {
    if (controller.signal.aborted) return;
    log.info({ why }, 'stopping; engines go on');
    // Armed before anybody is told: a listener that throws or blocks on a promise can't prevent it.
    limit = setTimeout(() => {
      log.warn('not all parts ended in time: leaving them');
      leave();
    }, HARD_LIMIT);
    controller.abort();
  };
  for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, () => stop(name));
  endWithParent(() => stop('llmgw dev has ended'));
  return {
    signal: controller.signal,
    // Not cleared: a handle that is left open must not keep a stopped agent alive.
    clean: () => limit?.unref(),
  };
}

/**
 * process.exit() waits for the threads that read files: one that hangs in the kernel (a dead file server, a sick
 * device) would keep the agent for ever. Nothing is left to be written by then.
 */
function leave(): void {
  if (process.getActiveResourcesInfo().some(name => name.startsWith('FSReq')))
    process.kill(process.pid, 'SIGKILL');
  process.exit(0);
}
