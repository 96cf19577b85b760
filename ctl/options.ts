// Options that every ctl command shares, and who gives the command.
import { userInfo } from 'node:os';
import type { Command } from 'commander';
import { Fault } from '../lib/fault.js';
import { type Target, target } from './client.js';

/** Where the control plane is: --server and --token-file stand before or after the subcommand. */
export function reaching(cmd: Command): Command {
  return cmd
    .option('--server <url>', 'address of the control plane (LLMGW_SERVER; default http://127.0.0.1:8080)')
    .option('--token-file <file>', 'bearer token (LLMGW_TOKEN_FILE)');
}

export const listing = (cmd: Command): Command => reaching(cmd).option('--json', 'as JSON');

export function targetOf(cmd: Command): Target {
  const opts = cmd.optsWithGlobals() as { server?: string; tokenFile?: string };
  return target(opts);
}

/** Who decides, for the journal: the user of this machine. */
export function user(): string {
  let name = '';
  try {
    name = userInfo().username;
  } catch {
    // A uid without an entry in the system's user database.
  }
  return name.replace(/[^\x21-\x7e]/g, '').slice(0, 64) || 'ctl';
}

export function wholeNumber(option: string, min: number, max = Number.MAX_SAFE_INTEGER) {
  return (text: string): number => {
    const n = Number(text);
    if (/^\d+$/.test(text) && n >= min && n <= max) return n;
    const range = max === Number.MAX_SAFE_INTEGER ? `of at least ${min}` : `from ${min} to ${max}`;
    throw new Fault(`${option} ${text}: expected a whole number ${range}`, 2);
  };
}
