// A new build takes over workflows that are running: the same code built again, other times, a state with a field more.
import { afterAll, beforeAll, expect, it } from 'vitest';
import { nodeWorkflowId } from '../../contracts/ids.js';
import { facts } from '../domain/fixtures.js';
import { eventually, SHORT, TestServer } from './harness.js';

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server?.stop());

// In front: the bundle ends with its source map in base64, and what follows that is decoded with it wherever the map's
// length (it names the checkout's folder) leaves no padding to stop at.
const sameAgain = (code: string): string => `/* another build of the same */ ${code}`;
/** Every state has a field more, which those of before lack. */
function laterState(code: string): string {
  const changed = code.replaceAll(/\bv: 1,/g, 'v: 1, later_field: "x",');
  if (changed.split('later_field').length < 4) throw new Error('the states are not where they were');
  return changed;
}

it('between tasks and in the middle of a launch: the engine is started once, exits and orders arrive, nothing is lost', {
  timeout: 60_000,
}, async () => {
  const installation = await server.install();
  const node = await installation.node('n1');
  const steady = await installation.startReplica('steady');
  const { fence } = await steady.reaches('ready');
  const launch = node.hold('launch');
  const starting = await installation.startReplica('starting');
  await launch.called;
  await installation.endControlPlane();
  // While no worker is there: an exit, and what nodes say.
  await node.exit('steady', fence!);
  const ledger = installation.ledgerHandle();
  for (let i = 0; i < 10; i++) await ledger.signal('node', facts({ node_id: `other-${i}`, state: 'silent' }));
  await installation.start(SHORT, 500, sameAgain);
  launch.answer({
    gpus: ['GPU-n1-1'],
    ports: { http: 20_001 },
    mgmt_addr: '127.0.0.1',
    key_id: null,
    pid: 4_711,
    adopted: false,
  });
  expect(await steady.reaches('ready', 2)).toMatchObject({ restarts: { in_window: 1 } });
  expect(await starting.reaches('ready')).toMatchObject({ generation: 1 });
  expect(node.countOf('launch')).toBe(3);
  expect(Object.keys((await installation.fleet.ledger()).nodes)).toHaveLength(11);
});

it('under a flood, with tasks that are under way when the old one ends', { timeout: 60_000 }, async () => {
  const installation = await server.install({ times: { ...SHORT, maxSignals: 40 } });
  const node = await installation.node('n1');
  const ledger = installation.ledgerHandle();
  let sent = 0;
  const flood = Promise.all(
    Array.from({ length: 10 }, async () => {
      while (sent < 120) {
        const i = sent++;
        await ledger.signal('node', facts({ node_id: `other-${i}`, state: 'silent' }));
      }
    }),
  );
  const replicas = await Promise.all(['a', 'b', 'c'].map(n => installation.startReplica(n)));
  await eventually(
    () => sent,
    n => n > 30,
    'the flood runs',
  );
  await installation.endControlPlane();
  await installation.start({ ...SHORT, maxSignals: 30, outboxResend: 500 }, 500, sameAgain);
  await flood;
  for (const replica of replicas) await replica.reaches('ready');
  await eventually(
    async () => Object.keys((await installation.fleet.ledger()).nodes).length,
    count => count === 121,
    'every signal of the flood has come to the ledger',
  );
  const { grants } = await installation.fleet.ledger();
  expect(Object.keys(grants)).toHaveLength(3);
  expect(node.countOf('launch')).toBe(3);
});

it('with other times and a field more in each state, and back again', { timeout: 60_000 }, async () => {
  const times = { ...SHORT, maxSignals: 15 };
  const installation = await server.install({ times });
  const node = await installation.node('n1');
  const replica = await installation.startReplica('kept');
  const { fence } = await replica.reaches('ready');
  const handles = [replica.handle, installation.ledgerHandle()];
  handles.push(installation.client.workflow.getHandle(nodeWorkflowId('n1')));
  const runIds = () => Promise.all(handles.map(async h => (await h.describe()).runId));
  /** Until each of them has handed its state to a run of the present build. */
  const continued = async () => {
    const before = await runIds();
    for (let i = 0; i < 20; i++) for (const h of handles) await h.signal('digest', { session: 0 });
    for (let i = 0; i < 20; i++) {
      await installation.fleet.progress('kept', { fence: 1, stage: 'of another time', percent: i });
      await ledgerNoise(i);
    }
    await eventually(runIds, now => now.every((id, i) => id !== before[i]), 'all have continued as new');
  };
  const ledgerNoise = (i: number) =>
    installation.ledgerHandle().signal('node', facts({ node_id: `other-${i}`, state: 'silent' }));
  for (const change of [laterState, sameAgain]) {
    await installation.endControlPlane();
    await installation.start(times, 500, change);
    await continued();
    expect(await replica.status()).toMatchObject({ phase: 'ready', fence, generation: 1 });
    expect((await installation.fleet.node('n1')).state).toBe('connected');
  }
  await node.exit('kept', fence!);
  expect((await replica.reaches('ready', 2)).fence).toBeGreaterThan(fence!);
  await replica.handle.cancel();
  expect((await replica.ended()).status).toBe('CANCELLED');
  await installation.row('n1', r => r.gpus.free === 8, 'is free');
});
