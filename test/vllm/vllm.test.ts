// A real vLLM, deployed, streamed from, killed in each of its parts, hung and cancelled, by the same path as any other
// engine. One replica through seven generations: each start takes a minute or two.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { isComplete } from '../e2e/clients.js';
import { kill } from '../e2e/processes.js';
import {
  ask,
  type Footprint,
  footprint,
  installReal,
  left,
  openStream,
  type Real,
  sharedMemory,
  spec,
  until,
  untilReady,
  VLLM,
} from './real.js';

describe.skipIf(VLLM === null)('a real vLLM', () => {
  let at: Real;
  let generation = 1;
  let now: Footprint;
  const before = sharedMemory();

  const seconds = (since: number): string => `${((performance.now() - since) / 1000).toFixed(1)} s`;

  /** Does it, waits for the next generation and for nothing of this one to be left. */
  async function next(what: string, act: () => void) {
    const was = now;
    const begun = performance.now();
    act();
    await until('the failure to be known', async () => (await at.status('real'))?.phase !== 'ready');
    const known = seconds(begun);
    await until(
      'all of it to be gone',
      () => left(at, was).length === 0,
      () => left(at, was),
    );
    const gone = seconds(begun);
    const ready = await untilReady(at, ++generation);
    console.log(
      `${what}: known after ${known}, gone after ${gone}, next generation ready after ${seconds(begun)}`,
    );
    console.log(`  ${ready.last_failure!.code}: ${ready.last_failure!.sentence}`);
    now = footprint(at, ready);
    expect((await ask(at, false)).status).toBe(200);
    return ready;
  }

  beforeAll(async () => {
    at = await installReal();
    const begun = performance.now();
    expect(await at.deploy('real', spec)).toMatchObject({ code: 0 });
    now = footprint(at, await untilReady(at, generation));
    console.log(`deployed: ready after ${seconds(begun)}`);
  });
  afterAll(() => at?.close());

  it('streams through the router, whole, and leaves its processes marked', async () => {
    const answer = await ask(at, true);
    expect(answer.status).toBe(200);
    expect(isComplete(answer, true)).toBe(true);
    expect(now.pid('VLLM::EngineCor')).toBeGreaterThan(1);
    expect(now.pid('VLLM::Worker')).toBeGreaterThan(1);
    expect(now.segments.length).toBeGreaterThan(0);
  });

  it('fails when its EngineCore is killed with a stream open, though it exits with 0, and the stream ends', async () => {
    const stream = await openStream(at);
    const ready = await next('EngineCore killed', () => kill(now.pid('VLLM::EngineCor'), 'SIGKILL'));
    expect(ready.last_failure).toMatchObject({ class: 'retry', code: 'ENGINE_FAILED' });
    expect(ready.last_failure!.sentence).toContain('exited with code 0 after it had served');
    console.log(`  the stream: ${await stream.ended}, ${JSON.stringify(stream.text().slice(-200))}`);
  });

  it('fails when its Worker is killed while it is idle', async () => {
    const ready = await next('Worker killed', () => kill(now.pid('VLLM::Worker'), 'SIGKILL'));
    expect(ready.last_failure).toMatchObject({ class: 'retry' });
  });

  it('is cleared of the orphans that a killed API server leaves, and the stream is ended', async () => {
    const stream = await openStream(at);
    const api = (await at.status('real'))!.members[0]!.pid!;
    const ready = await next('API server killed', () => kill(api, 'SIGKILL'));
    expect(ready.last_failure).toMatchObject({ class: 'retry', code: 'ENGINE_FAILED' });
    expect(ready.last_failure!.sentence).toContain('SIGKILL');
    console.log(`  the stream: ${await stream.ended}`);
  });

  it('is found hung when its EngineCore is stopped with a stream open while /health says 200', async () => {
    const stream = await openStream(at);
    const { port } = now;
    const core = now.pid('VLLM::EngineCor');
    const ready = await next('EngineCore stopped', () => {
      kill(core, 'SIGSTOP');
      void fetch(`http://127.0.0.1:${port}/health`).then(r =>
        console.log(`  /health of the hung one: ${r.status}`),
      );
    });
    expect(ready.last_failure).toMatchObject({ class: 'retry', code: 'ENGINE_HUNG' });
    expect(ready.last_failure!.sentence).toContain(`pid ${core}`);
    // Its SIGTERM waits for the stream, and the stream for the core.
    expect(
      at.agent
        .process()
        .records()
        .findLast(r => r.msg === 'engine ended')?.signal,
    ).toBe('SIGKILL');
    console.log(`  the stream: ${await stream.ended}`);
  });

  it('is found hung when its EngineCore is stopped while it is idle', async () => {
    const ready = await next('EngineCore stopped, idle', () => kill(now.pid('VLLM::EngineCor'), 'SIGSTOP'));
    expect(ready.last_failure).toMatchObject({ class: 'retry', code: 'ENGINE_HUNG' });
  });

  it('ends when it is cancelled with a stream open, whether or not its SIGTERM ever ends it, and leaves nothing', async () => {
    const stream = await openStream(at);
    const begun = performance.now();
    expect(await at.ctl('replica', 'stop', 'real')).toMatchObject({ code: 0 });
    expect((await at.closed('real')).status).toBe('CANCELED');
    console.log(`cancelled: closed after ${seconds(begun)}; the stream: ${await stream.ended}`);
    console.log(`  ${JSON.stringify(stream.text().slice(-200))}`);
    // Whether by itself, its stream having been ended first, or by SIGKILL after stop_timeout.
    console.log(
      `  ${
        at.agent
          .process()
          .records()
          .findLast(r => r.msg === 'engine ended')?.signal ?? 'exited'
      }`,
    );
    expect(left(at, now)).toEqual([]);
    expect(sharedMemory().filter(name => !before.includes(name))).toEqual([]);
  });
});
