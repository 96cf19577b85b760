// Agents as real processes: the fixture compiled once a file, its output read line by line.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { onTestFinished } from 'vitest';
import { type LogLine, until } from '../stream/support.js';

const root = path.resolve(import.meta.dirname, '../..');

/** Compiles the fixture, and `also`, below node_modules, where their imports are found; returns the folder. */
export function compileAgent(also: string[] = []): string {
  const cache = path.join(root, 'node_modules/.cache');
  mkdirSync(cache, { recursive: true });
  const out = mkdtempSync(path.join(cache, 'agent-test-'));
  const options = ['--ignoreConfig', '--outDir', out, '--rootDir', root, '--module', 'nodenext'];
  const more = ['--target', 'es2023', '--types', 'node', '--noCheck', '--skipLibCheck'];
  const fixture = path.join(root, 'test/agent/fixtures/agent-child.ts');
  execFileSync(path.join(root, 'node_modules/.bin/tsc'), [...options, ...more, fixture, ...also], {
    cwd: root,
  });
  // Not TypeScript, so not emitted.
  copyFileSync(path.join(root, 'lib/lock.mjs'), path.join(out, 'lib/lock.mjs'));
  writeFileSync(path.join(out, 'package.json'), '{"type":"module","version":"0.0.0-test"}');
  return out;
}

export const removeCompiled = (out: string): void => rmSync(out, { recursive: true, force: true });

export interface AgentProcess {
  child: ChildProcess;
  lines: LogLine[];
  stderr(): string;
  /** Waits for something that needs the agent alive; fails with its last words when it ends instead. */
  until<T>(look: () => T | null | undefined | false): Promise<T>;
  /** Exit code, or the signal that ended it. */
  ended: Promise<number | NodeJS.Signals | null>;
}

export function spawnAgent(out: string, args: string[]): AgentProcess {
  const child = spawn(process.execPath, [path.join(out, 'test/agent/fixtures/agent-child.js'), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  onTestFinished(() => void child.kill('SIGKILL'));
  const lines: LogLine[] = [];
  let stderr = '';
  child.stderr?.on('data', chunk => {
    stderr += chunk;
  });
  createInterface({ input: child.stdout! }).on('line', line => void lines.push(JSON.parse(line)));
  const ended = new Promise<number | NodeJS.Signals | null>(resolve => {
    child.once('close', (code, signal) => resolve(code ?? signal));
  });
  const died = ended.then(code => {
    throw new Error(`the agent ended with ${code}: ${stderr}${JSON.stringify(lines.slice(-3))}`);
  });
  died.catch(() => {});
  return { child, lines, stderr: () => stderr, ended, until: look => Promise.race([until(look), died]) };
}

/** agent.yaml of a node without GPUs; `more` are further lines. */
export function agentYaml(dir: string, server: string, more: string[] = [], nodeId = 'gpu-a-01'): string {
  const file = path.join(dir, 'agent.yaml');
  const text = [
    `node_id: ${nodeId}`,
    `server: "${server}"`,
    'mgmt_addr: "127.0.0.1"',
    'heartbeat_interval: 200ms',
    'reconnect_base: 50ms',
    'discovery: { skip_gpus: true }',
    `supervisor: { work_dir: ${path.join(dir, 'work')} }`,
    ...more,
  ];
  writeFileSync(file, `${text.join('\n')}\n`);
  return file;
}
