// A worker that ends by itself, with the SDK replaced: what a real one leaves behind can't be counted.
import { expect, test, vi } from 'vitest';
import { Conditions } from '../../agent/conditions.js';
import { NodeWorker } from '../../agent/worker.js';
import { recordingLog, until } from '../stream/support.js';

const sdk = vi.hoisted(() => ({ opened: 0, closed: 0, ends: [] as (() => void)[] }));

vi.mock('@temporalio/worker', () => ({
  Runtime: { install: () => {} },
  DefaultLogger: class {},
  makeTelemetryFilterString: () => '',
  NativeConnection: {
    connect: async () => {
      sdk.opened += 1;
      return {
        close: async () => {
          sdk.closed += 1;
        },
      };
    },
  },
  Worker: {
    create: async () => {
      let state = 'RUNNING';
      let end: () => void = () => {};
      const ended = new Promise<void>((_, reject) => {
        end = () => {
          state = 'FAILED';
          reject(new Error('it broke'));
        };
      });
      sdk.ends.push(end);
      return { run: () => ended, getState: () => state, shutdown: end };
    },
  },
}));

test('a worker that ends by itself leaves no connection behind, and the next one is started', async () => {
  const { log } = recordingLog();
  const conditions = new Conditions();
  const worker = new NodeWorker({
    config: {
      nodeId: 'gpu-a-01',
      server: { host: '127.0.0.1', port: 1, tls: false },
      tls: null,
      reconnectBaseMs: 1,
      reconnectMaxMs: 5,
    },
    activities: {},
    conditions,
    log,
  });
  const stop = new AbortController();
  const running = worker.run(stop.signal);
  worker.use('default');
  for (let i = 0; i < 3; i += 1) {
    await until(() => sdk.ends[i]);
    sdk.ends[i]?.();
  }
  await until(() => sdk.opened === 4);
  await until(() => sdk.closed === 3);
  stop.abort();
  await running;
  expect(sdk.closed).toBe(sdk.opened);
});
