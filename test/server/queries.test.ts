// Queries of a workflow whose task is pending: Temporal keeps one and refuses the rest as it refuses a flood, and they
// are asked again soon. Checked on the real server, whose words are what tells the two apart.
import { Client, Connection } from '@temporalio/client';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { findTemporal } from '../../dev/temporal-binary.js';
import { soonerForQueries } from '../../server/temporal.js';

const RESOURCE_EXHAUSTED = 8;

let env: TestWorkflowEnvironment;
beforeAll(async () => {
  const { path } = await findTemporal();
  env = await TestWorkflowEnvironment.createLocal({
    server: {
      executable: { type: 'existing-path', path },
      log: { format: 'pretty', level: 'never' },
    },
  });
}, 60_000);
afterAll(() => env?.teardown());

const refusal = (details: string) => ({ code: RESOURCE_EXHAUSTED, details, metadata: undefined as never });

test('what Temporal says to a second query of a pending task is asked again soon, a rate limit is not', async () => {
  const connection = await Connection.connect({ address: env.address, interceptors: [] });
  try {
    const client = new Client({ connection });
    const start = { workflowId: 'busy', taskQueue: 'nobody-polls', args: [], signal: 's', signalArgs: [] };
    await client.workflow.signalWithStart('any', start);
    const ask = () =>
      connection
        .withDeadline(Date.now() + 5_000, () => client.workflow.getHandle('busy').query('status'))
        .then(
          () => null,
          err => err.cause as { code: number; details: string },
        );
    const refused = await Promise.race([ask(), ask()]);
    expect(refused?.code).toBe(RESOURCE_EXHAUSTED);
    const { delayFunction, retryableDecider } = soonerForQueries(() => 1);
    const busy = refusal(refused?.details ?? '');
    for (const attempt of [0, 5, 50]) {
      expect(retryableDecider(attempt, busy)).toBe(true);
      expect(delayFunction(attempt, busy)).toBeLessThanOrEqual(150);
    }
    const flood = refusal('namespace rate limit exceeded');
    expect(delayFunction(1, flood)).toBeGreaterThan(1_000);
    expect(retryableDecider(50, flood)).toBe(false);
  } finally {
    await connection.close();
  }
});
