import { MockActivityEnvironment } from '@temporalio/testing';
import { expect, onTestFinished, test, vi } from 'vitest';
import { controlActivities } from '../../activities/control/index.js';
import type { Logger } from '../../lib/log.js';
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
