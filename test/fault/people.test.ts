// What people do in Temporal's UI, with a client at 50 requests a second throughout: workflows are started anew over
// running ones, reset to an earlier point, terminated; entities are terminated under load; at last the whole database is
// gone. No engine that serves is stopped for any of it, none runs twice, and what nobody speaks for is shown and can be
// taken over (INV-1, INV-5).
import { spawn } from 'node:child_process';
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import { answers } from '../e2e/clients.js';
import { freePort, NODE, ROOT } from '../e2e/configs.js';
import { isRunning, kill, waitFor } from '../e2e/processes.js';
import type { Load } from './load.js';
import { LONG } from './seed.js';
import {
  deployed,
  enginesOf,
  expectCalm,
  expectOneHolder,
  expectUntouched,
  moreAnswers,
  patiently,
  pidOf,
  served,
  spec,
  stopped,
  type World,
  world,
} from './world.js';

let w: World;
let running: Load;
let strangers: number[] = [];
const before: Record<string, ReplicaStatus> = {};

beforeAll(async () => {
  w = await world({ nodes: { 'gpu-b-01': 2 } });
  for (const name of ['held', 'other', 'doomed'])
    before[name] = await deployed(w, name, { placement: { nodes: [NODE] } });
  running = w.load(['held', 'other']);
});
afterAll(async () => {
  await running?.stop();
  for (const pid of strangers) kill(pid, 'SIGKILL');
  await w?.close();
});

/** `over`: ends the running one for it. */
const started = (name: string, over = false): Promise<void> =>
  w.startAgain(name, over ? ['--id-conflict-policy', 'TerminateExisting'] : ['--fail-existing']);

/** The same engine serves under a run that has taken it over. */
async function expectClaimed(name: string): Promise<void> {
  const pid = pidOf(before[name]!);
  await waitFor(
    `replica/${name} to have its engine`,
    async () => {
      const status = await w.at.status(name);
      return status?.phase === 'ready' && status.members[0]?.pid === pid;
    },
    async () => await w.at.status(name),
  );
  await moreAnswers(running);
  expect(running.failed()).toEqual([]);
  expect(enginesOf(w, name).map(p => p.pid)).toEqual([pid]);
  before[name] = await w.at.untilPhase(name, 'ready');
}

it('claims the engine when the workflow is started over the running one', async () => {
  await started('held', true);
  await expectClaimed('held');
});

it('claims the engine when the workflow is terminated and started again', async () => {
  await w.workflow('terminate', 'replica/other');
  await started('other');
  await expectClaimed('other');
});

it('claims the engine when the workflow is reset to its beginning', async () => {
  await w.workflow('reset', 'replica/held', '--event-id', '4', '--reason', 'somebody tries it');
  await expectClaimed('held');
});

it('starts a new engine for a replica that was cancelled and started at once', async () => {
  await w.workflow('cancel', 'replica/doomed');
  await waitFor('the start to be taken', () =>
    started('doomed').then(
      () => true,
      () => false,
    ),
  );
  const next = await w.at.untilPhase('doomed', 'ready');
  expect(pidOf(next)).not.toBe(pidOf(before.doomed!));
  expect(next.fence).toBeGreaterThan(before.doomed!.fence!);
  expect(enginesOf(w, 'doomed').map(p => p.pid)).toEqual([pidOf(next)]);
  before.doomed = next;
});

it('rebuilds a ledger that was terminated under load: engines that crash, replicas that start and stop', async () => {
  await deployed(w, 'crashing', { placement: { nodes: ['gpu-b-01'] } });
  const crashed = pidOf(await w.at.untilPhase('crashing', 'ready'));
  await Promise.all([
    w.workflow('terminate', 'fleet'),
    w.at.deploy('starting', spec({ served_model_name: 'starting' })),
    w.workflow('cancel', 'replica/doomed'),
    (async () => kill(crashed, 'SIGKILL'))(),
  ]);
  await w.at.untilPhase('starting', 'ready');
  await w.at.untilPhase('crashing', 'ready', 2);
  expect((await w.at.closed('doomed')).status).toBe('CANCELED');
  for (const name of ['held', 'other']) await expectUntouched(w, name, before[name]!);
  await expectOneHolder(w);
  for (const name of ['starting', 'crashing']) {
    expect((await w.at.ctl('replica', 'stop', name)).code).toBe(0);
    expect((await w.at.closed(name)).status).toBe('CANCELED');
    expect(w.at.engines(name)).toEqual([]);
  }
  await moreAnswers(running);
  expect(running.failed()).toEqual([]);
  await patiently(async () => expect(Object.keys((await w.ledger()).grants)).toHaveLength(2));
  await expectOneHolder(w);
});

it.runIf(LONG)(
  'rebuilds a ledger that was reset to its beginning, which is told again what is long over',
  {
    timeout: 240_000,
  },
  async () => {
    await w.workflow('reset', 'fleet', '--type', 'FirstWorkflowTask', '--reason', 'somebody tries it');
    await deployed(w, 'later');
    await stopped(w, 'later');
    // What it was told of replicas that are closed by now ends with the janitor's next look.
    await patiently(async () => expect(Object.keys((await w.ledger()).grants)).toHaveLength(2));
    for (const name of ['held', 'other']) await expectUntouched(w, name, before[name]!);
    await expectOneHolder(w);
    await moreAnswers(running);
    expect(running.failed()).toEqual([]);
  },
);

it.runIf(LONG)(
  'stops the engine of a terminated replica, and takes a terminated node’s hello again',
  async () => {
    await deployed(w, 'ended');
    await w.workflow('terminate', 'replica/ended');
    await w.workflow('terminate', `node/${NODE}`);
    await waitFor(
      'the engine to be gone',
      () => w.at.engines('ended').length === 0,
      () => w.at.server.process().output().slice(-3000),
    );
    await w.untilNode(NODE, 'connected');
    await waitFor('the node’s workflow to be back', async () => {
      const { stdout } = await w.at.temporalCli(
        'workflow',
        'describe',
        '--workflow-id',
        `node/${NODE}`,
        '--output',
        'json',
      );
      return JSON.parse(stdout).workflowExecutionInfo.status === 'WORKFLOW_EXECUTION_STATUS_RUNNING';
    });
    await waitFor('its GPUs to be free', async () => (await w.node(NODE))?.gpus.held === 2);
    for (const name of ['held', 'other']) await expectUntouched(w, name, before[name]!);
  },
);

it('keeps engines whose whole Temporal is gone, shows them, and hands them over with `replica adopt`', {
  timeout: 120_000,
}, async () => {
  await w.newTemporal();
  let last: unknown;
  await waitFor(
    'the engines to be shown as unclaimed',
    async () => {
      const fleet = await w
        .fleet()
        .catch(err => ({ error: String(err), rebuilding: 'x', unclaimed: [] as { replica: string }[] }));
      last = fleet;
      return (
        fleet.rebuilding === null &&
        fleet.unclaimed
          .map(u => u.replica)
          .toSorted()
          .join() === 'held,other'
      );
    },
    () => [last, w.at.server.process().output().slice(-4000)],
  );
  await moreAnswers(running);
  expect(running.failed()).toEqual([]);
  const shown = await w.at.ctl('fleet');
  expect(shown.stdout).toContain('held');
  expect((await w.at.ctl('nodes')).stdout).toContain('llmgw ctl fleet');

  for (const name of ['held', 'other']) {
    const { pid, ports } = before[name]!.members[0]!;
    const at = ['--node', NODE, '--pid', String(pid), '--port', String(ports.http)];
    const adopted = await w.at.ctl(
      'replica',
      'adopt',
      name,
      ...at,
      '-f',
      path.join(w.at.dir, `${name}.json`),
    );
    expect(adopted).toMatchObject({ code: 0, stderr: '' });
    await expectClaimed(name);
  }
  await expectCalm(w);
  await expectOneHolder(w);
});

it('adopts an engine that somebody started by hand, and stops it as its own', async () => {
  const port = await freePort();
  const slot = 5;
  const gpus = path.join(w.at.dir, 'gpus');
  const args = [
    'serve',
    'by/hand',
    '--served-model-name',
    'stranger',
    '--host',
    '127.0.0.1',
    '--port',
    String(port),
  ];
  const child = spawn(path.join(ROOT, 'bin/llmgw-standin-vllm.mjs'), args, {
    cwd: w.at.dir,
    stdio: 'ignore',
    detached: true,
    env: { PATH: process.env.PATH, CUDA_VISIBLE_DEVICES: String(slot), LLMGW_STANDIN_GPU_DIR: gpus },
  });
  strangers = [child.pid!];
  await waitFor('it to serve', () => answers(`http://127.0.0.1:${port}/health`));
  const file = w.at.file('stranger.json', spec({ model: 'by/hand', served_model_name: 'stranger', env: {} }));
  const at = ['--node', NODE, '--pid', String(child.pid), '--port', String(port)];
  expect(await w.at.ctl('replica', 'adopt', 'stranger', ...at, '-f', file)).toMatchObject({
    code: 0,
    stderr: '',
  });
  const status = await w.at.untilPhase('stranger', 'ready');
  expect(status.members[0]).toMatchObject({ node: NODE, pid: child.pid });
  await served(w, 'stranger');
  expect((await w.at.chat('stranger')).status).toBe(200);
  await expectOneHolder(w);
  expect((await w.at.ctl('replica', 'stop', 'stranger')).code).toBe(0);
  expect((await w.at.closed('stranger')).status).toBe('CANCELED');
  await waitFor('it to be gone', () => !isRunning(child.pid!));
  await waitFor('its GPU to be free', async () => (await w.node(NODE))?.gpus.held === 2);
});

it('leaves nothing behind, and no request has failed in all of this', async () => {
  await moreAnswers(running);
  expect(await running.stop()).toEqual([]);
  for (const name of ['held', 'other']) {
    expect((await w.at.ctl('replica', 'stop', name)).code).toBe(0);
    expect((await w.at.closed(name)).status).toBe('CANCELED');
  }
  expect(w.at.engines()).toEqual([]);
  expect((await w.ledger()).grants).toEqual({});
});
