// `llmgw temporal …`: the same binary that dev runs, with the address set.
import { spawn } from 'node:child_process';
import { stderrOut } from '../lib/progress.mjs';
import { isAlive } from './identity.js';
import { dataDirOf, dataPaths } from './paths.js';
import { readState } from './state.js';
import { findTemporal } from './temporal-binary.js';

/** Hands `args` on with this terminal; resolves with the exit code. */
export async function runTemporal(args: string[], env: NodeJS.ProcessEnv = process.env): Promise<number> {
  const { path } = await findTemporal({ env });
  const address = env.TEMPORAL_ADDRESS || addressOfDev(env, args);
  const child = spawn(path, args, {
    stdio: 'inherit',
    env: address === null ? env : { ...env, TEMPORAL_ADDRESS: address },
  });
  // Ctrl-C reaches the binary by the terminal; what is sent to this process alone has to be handed on.
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, () => child.kill(signal));
  return await new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('exit', (code, signal) => resolve(code ?? (signal === 'SIGINT' ? 130 : 1)));
  });
}

/** The address of the dev server on this data directory; null (and a word on it) when none runs. */
function addressOfDev(env: NodeJS.ProcessEnv, args: string[]): string | null {
  const file = dataPaths(dataDirOf(env)).state;
  const state = readState(file);
  if (state !== null && isAlive(state.dev)) return state.temporal_address;
  // These ask no server.
  if (args.length === 0 || args.some(arg => ['--help', '-h', '--version', '--address'].includes(arg)))
    return null;
  stderrOut.write(
    `llmgw temporal: no \`llmgw dev\` runs on ${dataDirOf(env)} and TEMPORAL_ADDRESS is unset: going by temporal's own default address.\n`,
  );
  return null;
}
