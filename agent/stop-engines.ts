// `llmgw agent --stop-engines`: the host's own stop (INV-5). Every engine of this work_dir is marked, ended and
// recorded; the next agent tells the control plane, which counts none of them as a failure.
import type { Logger } from '../lib/log.js';
import { openDiscovery, supervisorOptions } from './assemble.js';
import { Conditions } from './conditions.js';
import type { AgentConfig } from './config.js';
import { lockWorkDir } from './identity.js';
import { Supervisor } from './supervisor/supervisor.js';

export async function stopEnginesForHost(config: AgentConfig, log: Logger): Promise<void> {
  const locked = await lockWorkDir(config.supervisor.work_dir);
  if ('problem' in locked)
    log.warn('an agent runs here and may be told to start engines again: stop it first');
  const supervisor = new Supervisor(
    supervisorOptions({
      config,
      discovery: openDiscovery(config),
      conditions: new Conditions(),
      log,
      slots: () => ({}),
      seenAddress: () => null,
    }),
  );
  try {
    await supervisor.stopAllForHost();
  } finally {
    supervisor.close();
    if ('lock' in locked) await locked.lock.release();
  }
}
