// Whatever a driver answers, the inventory has its shape and the agent lives.
import fc from 'fast-check';
import { afterAll, expect, it } from 'vitest';
import { Inventory } from '../../contracts/inventory.js';
import { hardware, helper, NO_SMI } from '../native/source.js';
import { driver, type Scenario } from '../native/standin.js';

const nvml = helper();
afterAll(() => nvml.close());

/** All but those without which there is no driver at all. */
const FUNCTIONS = [
  'nvmlSystemGetDriverVersion',
  'nvmlDeviceGetHandleByIndex_v2',
  'nvmlDeviceGetName',
  'nvmlDeviceGetUUID',
  'nvmlDeviceGetPciInfo_v3',
  'nvmlDeviceGetMemoryInfo_v2',
  'nvmlDeviceGetMemoryInfo',
  'nvmlDeviceGetCudaComputeCapability',
  'nvmlDeviceGetMigMode',
  'nvmlDeviceGetMaxMigDeviceCount',
  'nvmlDeviceGetMigDeviceHandleByIndex',
  'nvmlDeviceGetAttributes_v2',
  'nvmlDeviceGetEccMode',
  'nvmlDeviceGetTotalEccErrors',
  'nvmlDeviceGetRemappedRows',
  'nvmlDeviceGetFieldValues',
  'nvmlDeviceGetGpuFabricInfoV',
  'nvmlDeviceGetGpuFabricInfo',
  'nvmlDeviceGetVirtualizationMode',
  'nvmlDeviceGetNumaNodeId',
  'nvmlDeviceGetComputeMode',
  'nvmlDeviceGetComputeRunningProcesses_v3',
  'nvmlDeviceGetNvLinkState',
  'nvmlDeviceGetNvLinkRemoteDeviceType',
  'nvmlDeviceGetNvLinkRemotePciInfo_v2',
  'nvmlDeviceGetP2PStatus',
  'nvmlDeviceRegisterEvents',
];
const FIGURES = [
  'total',
  'free',
  'used',
  'reserved',
  'mig',
  'mig_pending',
  'ecc',
  'ecc_uncorrected',
  'recovery',
];
const MORE = ['virt', 'numa', 'compute_mode'];
const LISTS = ['remap', 'fabric', 'p2p', 'link0', 'link1', 'link17', 'process0', 'process1'];
const TEXTS = ['uuid', 'name', 'bus', 'cc', 'cluster', 'mig0', 'mig6'];

const code = fc.oneof(fc.integer({ min: 0, max: 30 }), fc.constantFrom(999, -1, 2 ** 31 - 1, 12_345));
const number = fc.oneof(
  fc.integer({ min: 0, max: 3 }),
  fc.constantFrom('0xffffffffffffffff', '0xffffffff', '0x8000000000000000', '0x7fffffff', '-1'),
);
/** Any bytes: no UTF-8, no end mark. */
const bytes = fc
  .uint8Array({ maxLength: 120 })
  .map(data => [...data].map(byte => `\\x${byte.toString(16).padStart(2, '0')}`).join(''));
const gpu = fc.integer({ min: 0, max: 4 });

const line: fc.Arbitrary<[string, string | number]> = fc.oneof(
  fc.tuple(fc.constantFrom(...FUNCTIONS), code).map(([name, c]): [string, number] => [`${name}.return`, c]),
  fc
    .tuple(gpu, fc.constantFrom(...FUNCTIONS), code)
    .map(([g, name, c]): [string, number] => [`gpu${g}.${name}.return`, c]),
  fc
    .tuple(gpu, fc.constantFrom(...FIGURES, ...MORE), number)
    .map(([g, name, n]): [string, string | number] => [`gpu${g}.${name}`, n]),
  fc
    .tuple(gpu, fc.constantFrom(...LISTS), fc.array(number, { maxLength: 6 }))
    .map(([g, name, n]): [string, string] => [`gpu${g}.${name}`, n.join(' ')]),
  fc
    .tuple(gpu, fc.constantFrom(...TEXTS), bytes)
    .map(([g, name, text]): [string, string] => [`gpu${g}.${name}`, text]),
  gpu.map((g): [string, number] => [`gpu${g}.name.raw`, 1]),
  gpu.map((g): [string, number] => [`gpu${g}.uuid.raw`, 1]),
  fc.tuple(fc.constantFrom('driver', 'nvml'), bytes).map(([name, text]): [string, string] => [name, text]),
);
const scenario: fc.Arbitrary<Scenario> = fc
  .tuple(fc.integer({ min: 0, max: 5 }), fc.array(line, { maxLength: 25 }))
  .map(([count, lines]) => ({ count, ...Object.fromEntries(lines) }));

it('has the right shape over any driver', async () => {
  await fc.assert(
    fc.asyncProperty(scenario, scenario, async (first, second) => {
      const node = hardware({ nvml, smi: NO_SMI });
      for (const driverNow of [first, second]) {
        driver.set(driverNow);
        const { snapshot, islands, driver_version, ...inventory } = await node.inventory();
        const { gpus } = Inventory.pick({ gpus: true, conditions: true, source: true }).parse({
          ...inventory,
          gpus: inventory.gpus.map(each => ({ ...each, foreign_mib: null })),
        });
        expect(inventory.source).toBe('nvml');
        expect(gpus.length).toBeGreaterThanOrEqual(Number(driverNow.count));
        const uuids = gpus.map(each => each.uuid);
        expect(new Set(uuids).size).toBe(uuids.length);
        for (const each of gpus) {
          expect(each.usable).toBe(each.reason === null);
          expect(each.memory_total_mib ?? 1).toBeGreaterThanOrEqual(0);
        }
        for (const island of islands) {
          expect(island.length).toBeGreaterThan(1);
          expect(uuids).toEqual(expect.arrayContaining(island));
        }
        expect(snapshot!.gpus.map(each => each.uuid).sort()).toEqual([...uuids].sort());
        expect((await node.snapshot()).gpus.map(each => each.uuid).sort()).toEqual([...uuids].sort());
        expect(driver_version === null || driver_version.length > 0).toBe(true);
      }
    }),
    { numRuns: 60 },
  );
});
