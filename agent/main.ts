// The `llmgw agent` command: one of its checks, the host's stop, or the agent itself.
import { checkConfigCommand } from '../lib/config/check.js';
import { formatConfigErrors } from '../lib/config/load.js';
import { Fault } from '../lib/fault.js';
import { createLogger } from '../lib/log.js';
import { type AgentConfig, loadAgentConfig } from './config.js';

export interface AgentCommandOptions {
  /** Path of agent.yaml. */
  config: string;
  checkConfig?: boolean;
  check?: boolean;
  json?: boolean;
  stopEngines?: boolean;
}

/** The exit code: 0 done, 1 failed, 2 bad input. Throws Fault with one sentence. Parts are loaded when needed. */
export async function runAgentCommand(opts: AgentCommandOptions): Promise<number> {
  if (opts.checkConfig) {
    const { agentFileWarnings } = await import('./config-files.js');
    const json = opts.json ?? false;
    return checkConfigCommand(loadAgentConfig, opts.config, { json, files: agentFileWarnings });
  }
  const loaded = loadAgentConfig(opts.config);
  if (!loaded.ok) {
    process.stderr.write(`${formatConfigErrors(loaded.errors)}\n`);
    return 2;
  }
  if (process.platform !== 'linux') {
    throw new Fault(
      `The agent runs on Linux only, and this machine runs ${process.platform}: it needs /proc.`,
    );
  }
  try {
    if (opts.check) return await check(loaded.config, opts.json ?? false);
    if (opts.stopEngines) return await stopEngines(loaded.config);
    const log = createLogger({ name: 'agent' });
    const { listenForStop } = await import('./stop.js');
    const stop = listenForStop(log);
    const { runAgent } = await import('./run.js');
    return await runAgent({ config: loaded.config, log, stop });
  } catch (error) {
    throw asFault(error, loaded.config);
  }
}

async function check(config: AgentConfig, json: boolean): Promise<number> {
  const { formatInventory, inventoryOf } = await import('./check.js');
  const inventory = await inventoryOf(config);
  process.stdout.write(
    json ? `${JSON.stringify(inventory, null, 2)}\n` : await formatInventory(inventory, config),
  );
  return 0;
}

async function stopEngines(config: AgentConfig): Promise<number> {
  const { stopEnginesForHost } = await import('./stop-engines.js');
  await stopEnginesForHost(config, createLogger({ name: 'agent', dest: 'stderr' }));
  return 0;
}

/** What the system says of work_dir and the like is the operator's to mend; everything else is a bug and stays one. */
function asFault(error: unknown, config: AgentConfig): unknown {
  const { code, path } = error as NodeJS.ErrnoException;
  const denied = ['EACCES', 'EPERM', 'EEXIST', 'EROFS', 'ENOTDIR', 'ENOSPC', 'EDQUOT'].includes(code ?? '');
  const inWorkDir =
    path?.startsWith(config.supervisor.work_dir) || config.supervisor.work_dir.startsWith(path ?? '\0');
  if (!denied || !inWorkDir) return error;
  return new Fault(`supervisor.work_dir ${config.supervisor.work_dir} can't be used: ${path}: ${code}.`);
}
