import { MockActivityEnvironment } from '@temporalio/testing';
import { expect, onTestFinished, test, vi } from 'vitest';
import { controlActivities } from '../../activities/control/index.js';
import type { Logger } from '../../lib/log.js';
import type { PeerAnswer } from '../../server/routers.js';
import { RouteHub } from '../../server/routes.js';
import { sdkLogger } from '../../server/worker.js';
import { recordingLog, until } from '../stream/support.js';

function hubWith(outstanding: number): RouteHub {
  const hub = new RouteHub({ pull: async () => ({ version: 1, endpoints: [] }), log: {} as Logger });
  const endpoint = { replica: 'demo', fence: 7, outstanding };
  hub.report('router-1', { version: 1, endpoints: [endpoint] } as never);
  return hub;
}

const drain = { replica: 'demo', fence: 7, version: 1, url: 'http://127.0.0.1:1', timeout_ms: 3_600_000 };
const listeners = (hub: RouteHub) =>
  (hub as unknown as { events: NodeJS.EventEmitter }).events.listenerCount('report');

test('a drain that waits ends when its worker shuts down', async () => {
  const hub = hubWith(1);
  const env = new MockActivityEnvironment();
  const activities = controlActivities({ refreshRoutes: async () => {}, awaitDrained: hub.awaitDrained });
  const waiting = env.run(activities.await_drained, drain).then(
    () => 'done',
    (err: Error) => err.name,
  );
  await until(() => listeners(hub) === 1);
  env.cancel('WORKER_SHUTDOWN');
  expect(await waiting).toBe('CancelledFailure');
  expect(listeners(hub)).toBe(0);
});

test('a drain that waits listens once, however often it looks', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  onTestFinished(() => void vi.useRealTimers());
  const hub = hubWith(1);
  const stop = new AbortController();
  const waiting = hub.awaitDrained(drain, stop.signal).catch(() => 'stopped');
  await vi.advanceTimersByTimeAsync(10_000);
  expect(listeners(hub)).toBe(1);
  stop.abort();
  expect(await waiting).toBe('stopped');
});

test('that a worker has activities only is no warning of the SDK', () => {
  const { log, lines } = recordingLog();
  const sdk = sdkLogger(log);
  sdk.warn('No workflows registered, not polling for workflow tasks');
  sdk.log('WARN', 'No workflows registered, not polling for workflow tasks');
  sdk.warn('something else');
  expect(lines.map(l => l.level)).toEqual([20, 20, 40]);
});

const routerOf = (id: string, version: number, outstanding: number | null, agoMs = 100) => ({
  id,
  version,
  outstanding,
  agoMs,
});

/** A drain at an instance that is up for long, with what the other instances say of their routers. */
function among(peers: () => PeerAnswer[]) {
  let now = 1_000_000;
  const hub = new RouteHub({
    pull: async () => ({ version: 9, endpoints: [] }),
    peers: async () => peers(),
    log: {} as Logger,
    now: () => now,
  });
  const later = (ms: number) => {
    now += ms;
  };
  later(20_000);
  const judge = (timeout_ms = 0) =>
    hub.awaitDrained({ ...drain, version: 9, timeout_ms }, new AbortController().signal);
  const reports = (id: string, version: number, outstanding: number) =>
    hub.report(id, {
      version,
      endpoints: [{ replica: 'demo', fence: 7, outstanding, ok: 0, failed: 0, last_success: null }],
      queued: {},
    });
  return { hub, later, judge, reports };
}

test('a drain waits for routers that report to another instance only', async () => {
  let told = routerOf('router-1', 8, 0);
  const { judge } = among(() => [{ instance: 'cp-b', about: drain, routers: [told] }]);
  expect(await judge()).toMatchObject({ drained: false });
  told = routerOf('router-1', 9, 2);
  expect(await judge()).toEqual({ drained: false, outstanding: 2 });
  told = routerOf('router-1', 9, 0);
  expect(await judge()).toEqual({ drained: true, outstanding: 0 });
});

test('a router that moved to another instance is judged by what it reports there, not by what it left here', async () => {
  const { judge, reports, later } = among(() => [
    { instance: 'cp-b', about: drain, routers: [routerOf('router-1', 9, 0)] },
  ]);
  reports('router-1', 8, 3);
  later(5_000);
  expect(await judge()).toEqual({ drained: true, outstanding: 0 });
});

test('the routers of an instance that has died are waited for until they report here, or for a minute', async () => {
  const { hub, judge, reports, later } = among(() => []);
  hub.heard({
    instance: 'cp-b',
    about: null,
    routers: [routerOf('router-1', 8, null), routerOf('router-2', 8, null)],
  });
  later(3_000);
  expect(await judge()).toMatchObject({ drained: false });
  reports('router-1', 9, 0);
  expect(await judge()).toMatchObject({ drained: false });
  reports('router-2', 9, 0);
  expect(await judge()).toEqual({ drained: true, outstanding: 0 });
});

test('a router that is heard nowhere any more holds a drain up for a minute at most', async () => {
  const { hub, judge, later } = among(() => []);
  hub.heard({ instance: 'cp-b', about: null, routers: [routerOf('router-1', 8, null)] });
  later(59_000);
  expect(await judge()).toMatchObject({ drained: false });
  later(1_500);
  expect(await judge()).toEqual({ drained: true, outstanding: 0 });
});

test('an instance that is up for less than 10 s does not count as drained, whatever one router says', async () => {
  let now = 1_000_000;
  const hub = new RouteHub({
    pull: async () => ({ version: 9, endpoints: [] }),
    log: {} as Logger,
    now: () => now,
  });
  const ask = () => hub.awaitDrained({ ...drain, version: 9, timeout_ms: 0 }, new AbortController().signal);
  const empty = { version: 9, endpoints: [], queued: {} };
  hub.report('router-1', empty);
  now += 9_000;
  expect(await ask()).toMatchObject({ drained: false });
  now += 1_500;
  expect(await ask()).toEqual({ drained: true, outstanding: 0 });
});

test('the age of the table is the time since the ledger was read, not since it changed', async () => {
  let now = 1_000_000;
  let away = false;
  const hub = new RouteHub({
    pull: async () => {
      if (away) throw new Error('Temporal is away');
      return { version: 9, endpoints: [] };
    },
    log: recordingLog().log,
    now: () => now,
  });
  expect(hub.tableAge()).toBeNull();
  await hub.refresh();
  now += 10_000;
  await hub.refresh();
  expect(hub.tableAge()).toBe(0);
  away = true;
  now += 10_000;
  await hub.refresh();
  expect(hub.tableAge()).toBe(10_000);
});
