// What the tests of dev share: folders and processes that are gone when a test is.
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { onTestFinished } from 'vitest';

export function tempDir(): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'llmgw-dev-test-'));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** A Node program that is killed at the end of the test; `ready` resolves with its first line of output. */
export function runNode(
  code: string,
  args: string[] = [],
): { child: ChildProcess; pid: number; ready: Promise<string> } {
  const child = spawn(process.execPath, ['--input-type=module', '-e', code, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    detached: true,
  });
  onTestFinished(() => killGroup(child.pid));
  const ready = new Promise<string>((resolve, reject) => {
    child.stdout?.once('data', (chunk: Buffer) => resolve(chunk.toString().trim()));
    child.once('exit', code => reject(new Error(`the program ended with ${code} before it said a word`)));
  });
  return { child, pid: child.pid!, ready };
}

export function killGroup(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // It is gone already.
  }
}

export function script(file: string, text: string): string {
  writeFileSync(file, text, { mode: 0o755 });
  return file;
}

/** Waits for a condition; the test's own timeout is the limit. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise(resolve => setTimeout(resolve, 10));
}

export const textOf = (file: string): string => (existsSync(file) ? readFileSync(file, 'utf8') : '');
