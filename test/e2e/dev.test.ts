// `llmgw dev` as a person uses it: started, interrupted, started again, killed, its parts killed.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import type { DevState } from '../../dev/state.js';
import { answers, getJson, run } from './clients.js';
import { freePort, ROOT } from './configs.js';
import { MAIN } from './harness.js';
import { isRunning, kill, marked, type Started, start, waitFor } from './processes.js';

let dir: string;
let dev: Started | null = null;
let starts = 0;
const ports: number[] = [];
beforeAll(async () => {
  dir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-e2e-dev-'));
  for (let i = 0; i < 5; i++) ports.push(await freePort());
});
afterAll(async () => {
  const devs = [dev?.pid, state()?.dev.pid].filter(pid => pid !== undefined);
  const left = [...devs, ...parts(), ...marked(dir).map(p => p.pid)];
  for (const pid of left) kill(pid, 'SIGKILL');
  await waitFor('all to be gone', () => left.every(pid => !isRunning(pid)));
  rmSync(dir, { recursive: true, force: true });
});

const state = (): DevState | null => {
  try {
    return JSON.parse(readFileSync(path.join(dir, 'data/dev.json'), 'utf8'));
  } catch {
    return null;
  }
};
const parts = (): number[] => Object.values(state()?.parts ?? {}).map(part => part.pid);
const pidOf = (part: string): number => state()!.parts[part]!.pid;

const OPTIONS = ['--temporal-port', '--ui-port', '--agent-port', '--http-port', '--router-port'];
const options = (): string[] => OPTIONS.flatMap((option, i) => [option, String(ports[i])]);
const url = (port: 'http' | 'router', where: string) =>
  `http://127.0.0.1:${ports[port === 'http' ? 3 : 4]}${where}`;

const args = (): string[] => ['--data-dir', path.join(dir, 'data'), ...options()];
const outFile = (): string => path.join(dir, `dev-${++starts}.out`);
const begin = (...more: string[]): Started =>
  start(process.execPath, [MAIN, 'dev', ...args(), ...more], { logFile: outFile() });
const beginByNpm = (): Started => start('npm', ['start', '--', ...args()], { logFile: outFile(), cwd: ROOT });

/** Starts dev and waits until it has printed what to try. */
async function startDev(how: () => Started = () => begin()): Promise<Started> {
  dev = how();
  const running = dev;
  await waitFor(
    'dev to be ready',
    () => {
      if (!isRunning(running.pid)) throw new Error(`dev ended: ${running.output()}`);
      return running.output().includes('Ctrl-C here stops everything');
    },
    running.output,
  );
  return running;
}

const demo = () => getJson<ReplicaStatus>(url('http', '/v1/replicas/demo'));
const ready = (generation?: number): Promise<ReplicaStatus> =>
  waitFor(`the demo to be ready in generation ${generation ?? 'any'}`, async () => {
    const status = await demo();
    const right = generation === undefined || status?.generation === generation;
    return status?.phase === 'ready' && right ? status : null;
  });
const enginePids = () =>
  marked(dir, 'demo')
    .filter(p => p.kind === 'engine')
    .map(p => p.pid);

async function chat(): Promise<number> {
  const res = await fetch(url('router', '/v1/chat/completions'), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'qwen3-8b', messages: [{ role: 'user', content: 'Hello' }] }),
  });
  await res.text();
  return res.status;
}

it('runs everything by npm start, and prints commands that work when pasted', async () => {
  const { output } = await startDev(beginByNpm);
  expect(output()).toContain('SIMULATED: this machine has no GPU');
  expect((await ready()).generation).toBe(1);
  await waitFor(
    'the model',
    async () => (await getJson<{ data: unknown[] }>(url('router', '/v1/models')))?.data.length,
  );
  const printed = output()
    .split('\n')
    .filter(line => /^ {2}(curl|LLMGW_DATA_DIR=|node )/.test(line))
    .map(line => line.trim());
  const named = (words: string) => printed.find(line => line.includes(words))!;
  const shell = (command: string) => run('sh', ['-c', command]);
  expect((await shell(named('"stream":true'))).stdout).toContain('data: [DONE]');
  expect((await shell(printed[0]!)).stdout).toContain('"chat.completion"');
  expect((await shell(named('query --type status'))).stdout).toContain('ready');
  expect((await shell(named('workflow start'))).code).toBe(0);
  // A start on a running id is refused, not taken without a word.
  expect((await shell(named('workflow start'))).stderr).toContain('already running');
  expect((await shell(named('workflow cancel'))).code).toBe(0);
  await waitFor('the second replica to be gone', () => marked(dir, 'mine').length === 0);
});

it('starts a part again that is killed, and says so with its command line', async () => {
  const before = await ready();
  const router = pidOf('router');
  kill(router, 'SIGKILL');
  await waitFor('the router to be back', async () => {
    const pid = state()?.parts.router?.pid;
    return pid !== undefined && pid !== router && (await answers(url('router', '/readyz')));
  });
  expect(dev!.output()).toMatch(
    /router \(pid \d+\) was ended by SIGKILL; starting it again in 1 s: \S*node .*router --config/,
  );
  expect(await chat()).toBe(200);
  expect((await demo())!.generation).toBe(before.generation);
});

it('is one a data directory: another start names the running one', async () => {
  const second = begin();
  expect(await second.ended).toBe(1);
  expect(second.output()).toContain(
    `llmgw dev (pid ${state()!.dev.pid}) is running on ${path.join(dir, 'data')}`,
  );
  expect(await chat()).toBe(200);
});

it('stops all at Ctrl-C, engines included, and picks the replica up at the next start without counting a failure', async () => {
  const before = await ready();
  const all = [...parts(), ...enginePids()];
  expect(all).toHaveLength(5);
  // As a terminal does it: npm, its script and dev all get the signal.
  kill(-dev!.pid, 'SIGINT');
  // npm ends by the signal itself, but not before dev has ended.
  await dev!.ended;
  expect(all.filter(isRunning)).toEqual([]);
  expect([marked(dir), state()]).toEqual([[], null]);

  const { output } = await startDev();
  expect(output()).toContain('replica/demo is there already and is picked up.');
  const after = await ready(before.generation + 1);
  expect(after.restarts.in_window).toBe(0);
  expect(after.fence).toBeGreaterThan(before.fence!);
  await waitFor('an answer', async () => (await chat()) === 200);
});

it('finds its way after a kill -9 of itself: parts end, the engine goes on and is adopted', async () => {
  const before = await ready();
  const [engine] = enginePids();
  const old = parts();
  kill(dev!.pid, 'SIGKILL');
  await dev!.ended;
  await waitFor('the parts to end with it', () => old.every(pid => !isRunning(pid)));
  expect(enginePids()).toEqual([engine]);

  await startDev();
  const after = await ready();
  expect(after).toMatchObject({
    generation: before.generation,
    fence: before.fence,
    members: [{ pid: engine }],
    restarts: { in_window: 0 },
  });
  expect(enginePids()).toEqual([engine]);
  await waitFor('an answer', async () => (await chat()) === 200);
});

it('ends what a killed dev left running', async () => {
  const before = await ready();
  const old = parts();
  // Parts that are stopped can't notice that their dev is gone.
  for (const pid of old) kill(pid, 'SIGSTOP');
  kill(dev!.pid, 'SIGKILL');
  await dev!.ended;
  const { output } = await startDev();
  expect(output()).toContain('An earlier llmgw dev ended without stopping its parts; ended:');
  expect(old.filter(isRunning)).toEqual([]);
  expect((await ready()).fence).toBe(before.fence);
  kill(dev!.pid, 'SIGTERM');
  expect(await dev!.ended).toBe(0);
  expect(marked(dir)).toEqual([]);
});

let squatter: net.Server | null = null;
afterEach(() => void squatter?.close());

it('names a port that is taken and the option for another one, and leaves nothing behind', async () => {
  squatter = net.createServer();
  await new Promise<void>(resolve => squatter!.listen(ports[4], '127.0.0.1', resolve));
  const refused = begin();
  expect(await refused.ended).toBe(1);
  const said = refused.output().trim().split('\n').at(-1)!;
  expect(said).toContain(`port ${ports[4]} is taken by pid ${process.pid}`);
  expect(said).toContain('choose another with --router-port');
  expect(refused.output()).not.toMatch(/\n\s+at /);
  expect([state(), marked(dir)]).toEqual([null, []]);
});

it('tells of a part that can’t come up with the last lines of its log, and stops the others', async () => {
  writeFileSync(path.join(dir, 'data/pki/proxy-token.key'), 'not a key\n');
  const failed = begin('--no-respawn');
  expect(await failed.ended).toBe(1);
  expect(failed.output()).toMatch(/llmgw dev: server exited with code 1 before it was ready/);
  expect(failed.output()).toContain('proxy-token.key must hold 64 hex digits');
  expect([state(), marked(dir)]).toEqual([null, []]);
});
