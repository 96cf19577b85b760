// Runs a command of the set-up: quiet while it works, its words when it fails.
import { spawn } from 'node:child_process';
import path from 'node:path';
import { withProgress } from '../../lib/progress.mjs';

/** The checkout's root. */
export const ROOT = path.resolve(import.meta.dirname, '../..');

/** Characters of output that are kept, and lines of it that are shown. */
const KEPT = 100_000;
const SHOWN = 25;

/** A fault told in one sentence, without a stack trace. */
export class SetupError extends Error {}

/** Runs it with progress; rejects with a SetupError that has what the command said. */
export async function runQuietly(what, command, args, { env = process.env } = {}) {
  let output = '';
  const keep = chunk => {
    if (output.length < KEPT) output += chunk;
  };
  await withProgress(
    what,
    () =>
      new Promise((resolve, reject) => {
        const child = spawn(command, args, { cwd: ROOT, env, stdio: ['ignore', 'pipe', 'pipe'] });
        child.stdout.on('data', keep);
        child.stderr.on('data', keep);
        child.on('error', error =>
          reject(new SetupError(`${what}: ${command} can't be run: ${error.message}`)),
        );
        child.on('close', (code, signal) => {
          if (code === 0) return resolve();
          // npm and tsc name the cause first and end with advice.
          const lines = output.trimEnd().split('\n');
          const more = lines.length > SHOWN ? `\n… and ${lines.length - SHOWN} more lines` : '';
          const shown = lines.slice(0, SHOWN).join('\n');
          reject(new SetupError(`${what} failed (${signal ?? `exit ${code}`}):\n${shown}${more}`));
        });
      }),
  );
}

/** Runs `main` as a script: faults of the set-up become one message and exit 1. */
export async function script(main) {
  try {
    await main();
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    console.error(`llmgw: ${error.message}`);
    process.exitCode = 1;
  }
}
