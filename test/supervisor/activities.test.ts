import { type ApplicationFailure, CancelledFailure } from '@temporalio/common';
import { MockActivityEnvironment } from '@temporalio/testing';
import { describe, expect, it } from 'vitest';
import { type NodeSupervisor, nodeActivities } from '../../activities/node/index.js';
import { LlmgwError } from '../../contracts/errors.js';
import { orderFor } from './harness.js';

const log = { error() {} };
const order = orderFor('r');
const silent = { log() {}, trace() {}, debug() {}, info() {}, warn() {}, error() {} };
const environment = (attempt = 1) => new MockActivityEnvironment({ attempt }, { logger: silent });
const pending = () => new Promise<never>(() => {});

function supervisor(change: Partial<NodeSupervisor>): NodeSupervisor {
  return {
    prepare: pending,
    spawn: pending,
    launch: pending,
    look: pending,
    adopt: pending,
    awaitReady: pending,
    settled: pending,
    stop: pending,
    check: pending,
    inspect: () => ({ known: false, alive: false, pid: null, highest_fence: null }),
    ...change,
  };
}

const failure = (p: Promise<unknown>): Promise<ApplicationFailure> =>
  p.then(
    () => {
      throw new Error('it succeeded');
    },
    e => e,
  );

describe('a node activity', () => {
  it('gives an error its code as type, and the catalogue says whether it is retried', async () => {
    const held = nodeActivities(
      supervisor({ launch: () => Promise.reject(new LlmgwError('GPU_HELD', 'GPU x is held by a')) }),
      log,
    );
    const a = await failure(environment().run(held.launch, order));
    expect(a).toMatchObject({ type: 'GPU_HELD', message: 'GPU x is held by a', nonRetryable: true });
    const space = nodeActivities(
      supervisor({ prepare: () => Promise.reject(new LlmgwError('NO_SPACE', 'full')) }),
      log,
    );
    const b = await failure(environment().run(space.prepare, order));
    expect(b).toMatchObject({ type: 'NO_SPACE', nonRetryable: false });
    const bug = nodeActivities(supervisor({ spawn: () => Promise.reject(new TypeError('x')) }), log);
    const c = await failure(environment().run(bug.spawn, order));
    expect(c).toMatchObject({ type: 'INTERNAL', nonRetryable: false });
  });

  it('ends await_ready with a failure when a bug of ours has met it six times, and no other order', async () => {
    const bug = () => Promise.reject(new TypeError('x is not a function'));
    const acts = nodeActivities(supervisor({ awaitReady: bug, launch: bug }), log);
    expect(await failure(environment(5).run(acts.await_ready, order))).toMatchObject({ type: 'INTERNAL' });
    expect(await environment(6).run(acts.await_ready, order)).toMatchObject({
      ready: false,
      failure: { code: 'INTERNAL', class: 'retry', sentence: expect.stringContaining('x is not a function') },
    });
    expect(await failure(environment(6).run(acts.launch, order))).toMatchObject({ type: 'INTERNAL' });
  });

  it('goes on with await_ready after any number of attempts that the catalogue can explain', async () => {
    const acts = nodeActivities(
      supervisor({ awaitReady: () => Promise.reject(new LlmgwError('NO_SPACE', 'full')) }),
      log,
    );
    expect(await failure(environment(9).run(acts.await_ready, order))).toMatchObject({ type: 'NO_SPACE' });
  });

  it('hands adoptions and looks to the supervisor, and refuses for good what it refuses', async () => {
    const spawned = { gpus: [], ports: { http: 1 }, mgmt_addr: null, key_id: null, pid: 7, adopted: true };
    const looked = { slots: [0], engine: null };
    const seen: unknown[] = [];
    const acts = nodeActivities(
      supervisor({
        adopt: async o => {
          seen.push(o);
          return spawned;
        },
        look: async p => {
          seen.push(p);
          return looked;
        },
      }),
      log,
    );
    const named = { pid: 7, port: 8_000 };
    expect(await environment().run(acts.adopt, { ...order, process: named })).toEqual(spawned);
    expect(await environment().run(acts.look, named)).toEqual(looked);
    expect(seen).toEqual([{ ...order, process: named }, named]);
    for (const code of ['ADOPT_REFUSED', 'ENGINE_UNKNOWN', 'FENCE_CONFLICT'] as const) {
      const refusing = nodeActivities(
        supervisor({ adopt: () => Promise.reject(new LlmgwError(code, 'why')) }),
        log,
      );
      const refused = failure(environment().run(refusing.adopt, { ...order, process: null }));
      expect(await refused).toMatchObject({ type: code, message: 'why', nonRetryable: true });
    }
  });

  it('heartbeats from the start, with the latest progress', async () => {
    const env = environment();
    const beats: unknown[] = [];
    env.on('heartbeat', d => beats.push(d));
    const ready = { ready: true as const, pid: 1, model_ids: ['m'] };
    const progress = { stage: 'loading weights', percent: 40, at: 't' };
    const acts = nodeActivities(
      supervisor({
        awaitReady: async (_o, onProgress) => {
          onProgress(progress);
          return ready;
        },
      }),
      log,
    );
    expect(await env.run(acts.await_ready, order)).toEqual(ready);
    expect(beats).toEqual([undefined, progress]);
  });

  it('stops watching when await_ready is cancelled', async () => {
    const env = environment();
    const acts = nodeActivities(
      supervisor({
        awaitReady: (_o, _p, signal) =>
          new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
      }),
      log,
    );
    const result = failure(env.run(acts.await_ready, order));
    env.cancel('CANCELLED');
    expect(await result).toBeInstanceOf(CancelledFailure);
  });

  it('tells the supervisor of a wait that the workflow ended, and of no other end of it', async () => {
    for (const [reason, tells] of [
      ['CANCELLED', true],
      ['WORKER_SHUTDOWN', false],
      ['TIMED_OUT', false],
    ] as const) {
      const env = environment();
      const settled: unknown[] = [];
      const acts = nodeActivities(
        supervisor({
          awaitReady: (_o, _p, signal) =>
            new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
          settled: async o => void settled.push(o),
        }),
        log,
      );
      const result = failure(env.run(acts.await_ready, order));
      env.cancel(reason);
      await result;
      expect(settled).toEqual(tells ? [order] : []);
    }
  });

  it('goes on stopping when stop is cancelled', async () => {
    const env = environment();
    let finish: () => void = () => {};
    const done = { proof: 'strong' as const, at: 't', leaked: [] };
    const acts = nodeActivities(
      supervisor({ stop: () => new Promise(resolve => (finish = () => resolve(done))) }),
      log,
    );
    const result = env.run(acts.stop, { ...order, reason: 'cancel' });
    env.cancel('CANCELLED');
    finish();
    expect(await result).toEqual(done);
  });

  it('ends at once, to be tried again, when the agent shuts down', async () => {
    for (const name of ['await_ready', 'launch', 'adopt', 'stop'] as const) {
      const env = environment();
      const acts = nodeActivities(supervisor({}), log);
      const result = failure(
        env.run(acts[name] as (o: unknown) => Promise<unknown>, { ...order, reason: '' }),
      );
      env.cancel('WORKER_SHUTDOWN');
      expect(await result).toMatchObject({ type: 'WORKER_SHUTDOWN', nonRetryable: false });
    }
  });
});
