// Updates that meet a workflow which continues as new, and a worker on a machine that was stopped for a while.
import type { Client } from '@temporalio/client';
import { compileWorkerOptions } from '@temporalio/worker/lib/worker-options.js';
import { expect, test } from 'vitest';
import { updated } from '../../server/answer.js';
import { ONE_TASK } from '../../server/worker.js';

const NOT_TAKEN = 'Unable to perform workflow execution update due to unexpected workflow task failure.';

/** A client whose updates fail so often with that gRPC status; tells the ids under which they were asked. */
function failing(times: number, code: number, details: string): { client: Client; ids: string[] } {
  const ids: string[] = [];
  const executeUpdate = async (_: string, { updateId }: { updateId: string }) => {
    ids.push(updateId);
    if (ids.length <= times)
      throw Object.assign(new Error('Workflow Update failed'), { cause: { code, details } });
    return 'done';
  };
  const client = {
    connection: { withDeadline: (_: number, call: () => Promise<unknown>) => call() },
    workflow: { getHandle: () => ({ executeUpdate }) },
  };
  return { client: client as unknown as Client, ids };
}

test('an update whose task was dropped by a continue-as-new is asked again as the same one', async () => {
  const { client, ids } = failing(2, 9, NOT_TAKEN);
  expect(await updated(client, 'fleet', 'brake', [{}])).toBe('done');
  expect(ids).toHaveLength(3);
  expect(new Set(ids).size).toBe(1);
});

test('any other failure of an update is told, and so is one that stays', async () => {
  const refused = failing(1, 9, 'the namespace is not active');
  await expect(updated(refused.client, 'fleet', 'brake', [{}])).rejects.toThrow('Workflow Update failed');
  expect(refused.ids).toHaveLength(1);
  const stays = failing(1_000, 9, NOT_TAKEN);
  await expect(updated(stays.client, 'fleet', 'brake', [{}], 120)).rejects.toThrow('Workflow Update failed');
  expect(stays.ids.length).toBeGreaterThan(1);
});

test('what the SDK goes on trying for ever is told in time, and that it is Temporal that does not answer', async () => {
  const client = {
    connection: { withDeadline: (_: number, call: () => Promise<unknown>) => call() },
    workflow: { getHandle: () => ({ executeUpdate: () => new Promise(() => {}) }) },
  };
  await expect(updated(client as unknown as Client, 'replica/demo', 'restart', [], 20)).rejects.toMatchObject(
    {
      code: 'UNAVAILABLE',
      message: expect.stringContaining('Temporal or its worker is down or behind'),
    },
  );
});

test('a task of a workflow that takes long on the clock does not end the process: the SDK takes our time for it', () => {
  const logger = { log() {}, trace() {}, debug() {}, info() {}, warn() {}, error() {} };
  const metrics = {
    createCounter: () => ({}),
    createHistogram: () => ({}),
    createGauge: () => ({}),
    withTags: () => metrics,
  };
  const options = { taskQueue: 'llmgw', workflowBundle: { code: '' }, ...ONE_TASK };
  const compiled = compileWorkerOptions(options, logger, metrics as never);
  expect(compiled.isolateExecutionTimeoutMs).toBe(600_000);
});
