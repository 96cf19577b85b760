// INV-5: what the janitor tells the ledger is what Temporal positively says, and nothing else.
import { expect, test } from 'vitest';
import type { ClosedMsg, Holders } from '../../contracts/messages.js';
import { Janitor } from '../../server/janitor.js';
import type { LatestRun } from '../../server/runs.js';
import { recordingLog } from '../stream/support.js';

type Grant = Holders['grants'][number];

const grantOf = (replica: string, run_id = `run-${replica}`): Grant => ({
  replica,
  fence: 7,
  run_id,
  first_run_id: `first-${replica}`,
  nodes: ['gpu-a-01'],
});

const closedRun = (replica: string, status: LatestRun['status'] = 'TERMINATED'): LatestRun => ({
  runId: `run-${replica}`,
  firstRunId: `first-${replica}`,
  status,
  closedAt: 1_000,
  startedAt: 500,
});

/** A janitor whose world is the test's: what the ledger holds, which runs are open, what a description says. */
function world(grants: Grant[]) {
  const { log, lines } = recordingLog();
  const w = {
    holders: {
      epoch: 'e1',
      run_id: 'r1',
      continued_run_id: null,
      rebuilding: null as string | null,
      instances: ['cp-1'],
      nodes: ['gpu-a-01'],
      engines: grants.length,
      grants,
    },
    open: new Map<string, string>(),
    latest: new Map<string, LatestRun | Error>(),
    now: 1_000_000,
    sameLedger: true,
    away: false,
    told: [] as ClosedMsg['closed'][],
    asked: [] as string[],
    described: [] as string[],
    lines,
  };
  const janitor = new Janitor({
    holders: async () => {
      if (w.away) throw new Error('Temporal is away');
      return w.holders;
    },
    open: async () => ({ replicas: w.open, nodes: new Set() }),
    latest: async replica => {
      w.described.push(replica);
      const run = w.latest.get(replica) ?? null;
      if (run instanceof Error) throw run;
      return run;
    },
    tellClosed: async ({ closed }) => void w.told.push(closed),
    askAssert: async replica => void w.asked.push(replica),
    onLook: async () => w.sameLedger,
    log,
    now: () => w.now,
  });
  return { w, sweep: () => janitor.sweep() };
}

test.each([
  ['CANCELLED', 'CANCELED'],
  ['TERMINATED', 'TERMINATED'],
  ['COMPLETED', 'COMPLETED'],
  ['FAILED', 'FAILED'],
  ['TIMED_OUT', 'TIMED_OUT'],
] as const)('a replica that holds GPUs and is described as %s is told as closed', async (status, told) => {
  const { w, sweep } = world([grantOf('demo')]);
  w.latest.set('demo', closedRun('demo', status));
  await sweep();
  expect(w.told).toEqual([
    [
      {
        replica: 'demo',
        run_id: 'run-demo',
        first_run_id: 'first-demo',
        status: told,
        closed_at: 1_000,
        started_at: 500,
      },
    ],
  ]);
});

test('INV-5: not found, running, continued as new and unknown tell nothing', async () => {
  const { w, sweep } = world(['none', 'running', 'continued', 'unknown', 'nameless'].map(n => grantOf(n)));
  w.latest.set('running', { ...closedRun('running', 'RUNNING'), closedAt: null });
  w.latest.set('continued', closedRun('continued', 'CONTINUED_AS_NEW'));
  w.latest.set('unknown', closedRun('unknown', 'UNKNOWN'));
  w.latest.set('nameless', { ...closedRun('nameless'), firstRunId: '' });
  await sweep();
  await sweep();
  expect(w.told).toEqual([]);
});

test('INV-5: a description that fails tells nothing of that sweep, also not of the others', async () => {
  const { w, sweep } = world([grantOf('a'), grantOf('b')]);
  w.latest.set('a', closedRun('a'));
  w.latest.set('b', new Error('no answer'));
  await sweep();
  expect(w.told).toEqual([]);
  w.latest.set('b', closedRun('b'));
  await sweep();
  expect(w.told.map(t => t.map(e => e.replica))).toEqual([['a', 'b']]);
});

test('a run that claimed an engine and was closed between two looks is described at once', async () => {
  // Temporal has lost its history: there is no run.
  const { w, sweep } = world([grantOf('demo', '')]);
  await sweep();
  expect([w.described.length, w.told]).toEqual([1, []]);
  w.latest.set('demo', closedRun('demo'));
  w.holders.grants = [grantOf('demo')];
  await sweep();
  expect(w.told).toMatchObject([[{ replica: 'demo', run_id: 'run-demo', status: 'TERMINATED' }]]);
  // And once more, by a run that was closed as fast.
  w.latest.set('demo', { ...closedRun('demo'), runId: 'run-2', firstRunId: 'run-2', closedAt: 2_000 });
  w.holders.grants = [grantOf('demo', 'run-2')];
  await sweep();
  expect(w.told[1]).toMatchObject([{ run_id: 'run-2', closed_at: 2_000 }]);
  await sweep();
  expect(w.described).toHaveLength(3);
});

test('a replica with an open run is not even described', async () => {
  const { w, sweep } = world([grantOf('demo')]);
  w.open.set('demo', 'run-demo');
  await sweep();
  expect([w.described, w.told, w.asked]).toEqual([[], [], []]);
});

test('nothing is told of a ledger that is rebuilt, nor in the look that finds another ledger', async () => {
  const { w, sweep } = world([grantOf('demo')]);
  w.latest.set('demo', closedRun('demo'));
  w.holders.rebuilding = 'it began anew';
  await sweep();
  w.holders.rebuilding = null;
  w.sameLedger = false;
  await sweep();
  expect(w.told).toEqual([]);
  w.sameLedger = true;
  await sweep();
  expect(w.told).toHaveLength(1);
  // That ledger has been told; the next one has not.
  await sweep();
  expect(w.told).toHaveLength(1);
  w.sameLedger = false;
  await sweep();
  w.sameLedger = true;
  await sweep();
  expect(w.told).toHaveLength(2);
});

test('all closed replicas of a sweep go in one signal, which is sent again when one is new or after ten minutes', async () => {
  const { w, sweep } = world([grantOf('a'), grantOf('b')]);
  w.latest.set('a', closedRun('a'));
  w.open.set('b', 'run-b');
  await sweep();
  await sweep();
  expect(w.told.map(t => t.map(e => e.replica))).toEqual([['a']]);
  w.open.delete('b');
  w.latest.set('b', closedRun('b'));
  await sweep();
  await sweep();
  expect(w.told.map(t => t.map(e => e.replica))).toEqual([['a'], ['a', 'b']]);
  w.now += 600_000;
  await sweep();
  expect(w.told).toHaveLength(3);
});

test('a thousand suspects are described in turns, and judged as one when all are known', async () => {
  const names = Array.from({ length: 250 }, (_, i) => `r-${i}`);
  const { w, sweep } = world(names.map(n => grantOf(n)));
  for (const name of names) w.latest.set(name, closedRun(name));
  await sweep();
  expect([w.described.length, w.told.length]).toEqual([100, 0]);
  await sweep();
  expect([w.described.length, w.told.length]).toEqual([200, 0]);
  await sweep();
  expect(w.told.map(t => t.length)).toEqual([250]);
  expect(new Set(w.described).size).toBe(250);
});

test('more closed replicas than fit one signal are told not at all', async () => {
  const names = Array.from({ length: 251 }, (_, i) => `r-${i}`);
  const { w, sweep } = world(names.map(n => grantOf(n)));
  for (const name of names) w.latest.set(name, closedRun(name));
  for (let i = 0; i < 5; i++) await sweep();
  expect(w.told).toEqual([]);
  expect(w.lines.some(l => l.level === 50 && l.msg.includes('INV-5'))).toBe(true);
});

test('a replica that is open under a run unknown to the ledger is asked what it holds, ever more seldom', async () => {
  const { w, sweep } = world([grantOf('demo', 'run-1'), grantOf('same', 'run-same')]);
  w.open.set('demo', 'run-2').set('same', 'run-same');
  const askedAfter = async (ms: number): Promise<number> => {
    w.now += ms;
    await sweep();
    return w.asked.length;
  };
  expect(await askedAfter(0)).toBe(1);
  expect(await askedAfter(30_000)).toBe(1);
  expect(await askedAfter(30_000)).toBe(2);
  expect(await askedAfter(60_000)).toBe(2);
  expect(await askedAfter(60_000)).toBe(3);
  // Another run is another reset.
  w.open.set('demo', 'run-3');
  expect(await askedAfter(1)).toBe(4);
  w.holders.grants = [grantOf('demo', 'run-3')];
  expect(await askedAfter(3_600_000)).toBe(4);
  expect(new Set(w.asked)).toEqual(new Set(['demo']));
});

test('while Temporal is away the janitor says so once and goes on', async () => {
  const { w, sweep } = world([grantOf('demo')]);
  w.latest.set('demo', closedRun('demo'));
  w.away = true;
  await sweep();
  await sweep();
  expect(w.lines.filter(l => l.level === 40)).toHaveLength(1);
  w.away = false;
  await sweep();
  expect(w.told).toHaveLength(1);
});
