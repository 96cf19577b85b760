// Two control plane instances on one Temporal, the agent at one and the router at the other, behind balancers as in a
// fleet: what one of them can't do alone goes through the other, and either may die at any moment.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parse, stringify } from 'yaml';
import type { NodeState } from '../../domain/node-state.js';
import { Balancer } from '../fakes/balancer.js';
import { answers, getJson } from './clients.js';
import { freePort, NODE, ROOT } from './configs.js';
import { type Installation, install, MAIN } from './harness.js';
import { type Load, load } from './load.js';
import { isRunning, kill, type Started, start, waitFor } from './processes.js';

const spec = {
  model: 'Qwen/Qwen3-8B',
  served_model_name: 'held',
  engine: 'vllm',
  tensor_parallel: 2,
  // Long enough that a restart always meets answers that are half-way.
  env: { LLMGW_STANDIN_TOKENS: '30', LLMGW_STANDIN_TOKEN_MS: '20' },
};

interface Plane {
  agents: number;
  http: number;
  /** As `ctl --server` wants it. */
  url: string;
  start(): Promise<void>;
  /** kill -9. */
  kill(): Promise<void>;
}

let at: Installation;
let a: Plane;
let b: Plane;
let agents: Balancer;
let https: Balancer;
let second: Started | null = null;

beforeAll(async () => {
  agents = await Balancer.start([]);
  https = await Balancer.start([]);
  const address = `https://127.0.0.1:${agents.port}`;
  at = await install({ without: ['agent', 'router'], agent: { server: address } });
  a = {
    agents: at.ports.agent,
    http: at.ports.http,
    url: `http://127.0.0.1:${at.ports.http}`,
    start: () => at.server.start(),
    kill: async () => void (await at.server.end('SIGKILL')),
  };
  b = await secondPlane();
  await b.start();
  const router = parse(readFileSync(at.files.router, 'utf8')) as object;
  writeFileSync(at.files.router, stringify({ ...router, server: `http://127.0.0.1:${https.port}` }));
  agents.targets = [a.agents, b.agents];
  https.targets = [b.http, a.http];
  await at.agent.start();
  await at.router.start();
  await at.deploy('held', spec);
  await at.untilPhase('held', 'ready');
  await at.untilServed('held');
});

afterAll(async () => {
  if (second !== null) {
    kill(second.pid, 'SIGKILL');
    await second.ended;
  }
  await at?.close();
  agents?.close();
  https?.close();
});

/** The same installation's second instance: the same certificate and secrets, its own ports and state. */
async function secondPlane(): Promise<Plane> {
  const [listen, http] = [await freePort(), await freePort()];
  const file = path.join(at.dir, 'server-b.yaml');
  const config = parse(readFileSync(at.files.server, 'utf8')) as object;
  writeFileSync(
    file,
    stringify({
      ...config,
      listen: `127.0.0.1:${listen}`,
      http_listen: `127.0.0.1:${http}`,
      state_dir: path.join(at.dir, 'server-b'),
    }),
  );
  const url = `http://127.0.0.1:${http}`;
  return {
    agents: listen,
    http,
    url,
    start: async () => {
      const args = [MAIN, 'server', '--config', file];
      const started = start(process.execPath, args, {
        logFile: path.join(at.dir, 'server-b.log'),
        cwd: ROOT,
      });
      second = started;
      await waitFor(
        'the second instance to be ready',
        () => isRunning(started.pid) && answers(`${url}/readyz`),
        () => started.output().slice(-3000),
      );
    },
    kill: async () => {
      kill(second!.pid, 'SIGKILL');
      await second!.ended;
      second = null;
    },
  };
}

const ctl = (plane: Plane, ...args: string[]) => at.llmgw(['ctl', '--server', plane.url, ...args]);

const FOLLOW = (plane: Plane) => [MAIN, 'ctl', '--server', plane.url, 'replica', 'logs', 'held', '-f'];

const follow = (plane: Plane, name: string): Started =>
  start(process.execPath, FOLLOW(plane), { logFile: path.join(at.dir, `${name}.log`), cwd: ROOT });

interface Shown extends Pick<NodeState, 'session'> {
  state: string;
  instance: string;
  last_heartbeat: string | null;
}
const node = (plane: Plane) => getJson<Shown>(`${plane.url}/v1/nodes/${NODE}`);

const instanceOf = (file: string): string => readFileSync(path.join(at.dir, file, 'instance'), 'utf8').trim();

/** The node is connected to that instance, by the word of its workflow. */
const untilAt = (dir: string, asked: Plane): Promise<unknown> =>
  waitFor(`the agent to be at ${dir}`, async () => {
    const shown = await node(asked);
    return shown?.state === 'connected' && shown.instance === instanceOf(dir);
  });

const moreAnswers = async (running: Load): Promise<void> => {
  const already = running.answered();
  await waitFor('further answers', () => running.answered() > already + 4);
};

/** A restart under load: what is half-way ends, what comes meanwhile waits, and routers are what ended the drain. */
async function restarted(through: Plane): Promise<void> {
  const { generation } = (await at.untilPhase('held', 'ready'))!;
  expect(await ctl(through, 'replica', 'restart', 'held')).toMatchObject({ code: 0 });
  const after = await waitFor('the next generation', async () => {
    const status = await getJson<Awaited<ReturnType<Installation['untilPhase']>>>(
      `${through.url}/v1/replicas/held`,
    );
    return status?.phase === 'ready' && status.generation === generation + 1 ? status : null;
  });
  const said = JSON.stringify(after.journal);
  expect(said).not.toContain('drain_timeout');
}

it('shows logs and live figures of a node through the instance that does not hold it', async () => {
  expect(agents.open(b.agents)).toBe(0);
  await waitFor('the agent in the logs', async () => (await node(a))?.instance === instanceOf('server'));
  const shown = await node(b);
  expect(shown).toMatchObject({ state: 'connected', instance: instanceOf('server') });
  expect(shown!.last_heartbeat).not.toBeNull();
  const own = await ctl(a, 'replica', 'logs', 'held');
  const forwarded = await ctl(b, 'replica', 'logs', 'held');
  expect(forwarded.code).toBe(0);
  expect(forwarded.stdout).toContain('vllm');
  expect(forwarded.stdout.slice(0, 500)).toBe(own.stdout.slice(0, 500));
});

it('restarts a replica without a failed request while its router is at the other instance, and its log is followed to its end', async () => {
  const { generation } = await at.untilPhase('held', 'ready');
  const followed = follow(b, 'followed');
  const left = follow(b, 'left');
  const piped = start('/bin/sh', ['-c', '"$0" "$@" | head -n 1', process.execPath, ...FOLLOW(b)], {
    logFile: path.join(at.dir, 'piped.log'),
    cwd: ROOT,
  });
  await waitFor('the log to be followed', () => followed.output() !== '' && left.output() !== '');
  kill(left.pid, 'SIGINT');
  expect(['SIGINT', 130]).toContain(await left.ended);
  expect(left.output()).not.toContain('llmgw:');
  const running = load(at, 'held');
  await moreAnswers(running);
  await restarted(a);
  expect(await followed.ended).toBe(0);
  expect(followed.output()).toMatch(
    new RegExp(`\\[llmgw: generation ${generation} of held has ended \\(exit code \\d+\\)\\]\n$`),
  );
  expect(await piped.ended).toBe(0);
  expect(piped.output().trim().split('\n')).toHaveLength(1);
  await moreAnswers(running);
  expect(await running.stop()).toEqual([]);
});

it('serves through a kill -9 of the instance that holds the agent, which goes on at the other one', async () => {
  const before = await at.untilPhase('held', 'ready');
  const running = load(at, 'held');
  await moreAnswers(running);
  await a.kill();
  await untilAt('server-b', b);
  await moreAnswers(running);
  // The exit of an engine reaches its workflow, and a launch the node: stream and tasks have both moved.
  expect(await ctl(b, 'replica', 'logs', 'held')).toMatchObject({ code: 0 });
  await a.start();
  expect(await running.stop()).toEqual([]);
  expect(await at.untilPhase('held', 'ready')).toMatchObject({
    generation: before.generation,
    fence: before.fence,
    members: before.members,
  });
});

it('serves through a kill -9 of the instance that has both, and drains right afterwards by what the router tells the other', async () => {
  // Both are at the second one now.
  await untilAt('server-b', a);
  const running = load(at, 'held');
  await moreAnswers(running);
  await b.kill();
  await restarted(a);
  await untilAt('server', a);
  await moreAnswers(running);
  expect(await running.stop()).toEqual([]);
});

it('stops a replica through the one instance while the other is down', async () => {
  expect(await ctl(a, 'replica', 'stop', 'held')).toMatchObject({ code: 0 });
  expect(await at.closed('held')).toMatchObject({ status: 'CANCELED' });
  await waitFor('the engine to be gone', () => at.engines('held').length === 0);
});
