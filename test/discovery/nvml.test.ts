// GPUs by NVML, through the helper process and the stand-in library: what a driver says, and what the agent makes of it.
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest';
import { faultOfEvent } from '../../agent/discovery/xid.js';
import { Gpu } from '../../contracts/inventory.js';
import { EVENTS } from '../../native/codes.js';
import { buildStandin } from '../../scripts/lib/nvml-standin.mjs';
import { hardware, helper } from '../native/source.js';
import { driver, linked, tempDir, uuidOf } from '../native/standin.js';

/** One process for all tests that need no other. */
const shared = helper();
afterAll(() => shared.close());
const source = () => hardware({ nvml: shared });

function own(opts: Parameters<typeof helper>[0] = {}) {
  const nvml = helper(opts);
  onTestFinished(() => nvml.close());
  return nvml;
}

const ALL: [number, number][] = [0, 1, 2, 3].flatMap(a =>
  [0, 1, 2, 3].filter(b => b > a).map((b): [number, number] => [a, b]),
);

describe('a healthy node', () => {
  it('has every figure of every GPU, and one island over its switches', async () => {
    driver.set({
      count: 4,
      ...linked(ALL, 4, 'switch'),
      'gpu0.fabric': '3 0 7 1',
      'gpu0.cluster': '0123456789abcdef0123456789abcdef',
      'gpu1.numa': 2,
      'gpu0.process0': `4711 ${100 * 2 ** 20}`,
      'gpu0.process1': '4712 na',
    });
    const node = source();
    const { gpus, islands, conditions, driver_version, snapshot, ...rest } = await node.inventory();
    expect({ driver_version, source: rest.source, islands, conditions }).toEqual({
      driver_version: '580.95.05',
      source: 'nvml',
      islands: [[0, 1, 2, 3].map(uuidOf)],
      conditions: [],
    });
    expect(gpus[0]).toEqual({
      index: 0,
      uuid: uuidOf(0),
      name: 'NVIDIA H100 80GB HBM3',
      pci_bus_id: '00000000:18:00.0',
      memory_total_mib: 81_559,
      memory_free_mib: 81_004,
      compute_capability: '9.0',
      mig: false,
      usable: true,
      reason: null,
      health: {
        ecc: true,
        ecc_uncorrected: 0,
        remapped_rows: { corrected: 0, uncorrected: 0, pending: false, failure: false },
        recovery_action: 'none',
        fabric: { state: 'Completed', clique: '0123456789abcdef0123456789abcdef.7' },
        numa_node: null,
      },
    });
    for (const gpu of gpus) Gpu.parse({ ...gpu, foreign_mib: null });
    expect(snapshot!.gpus[0]).toMatchObject({
      memory_used_mib: 4,
      processes: [
        { pid: 4711, used_mib: 100 },
        { pid: 4712, used_mib: null },
      ],
    });
    // Its memory is the host's pages, which stay used when a program has ended.
    expect(snapshot!.gpus[1]).toMatchObject({ memory_used_mib: null, processes: [] });
    expect(await node.snapshot()).toEqual(snapshot);
  });

  it('is read with what an older library has', async () => {
    const without = [
      'nvmlDeviceGetMemoryInfo_v2',
      'nvmlDeviceGetComputeRunningProcesses_v3',
      'nvmlDeviceGetGpuFabricInfoV',
      'nvmlDeviceGetNumaNodeId',
      'nvmlDeviceGetP2PStatus',
      'nvmlDeviceGetFieldValues',
      'nvmlEventSetWait_v2',
    ];
    driver.set({
      count: 4,
      ...linked(
        [
          [0, 1],
          [2, 3],
        ],
        4,
        'direct',
      ), // prettier-ignore
      'gpu0.fabric': '2 0 0 0',
      'gpu2.fabric': '1 0 0 0',
      'gpu2.link0': '0 0 x',
      'gpu0.process0': `1 ${2 ** 20}`,
    });
    const { gpus, islands, snapshot } = await hardware({
      nvml: own({ library: buildStandin({ without }) }),
    }).inventory();
    expect(gpus[0]).toMatchObject({ memory_total_mib: 81_559, usable: true });
    expect(gpus[0]!.health).toMatchObject({
      recovery_action: null,
      fabric: { state: 'In Progress' },
      numa_node: null,
    });
    // The first version of the figure holds what the driver reserves.
    expect(snapshot!.gpus[0]).toMatchObject({ memory_used_mib: 555, processes: [{ pid: 1, used_mib: 1 }] });
    // By the places that the links lead to; a link that is down leads nowhere.
    expect(islands).toEqual([[uuidOf(0), uuidOf(1)]]);
    expect(gpus[2]).toMatchObject({
      usable: false,
      reason: expect.stringContaining('fabric is not up (Not Started)'),
    });
  });

  it('is read by the second version of the fabric call where the third is not known', async () => {
    driver.set({ count: 1, fabric_v2_only: 1, 'gpu0.fabric': '3 0 1 0' });
    expect((await source().inventory()).gpus[0]!.health!.fabric).toMatchObject({ state: 'Completed' });
  });
});

describe('NVLink', () => {
  it.each<[string, [number, number][], number, number[][]]>([
    [
      'bridged pairs',
      [
        [0, 2],
        [1, 3],
      ],
      4,
      [
        [0, 2],
        [1, 3],
      ],
    ],
    [
      'the hybrid cube mesh',
      [
        [0, 1],
        [0, 2],
        [0, 3],
        [0, 4],
        [1, 2],
        [1, 3],
        [1, 5],
        [2, 3],
        [2, 6],
        [3, 7],
        [4, 5],
        [4, 6],
        [4, 7],
        [5, 6],
        [5, 7],
        [6, 7],
      ],
      8,
      [
        [0, 1, 2, 3],
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
        [4, 5, 6, 7],
      ],
    ],
  ])('%s are maximal sets of linked pairs', async (_, pairs, count, expected) => {
    driver.set({ count, ...linked(pairs, count, 'direct') });
    const { islands } = await source().inventory();
    expect(islands).toEqual(expected.map(island => island.map(uuidOf)));
  });

  it('leaves out a GPU whose links are down, in MIG mode or lost, and tells of a one-sided one', async () => {
    const down = Object.fromEntries([0, 1, 2, 3].map(link => [`gpu3.link${link}`, '0 2 x']));
    const six: [number, number][] = [...ALL, ...[0, 1, 2, 3].map((a): [number, number] => [a, 5])];
    driver.set({ count: 6, ...linked(six, 6, 'switch'), ...down, 'gpu2.mig': 1, 'gpu5.p2p': '0 5 0 0 0' });
    const { islands, conditions } = await source().inventory();
    expect(islands).toEqual([[0, 1].map(uuidOf), [0, 5].map(uuidOf)]);
    expect(conditions.map(({ code }) => code)).toContain('gpu_nvlink_broken');
  });
});

describe('a GPU that is not well', () => {
  it('keeps its place with the reason, whatever the driver answers', async () => {
    driver.set({
      count: 12,
      'gpu0.nvmlDeviceGetHandleByIndex_v2.return': 15,
      'gpu1.nvmlDeviceGetHandleByIndex_v2.return': 4,
      'gpu2.nvmlDeviceGetMemoryInfo_v2.return': 999,
      'gpu3.nvmlDeviceGetTotalEccErrors.return': 16,
      'gpu4.recovery': 1,
      'gpu5.remap': '0 1 1 0',
      'gpu6.remap': '0 1 0 1',
      'gpu7.fabric': '2 0 0 0',
      'gpu8.fabric': '3 999 0 0',
      'gpu9.compute_mode': 2,
      'gpu10.mig': 1,
      'gpu10.mig2': 'MIG-5c89852c 9984 MIG 1g.10gb',
      'gpu11.nvmlDeviceGetUUID.return': 999,
    });
    const { gpus, conditions } = await source().inventory();
    const said = gpus.map(({ index, usable, reason, fatal }) => [index, usable, fatal ?? false, reason]);
    expect(said).toEqual([
      [0, false, true, 'the driver has lost it (reboot the node)'],
      [1, false, false, expect.stringContaining('insufficient permissions')],
      [2, false, false, 'the driver reports an unknown error'],
      [3, false, true, 'it requires a reset'],
      [4, false, true, expect.stringContaining('recovery action (reset): reset it: nvidia-smi --gpu-reset')],
      [5, false, false, expect.stringContaining('reset it when its engines have ended')],
      [6, false, true, expect.stringContaining('have it replaced')],
      [
        7,
        false,
        false,
        expect.stringContaining('fabric is not up (In Progress): start nvidia-fabricmanager'),
      ],
      [8, false, true, expect.stringContaining('fabric has failed')],
      [9, false, false, expect.stringContaining('Prohibited')],
      [10, false, false, 'MIG mode'],
      [11, false, false, 'the driver reports an unknown error'],
    ]);
    expect(gpus[0]!.uuid).toBe('unknown-0');
    expect(gpus[10]!.mig_instances).toEqual([
      { uuid: 'MIG-5c89852c', name: 'MIG 1g.10gb', memory_mib: 9_984 },
    ]);
    expect(conditions).toEqual([]);
  });

  it('is usable without a figure that the driver does not offer or keeps for root, but not without its memory', async () => {
    driver.set({
      count: 3,
      'gpu0.nvmlDeviceGetMemoryInfo_v2.return': 3,
      'gpu1.nvmlDeviceGetMemoryInfo_v2.return': 4,
      'gpu2.nvmlDeviceGetComputeRunningProcesses_v3.return': 4,
    });
    const { gpus, conditions, snapshot } = await source().inventory();
    expect(gpus.map(gpu => [gpu.usable, gpu.memory_total_mib])).toEqual([
      [false, null],
      [false, null],
      [true, 81_559],
    ]);
    expect(gpus[0]!.reason).toContain("its memory can't be read");
    expect(snapshot!.gpus.map(gpu => [gpu.memory_used_mib, gpu.processes])).toEqual([
      [null, []],
      [null, []],
      [4, null],
    ]);
    expect(conditions.map(({ code }) => code)).toEqual(['gpu_no_permission', 'gpu_no_permission']);
  });

  it('has the memory of the host only where it is known to have none of its own', async () => {
    driver.set({ count: 1, 'gpu0.name': 'NVIDIA GB10', 'gpu0.nvmlDeviceGetMemoryInfo_v2.return': 3 });
    const { gpus, conditions, snapshot } = await source().inventory();
    expect(gpus[0]).toMatchObject({ memory_kind: 'unified', usable: true });
    expect(gpus[0]!.memory_total_mib).toBeGreaterThan(0);
    expect(snapshot!.gpus[0]!.memory_used_mib).toBeNull();
    expect(conditions[0]).toMatchObject({ code: 'gpu_unified_memory' });
  });

  it('is a whole one for the guest that has a slice of it', async () => {
    driver.set({ count: 1, 'gpu0.virt': 2, 'gpu0.mig': 1, 'gpu0.name': 'NVIDIA H100L-2-24C' });
    const { gpus } = await source().inventory();
    expect(gpus[0]).toMatchObject({ usable: true, virtual: true, mig: null });
  });

  it('is unclear when two have one UUID', async () => {
    driver.set({ count: 2, 'gpu1.uuid': uuidOf(0) });
    const { gpus } = await source().inventory();
    expect(gpus.map(gpu => [gpu.uuid, gpu.usable])).toEqual([
      ['unknown-0', false],
      ['unknown-1', false],
    ]);
  });

  it('has a list of processes of any length, and none where their pids are of another namespace', async () => {
    const many = Object.fromEntries(
      Array.from({ length: 300 }, (_, i) => [`gpu0.process${i}`, `${i + 10} 1048576`]),
    );
    driver.set({ count: 2, ...many, 'gpu1.process0': '0 1048576' });
    const { gpus } = await source().snapshot();
    expect(gpus[0]!.processes).toHaveLength(300);
    expect(gpus[1]!.processes).toBeNull();
  });
});

describe('a GPU that was there', () => {
  it('stays when it is lost, by its own name, and when the driver counts one less', async () => {
    driver.set({ count: 3 });
    const node = source();
    await node.inventory();
    driver.set({ count: 3, 'gpu1.nvmlDeviceGetHandleByIndex_v2.return': 15 });
    expect((await node.inventory()).gpus[1]).toMatchObject({
      uuid: uuidOf(1),
      name: 'NVIDIA H100 80GB HBM3',
      usable: false,
      fatal: true,
      memory_free_mib: null,
      reason: 'the driver has lost it (reboot the node)',
    });
    expect((await node.snapshot()).gpus[1]).toMatchObject({
      uuid: uuidOf(1),
      usable: false,
      processes: null,
    });
    driver.set({ count: 2 });
    const once = [(await node.inventory()).gpus[2]!, node.again()!.gpus[2]!];
    expect(once.map(gpu => [gpu.usable, gpu.fatal ?? false])).toEqual(once.map(() => [false, false]));
    expect((await node.inventory()).gpus[2]).toMatchObject({
      uuid: uuidOf(2),
      usable: false,
      fatal: true,
      reason: expect.stringContaining('it has fallen off the bus'),
    });
    expect((await node.snapshot()).gpus[2]).toMatchObject({ uuid: uuidOf(2), usable: false });
    driver.set({ count: 3 });
    expect((await node.inventory()).gpus.map(gpu => gpu.usable)).toEqual([true, true, true]);
  });

  it('is not taken for gone by a driver that lists none at all', async () => {
    driver.set({ count: 2 });
    const node = source();
    await node.inventory();
    driver.set({ count: 0 });
    await node.inventory();
    const { gpus, conditions } = await node.inventory();
    expect(gpus.map(gpu => [gpu.usable, gpu.fatal ?? false])).toEqual([
      [false, false],
      [false, false],
    ]);
    expect(conditions).toMatchObject([{ code: 'gpu_none_found' }]);
    expect((await node.snapshot()).gpus.map(gpu => gpu.usable)).toEqual([false, false]);
  });

  it('stays over a restart of the agent, until another is in its place', async () => {
    driver.set({ count: 2 });
    const workDir = tempDir();
    await hardware({ nvml: shared, workDir }).inventory();
    driver.set({ count: 1 });
    const again = hardware({ nvml: shared, workDir });
    await again.inventory();
    expect((await again.inventory()).gpus[1]).toMatchObject({
      uuid: uuidOf(1),
      usable: false,
      reason: expect.stringContaining('gpus.json'),
    });
    driver.set({ count: 2, 'gpu1.uuid': 'GPU-new' });
    expect((await again.inventory()).gpus.map(gpu => [gpu.uuid, gpu.usable])).toEqual([
      [uuidOf(0), true],
      ['GPU-new', true],
    ]);
  });

  it('is not offered when uncorrectable errors grow, until it is reset', async () => {
    driver.set({ count: 1, 'gpu0.ecc_uncorrected': 3 });
    const node = source();
    const first = await node.inventory();
    expect(first.gpus[0]!.usable).toBe(true);
    expect(first.conditions).toMatchObject([{ code: 'gpu_ecc' }]);
    driver.set({ count: 1, 'gpu0.ecc_uncorrected': 4 });
    expect((await node.inventory()).gpus[0]).toMatchObject({
      usable: false,
      fatal: true,
      reason: expect.stringContaining('new uncorrectable memory errors'),
    });
    driver.set({ count: 1, 'gpu0.ecc_uncorrected': 0 });
    expect((await node.inventory()).gpus[0]!.usable).toBe(true);
  });
});

describe('what the driver tells by itself', () => {
  // It would hear it too, and so would the sources of the tests before.
  beforeAll(() => shared.close());

  it('makes a GPU unusable at once for a critical Xid, without a look, and not for a fault of a program', async () => {
    driver.set({ count: 2, events_known: 10 });
    const workDir = tempDir();
    const nvml = own();
    const node = hardware({ nvml, workDir });
    await node.inventory();
    await node.snapshot(); // by then its events are registered for
    let news = 0;
    node.onNews(() => void news++);
    driver.set({ count: 2, event0: '0 8 31', event1: '1 8 79', event2: '1 8 45' });
    await vi.waitFor(() => expect(news).toBe(1));
    expect(node.again()!.gpus.map(gpu => [gpu.usable, gpu.fatal ?? false, gpu.reason])).toEqual([
      [true, false, null],
      [false, true, 'Xid 79: it has fallen off the bus (reboot the node)'],
    ]);
    expect((await node.snapshot()).gpus[1]).toMatchObject({ usable: false });

    // Kept over the agent's restart, where the driver still asks for something; over a reboot it is not.
    driver.set({ count: 2, 'gpu1.recovery': 'na' });
    const [same, rebooted] = ['boot-1', 'boot-2'].map(bootId => hardware({ nvml, workDir, bootId }));
    expect((await same!.inventory()).gpus[1]).toMatchObject({ usable: false, fatal: true });
    expect((await rebooted!.inventory()).gpus[1]).toMatchObject({ usable: true });
  });

  it('keeps engines where the Xid leaves them well, until a fatal one comes', async () => {
    for (const data of [63, 74, 94])
      expect(faultOfEvent({ uuid: uuidOf(0), type: EVENTS.XID, data })).toMatchObject({ fatal: false });
    driver.set({ count: 1, events_known: 10, 'gpu0.ecc_uncorrected': 0 });
    const node = hardware({ nvml: own() });
    await node.inventory();
    await node.snapshot(); // by then its events are registered for
    let news = 0;
    node.onNews(() => void news++);
    // A contained error is counted as well: that it shows in the figure is no second fault.
    driver.set({ count: 1, 'gpu0.ecc_uncorrected': 1, event0: '0 8 94' });
    await vi.waitFor(() => expect(news).toBe(1));
    const { usable, fatal, reason } = (await node.inventory()).gpus[0]!;
    expect({ usable, fatal, reason }).toMatchObject({
      usable: false,
      fatal: undefined,
      reason: expect.stringContaining('Xid 94'),
    });
    driver.set({ count: 1, event0: '0 8 94', event1: '0 8 79' });
    await vi.waitFor(() => expect(news).toBe(2));
    expect(node.again()!.gpus[0]).toMatchObject({ fatal: true, reason: expect.stringContaining('Xid 79') });
  });

  it('is looked for when it may have changed more than a fault', async () => {
    driver.set({ count: 1 });
    const node = hardware({ nvml: own() });
    await node.inventory();
    await node.snapshot(); // by then its events are registered for
    const news = new Promise<void>(resolve => node.onNews(resolve));
    driver.set({ count: 1, event0: '0 0x8000 1', 'gpu0.recovery': 2 });
    await news;
    expect((await node.inventory()).gpus[0]).toMatchObject({
      usable: false,
      reason: expect.stringContaining('reboot'),
    });
  });
});
