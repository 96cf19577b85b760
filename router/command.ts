// `llmgw router`: the process around the router, from its configuration to its signals.
import { checkConfigCommand } from '../lib/config/check.js';
import { formatConfigErrors } from '../lib/config/load.js';
import { endWithParent } from '../lib/dev-channel.js';
import { createLogger } from '../lib/log.js';
import { loadRouterConfig } from './config.js';
import { runRouter, StartError } from './main.js';

export interface RouterCommandOptions {
  config: string;
  checkConfig?: boolean;
  json?: boolean;
}

/** Runs until SIGTERM or SIGINT; resolves with the exit code: 0 done, 1 it can't start, 2 bad configuration. */
export async function runRouterCommand(options: RouterCommandOptions): Promise<number> {
  if (options.checkConfig === true) {
    const { routerFileWarnings } = await import('./config-files.js');
    const json = options.json === true;
    return checkConfigCommand(loadRouterConfig, options.config, { json, files: routerFileWarnings });
  }
  const loaded = loadRouterConfig(options.config);
  if (!loaded.ok) {
    console.error(formatConfigErrors(loaded.errors));
    return 2;
  }
  const log = createLogger({ name: 'router' });
  const stop = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => stop.abort());
  endWithParent(() => stop.abort());
  try {
    const router = await runRouter(loaded.config, { log, signal: stop.signal });
    await router.closed;
    return 0;
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    console.error(`llmgw router: ${error.message}`);
    return 1;
  }
}
