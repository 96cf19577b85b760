// One private `llmgw dev` for the benchmarks, and what is asked of it.
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { alive } from './proc.mjs';

const MAIN = path.join(import.meta.dirname, '../../dist/bin/main.js');

export async function until(what, condition, { every = 5, within = 60_000 } = {}) {
  const end = performance.now() + within;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`${what} did not come within ${within / 1000} s`);
    await new Promise(resolve => setTimeout(resolve, every));
  }
}

export async function startInstallation() {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-bench-'));
  const [temporal, ui, agent, http, router] = await freePorts(5);
  const args = [MAIN, 'dev', '--no-demo', '--no-respawn', '--data-dir', path.join(dir, 'data')];
  for (const [name, port] of Object.entries({ temporal, ui, agent, http, router }))
    args.push(`--${name}-port`, String(port));
  const started = performance.now();
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', chunk => (output += chunk));
  await until('dev', () => {
    if (child.exitCode !== null) throw new Error(`dev ended:\n${output}`);
    return output.includes('All parts are ready');
  }).catch(async err => {
    child.kill('SIGINT');
    await until('the end of dev', () => child.exitCode !== null || !alive(child.pid), { every: 50 });
    throw err;
  });
  const readyMs = performance.now() - started;
  const data = path.join(dir, 'data');
  return {
    data,
    ports: { temporal, ui, agent, http, router },
    readyMs,
    pids: () => JSON.parse(readFileSync(path.join(data, 'dev.json'), 'utf8')),
    async stop() {
      child.kill('SIGINT');
      await until('the end of dev', () => child.exitCode !== null || !alive(child.pid), { every: 50 });
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

/** Reserved at once, then given back: dev checks them again itself. */
export async function freePorts(n) {
  const servers = await Promise.all(
    Array.from(
      { length: n },
      () =>
        new Promise(resolve => {
          const server = createServer().listen(0, '127.0.0.1', () => resolve(server));
        }),
    ),
  );
  const ports = servers.map(s => s.address().port);
  await Promise.all(servers.map(s => new Promise(resolve => s.close(resolve))));
  return ports;
}

export async function json(url) {
  const res = await fetch(url);
  return res.ok ? res.json() : null;
}

/** One chat request; the HTTP status, or 0 when there was no answer. */
export async function chat(port, model) {
  try {
    const res = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: 'hi' }], max_tokens: 1 }),
    });
    await res.arrayBuffer();
    return res.status;
  } catch {
    return 0;
  }
}
