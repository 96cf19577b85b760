// A router whose `server` names several control plane instances: one name with two addresses.
import type { LookupAddress } from 'node:dns';
import { expect, it } from 'vitest';
import type { RouteTable } from '../../contracts/routes.js';
import { silentLogger } from '../../lib/log.js';
import { Addresses } from '../../lib/resolve.js';
import { ControlPlane } from '../../router/control-plane.js';
import { Reports } from '../../router/reports.js';
import { TableWatch } from '../../router/table.js';
import { TableStore } from '../../router/table-store.js';
import { FakeControlPlane } from '../fakes/router-control-plane.js';
import { until } from '../stream/support.js';
import { cleanup, endpoint, tempDir, using } from './harness.js';

const ADDRESSES = ['127.0.0.1', '127.0.0.2'];
const both = async (): Promise<LookupAddress[]> => ADDRESSES.map(address => ({ address, family: 4 }));

async function twoInstances(): Promise<[FakeControlPlane, FakeControlPlane]> {
  const a = await using(FakeControlPlane.start(0, ADDRESSES[0]));
  const b = await using(FakeControlPlane.start(a.port, ADDRESSES[1]));
  return [a, b];
}

/** What of a router follows the control plane. */
function follow(port: number) {
  const log = silentLogger();
  const control = new ControlPlane({
    server: `http://planes.test:${port}`,
    tokenFile: null,
    caFile: null,
    resolve: both,
  });
  const tables: RouteTable[] = [];
  const report = () => ({ version: watch.version ?? 0, endpoints: [], queued: {} });
  // Seldom: what is seen at a new instance was sent because of the move.
  const reports = new Reports(control, 'router-1', report, log, 600_000);
  const watch = new TableWatch({
    control,
    store: new TableStore(tempDir(), 'x', log),
    log,
    times: { silence: 300, backoffBase: 5, backoffMax: 20, lag: 30_000 },
    onTable: table => void tables.push(table),
    onConnected: () => reports.moved(),
  });
  watch.start();
  cleanup(async () => {
    await reports.close();
    await watch.close();
  });
  return { watch, reports, tables };
}

/** The one that is watched first, whichever it is. */
async function sorted(planes: [FakeControlPlane, FakeControlPlane]) {
  await until(() => planes.some(p => p.watching > 0));
  const [first, second] = planes[0].watching > 0 ? planes : [planes[1], planes[0]];
  return { first, second } as { first: FakeControlPlane; second: FakeControlPlane };
}

it('follows and reports to one instance, and after its death to the other one, at once', async () => {
  const planes = await twoInstances();
  const breath = setInterval(() => planes.forEach(p => void p.breathe()), 50);
  cleanup(() => clearInterval(breath));
  const router = follow(planes[0].port);
  const { first, second } = await sorted(planes);
  await until(() => first.reports.length > 0);
  router.reports.now();
  router.reports.now();
  await until(() => first.reports.length > 1);
  expect(second.asked).toEqual([]);
  await first.kill();
  await until(() => second.watching > 0 && second.reports.length > 0);
  second.set([endpoint('http://127.0.0.1:1')], 5);
  await until(() => router.watch.version === 5);
});

it('leaves an instance that has gone silent for the other one', async () => {
  const planes = await twoInstances();
  const router = follow(planes[0].port);
  const { first, second } = await sorted(planes);
  // No sign of life: `silence` passes.
  const breath = setInterval(() => second.breathe(), 50);
  cleanup(() => clearInterval(breath));
  await until(() => second.watching > 0);
  expect(second.reports.length).toBeGreaterThan(0);
  expect(router.watch.connected).toBe(true);
  await until(() => first.watching === 0);
});

it('keeps the newer table at an instance that lags behind the ledger, and goes back where one has just read it', async () => {
  const planes = await twoInstances();
  const [a, b] = planes;
  const breath = setInterval(() => planes.forEach(p => void p.breathe()), 20);
  cleanup(() => clearInterval(breath));
  for (const p of planes) p.set([endpoint('http://127.0.0.1:1')], 9);
  const { watch } = follow(a.port);
  const { first, second } = await sorted([a, b]);
  await until(() => watch.version === 9);
  second.age = 120;
  second.set([endpoint('http://127.0.0.1:2')], 8);
  await first.kill();
  await until(() => second.watching > 0);
  const now = Date.now;
  cleanup(() => {
    Date.now = now;
  });
  // Patience with a lower version is over, and it is asked again and again.
  Date.now = () => now() + 60_000;
  const asked = second.asked.length;
  await until(() => second.asked.length > asked + 3);
  expect(watch.version).toBe(9);
  second.age = 0;
  await until(() => watch.version === 8);
});

it('tries the addresses of a name in turn: the one in use first, those that were left last, an address as it is', async () => {
  const order = async (a: Addresses) => (await a.order()).map(x => x.address);
  const found = ['10.0.0.1', '10.0.0.2', '10.0.0.3'].map(address => ({ address, family: 4 }));
  const six = { address: 'fd00::1', family: 6 };
  let random = 0;
  const name = new Addresses(
    'planes.test',
    async () => [...found, six],
    () => random++,
  );
  expect(await order(name)).toEqual(['10.0.0.1', '10.0.0.2', '10.0.0.3', 'fd00::1']);
  name.use('10.0.0.2');
  expect((await order(name))[0]).toBe('10.0.0.2');
  name.leave('10.0.0.2');
  name.leave('10.0.0.1');
  expect(await order(name)).toEqual(['10.0.0.3', 'fd00::1', '10.0.0.2', '10.0.0.1']);
  expect(await order(new Addresses('10.9.9.9'))).toEqual(['10.9.9.9']);
});
