// One `llmgw dev` a data directory; and what an earlier one has left behind after a kill -9 is ended by identity,
// engines excepted: the next agent adopts them (INV-5).

import { Fault } from '../lib/fault.js';
import { type Lock, tryLock } from '../lib/lock.mjs';
import { end, isAlive, waitGone } from './identity.js';
import { readState, removeState } from './state.js';

/** Parts end by themselves when dev's channel closes: this long they are left to it, then they are ended. */
const OWN_END_MS = 3_000;
const GRACE_MS = 1_500;

/** Takes the data directory (its real path) for this process; a Fault that names the dev which has it. */
export async function lockDataDir(dir: string): Promise<Lock> {
  const result = await tryLock(`dev:${dir}`);
  if ('lock' in result) return result.lock;
  const who = result.holder === null ? 'another llmgw dev' : `llmgw dev (pid ${result.holder})`;
  throw new Fault(
    `${who} is running on ${dir}: stop it with Ctrl-C there${
      result.holder === null ? '' : ` (or kill ${result.holder})`
    }, or take another directory with --data-dir.`,
  );
}

/** Ends the parts that dev.json names and that still run; their names come back. Call it under the lock only. */
export async function endLeftovers(stateFile: string): Promise<string[]> {
  const state = readState(stateFile);
  if (state === null) return [];
  const left = Object.entries(state.parts).filter(([, who]) => isAlive(who));
  await Promise.all(
    left.map(async ([, who]) => {
      if (!(await waitGone(who, OWN_END_MS))) await end(who, GRACE_MS);
    }),
  );
  removeState(stateFile);
  return left.map(([name]) => name);
}
