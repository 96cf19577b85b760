// From when on a ledger counts the hellos of nodes: from the start of its run, whenever a worker takes its first task.
import { afterAll, beforeAll, expect, test } from 'vitest';
import { FLEET_ID } from '../../contracts/ids.js';
import { SHORT, TestServer } from './harness.js';

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
}, 60_000);
afterAll(() => server?.stop());

test('a hello between the start of the ledger and its first task is told to a ledger that is there', async () => {
  const it = await server.install({ ledger: false });
  // Without a worker the task stays where it is.
  await it.stop();
  await it.fleet.register({ instance: 'cp', queue: it.queue, peer_addr: null, version: '0.0.0' });
  const { startTime } = await it.client.workflow.getHandle(FLEET_ID).describe();
  await it.start(SHORT, 500);
  expect((await it.fleet.ledger()).began_at).toBe(startTime.getTime());
});
