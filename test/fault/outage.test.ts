// Every part killed and away for a while, alone and together, while a client sends 50 requests a second: no request
// fails but what a killed router had in flight, and afterwards everything is as it was (INV-5). Then the exits that
// nobody could hear: each reaches its workflow, once, with its evidence (INV-10).
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Service } from '../e2e/harness.js';
import { isRunning, kill, waitFor } from '../e2e/processes.js';
import { type Failed, PER_SECOND } from './load.js';
import { AWAY_S, LONG } from './seed.js';
import {
  deployed,
  enginesOf,
  expectCalm,
  expectUntouched,
  moreAnswers,
  pidOf,
  served,
  type World,
  world,
} from './world.js';

let w: World;
beforeAll(async () => {
  w = await world({ secondRouter: true });
  await deployed(w, 'held', { tensor_parallel: 2 });
});
afterAll(() => w?.close());

type Part = 'server' | 'temporal' | 'agent' | 'router';
const PARTS: Part[] = ['temporal', 'server', 'agent', 'router'];
const PAIRS = PARTS.flatMap((a, n) => PARTS.slice(n + 1).map(b => [a, b]));
/** In `npm test` each part alone is test/e2e/outlive.test.ts. */
const SETS: Part[][] = LONG ? [...PARTS.map(p => [p]), ...PAIRS, PARTS] : [PARTS];

/** The parts are killed at once; what was in flight at a killed router is all that may fail. */
async function away(parts: Part[]): Promise<{ gone: number }> {
  const services = parts.map((part): Service => w.at[part]);
  for (const s of services) kill(s.pid(), 'SIGKILL');
  await Promise.all(services.map(s => s.process().ended));
  return { gone: performance.now() };
}

/** Temporal first, as a host would start them; whoever is started before it waits for it. */
async function back(parts: Part[]): Promise<void> {
  for (const part of ['temporal', 'server'] as const) if (parts.includes(part)) await w.at[part].start();
  const rest = parts.filter(part => part === 'agent' || part === 'router');
  await Promise.all(rest.map(part => w.at[part].start()));
}

const inFlight = (failed: Failed[], gone: number): Failed[] =>
  failed.filter(f => f.router !== w.routers[0]!.url || f.began > gone);

for (const parts of SETS) {
  it(`while away: ${parts.join(', ')}, no request fails, and nothing is changed afterwards`, {
    timeout: 120_000 + AWAY_S * 3000,
  }, async () => {
    const before = await w.at.untilPhase('held', 'ready');
    const running = w.load(['held']);
    await moreAnswers(running);
    const { gone } = await away(parts);
    for (let second = 0; second < AWAY_S; second++) await moreAnswers(running, PER_SECOND);
    await back(parts);
    await moreAnswers(running);
    const failed = await running.stop();
    expect(parts.includes('router') ? inFlight(failed, gone) : failed).toEqual([]);
    await expectUntouched(w, 'held', before);
    await expectCalm(w);
    const node = Object.values(await w.at.nodes())[0]!;
    expect(node.gpus).toMatchObject({ held: 2, leaked: 0, foreign: 0 });
    expect((await w.ledger()).exits).toEqual([]);
  });
}

const UNHEARD: Part[] = ['agent', 'server', 'temporal'];
const EXITS: Part[][] = LONG ? [...UNHEARD.map(p => [p]), ['agent', 'temporal'], UNHEARD] : [UNHEARD];

for (const parts of EXITS) {
  it(`while away: ${parts.join(', ')}, an engine’s exit is kept, and reaches its workflow once, with its evidence`, {
    timeout: 120_000,
  }, async () => {
    const before = await w.at.untilPhase('held', 'ready');
    const pid = pidOf(before);
    await away(parts);
    kill(pid, 'SIGKILL');
    await waitFor('the engine to be gone', () => !isRunning(pid));
    await back(parts);
    const next = await w.at.untilPhase('held', 'ready', before.generation + 1);
    expect(next.fence).toBeGreaterThan(before.fence!);
    expect(next.restarts.in_window).toBe(before.restarts.in_window + 1);
    expect(next.last_failure!.sentence).toContain('SIGKILL');
    const logs = await w.at.ctl('replica', 'logs', 'held', '--generation', String(before.generation));
    expect(logs.stdout).toContain(`pid=${pid}`);
    await served(w, 'held');
    const running = w.load(['held']);
    await moreAnswers(running);
    expect(await running.stop()).toEqual([]);
    expect(enginesOf(w, 'held').map(p => p.pid)).toEqual([pidOf(next)]);
    // Once: whatever was sent again has been dropped, and nothing more comes of it.
    const told = (await w.at.history('held'))
      .map(
        e =>
          e.workflowExecutionSignaledEventAttributes as
            | { signalName: string; input: { payloads: { data: string }[] } }
            | undefined,
      )
      .filter(s => s?.signalName === 'engine_event')
      .map(s => JSON.parse(Buffer.from(s!.input.payloads[0]!.data, 'base64').toString()))
      .filter(e => e.fence === before.fence);
    expect(told.length).toBeGreaterThan(0);
    expect(new Set(told.map(e => e.seq))).toEqual(new Set([told[0].seq]));
    expect((await w.at.untilPhase('held', 'ready')).generation).toBe(before.generation + 1);
  });
}

it('goes on with everything: another replica is started, served and stopped, and nothing is left', async () => {
  await deployed(w, 'after');
  for (const name of ['after', 'held']) {
    expect((await w.at.ctl('replica', 'stop', name)).code).toBe(0);
    expect((await w.at.closed(name)).status).toBe('CANCELED');
  }
  expect(w.at.engines()).toEqual([]);
  await waitFor('all GPUs to be free', async () => (await w.at.nodes())[0]?.gpus.held === 0);
  expect((await w.ledger()).grants).toEqual({});
});
