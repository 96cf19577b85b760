import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { NvidiaSmi } from '../../agent/discovery/nvidia-smi.js';
import { BASE_FIELDS } from '../../agent/discovery/smi-gpus.js';
import { SmiSource } from '../../agent/discovery/smi-source.js';
import { matrix, row, TableSmi, wide } from './fake-smi.js';

let dir: string;
let smi: TableSmi;
let source: SmiSource;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'llmgw-smi-'));
  smi = new TableSmi();
  writeFileSync(join(dir, 'meminfo'), 'MemTotal:       131072000 kB\nMemAvailable:   120586240 kB\n');
  source = fresh();
});
afterEach(() => rmSync(dir, { recursive: true }));

/** Only the program isn't real here; that is NvidiaSmi's, below, and gpu-cases.test.ts's. */
const fresh = () => new SmiSource('smi', smi as unknown as NvidiaSmi, join(dir, 'meminfo'));
const codes = (conditions: { code: string }[]) => conditions.map(condition => condition.code);
const PAIR = { lines: [row(0), row(1)], topo: { text: matrix(2, 'NV18') } };

describe('the inventory', () => {
  it('has every GPU with its figures and islands', async () => {
    const [a, b] = [0, 1].map(index =>
      wide(index, { compute_cap: '9.0', 'mig.mode.current': 'Disabled', 'fabric.state': 'Completed' }),
    );
    smi.set({ fields: a!.fields, lines: [a!.line, b!.line], topo: { text: matrix(2, 'NV18') } });
    const { source: name, driver_version, gpus, islands, conditions } = await source.inventory();
    expect({ name, driver_version, islands, conditions }).toEqual({
      name: 'nvidia-smi',
      driver_version: '580.95.05',
      islands: [['GPU-0', 'GPU-1']],
      conditions: [],
    });
    expect(gpus[1]).toEqual({
      index: 1,
      uuid: 'GPU-1',
      name: 'NVIDIA H100 80GB HBM3',
      pci_bus_id: '00000000:19:00.0',
      memory_total_mib: 81_559,
      memory_free_mib: 81_555,
      compute_capability: '9.0',
      mig: false,
      usable: true,
      reason: null,
    });
  });

  it('keeps a sick GPU in its place, with the reason', async () => {
    const lost = { total: '[GPU is lost]', used: '[GPU is lost]', free: '[GPU is lost]' };
    smi.set({
      lines: [row(0), row(1, lost), row(2, { used: 'ERR!' })],
      code: 15,
      topo: { text: matrix(3, 'SYS') },
    });
    const { gpus, conditions } = await source.inventory();
    expect(gpus.map(gpu => [gpu.index, gpu.usable, gpu.memory_total_mib, gpu.fatal ?? false])).toEqual([
      [0, true, 81_559, false],
      [1, false, null, true],
      [2, false, 81_559, false],
    ]);
    expect(gpus[1]!.reason).toBe('the driver has lost it (reboot the node)');
    expect(codes(conditions)).toEqual(['gpu_lost']);
  });

  it('does not offer a card whose memory is not told: nothing could prove its release', async () => {
    smi.set({ lines: [row(0, { total: '[N/A]', used: '[N/A]', free: '[N/A]' })] });
    expect((await source.inventory()).gpus[0]).toMatchObject({
      usable: false,
      reason: expect.stringContaining("its memory can't be read"),
      memory_total_mib: null,
    });
  });

  it.each<[Record<string, string>, string | null, boolean]>([
    [{ 'mig.mode.current': 'Enabled' }, 'MIG mode', false],
    [{ 'fabric.state': 'In Progress', 'fabric.status': 'N/A' }, 'fabric is not up (In Progress)', false],
    [
      { 'fabric.state': 'Completed', 'fabric.status': 'Unknown Error' },
      'fabric has failed (Unknown Error)',
      true,
    ],
    [{ 'fabric.state': 'Completed', 'fabric.status': 'Success' }, null, false],
    [{ 'fabric.state': 'Not Supported', 'fabric.status': '[N/A]' }, null, false],
    [{ compute_mode: 'Prohibited' }, 'compute mode is Prohibited', false],
    [{ compute_mode: 'Exclusive_Process' }, null, false],
    [{ 'utilization.gpu': '[GPU requires reset]' }, 'requires a reset', true],
    [{ 'temperature.gpu': '[Unknown Error]' }, null, false],
    [{ 'temperature.gpu': '[Unknown Error]', 'utilization.gpu': '[Unknown Error]' }, 'unknown error', false],
    [{ gpu_recovery_action: 'Reset' }, 'recovery action (Reset)', true],
    [{ gpu_recovery_action: 'Drain P2P' }, 'recovery action (Drain P2P)', false],
    [{ gpu_recovery_action: 'None', 'remapped_rows.failure': 'No' }, null, false],
    [{ 'remapped_rows.pending': 'Yes' }, 'at its next reset', false],
    [{ 'retired_pages.pending': 'Yes' }, 'at its next reset', false],
    [{ 'remapped_rows.failure': 'Yes' }, 'could not be remapped', true],
  ])('judges %j', async (cells, reason, fatal) => {
    const { fields, line } = wide(0, cells);
    smi.set({ fields, lines: [line] });
    const gpu = (await source.inventory()).gpus[0]!;
    expect({ usable: gpu.usable, fatal: gpu.fatal ?? false }).toEqual({ usable: reason === null, fatal });
    if (reason !== null) expect(gpu.reason).toContain(reason);
    expect((await source.snapshot()).gpus[0]).toMatchObject({ usable: reason === null, reason: gpu.reason });
  });

  it.each<[Record<string, string>, string]>([
    [{ 'mig.mode.current': 'Disabled', 'mig.mode.pending': 'Enabled' }, 'gpu_mig_pending'],
    [{ 'ecc.errors.uncorrected.volatile.total': '2' }, 'gpu_ecc'],
  ])('tells of %j, and offers the GPU', async (cells, code) => {
    const { fields, line } = wide(0, cells);
    smi.set({ fields, lines: [line] });
    const { gpus, conditions } = await source.inventory();
    expect({ usable: gpus[0]!.usable, codes: codes(conditions) }).toEqual({ usable: true, codes: [code] });
  });

  it('lists what a GPU in MIG mode is split into', async () => {
    const { fields, line } = wide(0, { 'mig.mode.current': 'Enabled' });
    const list = `GPU 0: NVIDIA H100 (UUID: GPU-0)\n  MIG 1g.10gb     Device  0: (UUID: MIG-aa)\n  MIG 3g.40gb     Device  1: (UUID: MIG-GPU-0/5/0)\n`;
    smi.set({ fields, lines: [line], list });
    expect((await source.inventory()).gpus[0]).toMatchObject({
      mig: true,
      mig_instances: [
        { name: '1g.10gb', uuid: 'MIG-aa' },
        { name: '3g.40gb', uuid: 'MIG-GPU-0/5/0' },
      ],
    });
  });

  it.each([
    ['NVIDIA GB10', '[N/A]', 128_000],
    ['NVIDIA GB10', '[Not Supported]', 128_000],
    ['NVIDIA Thor', '512', 128_000],
    ['NVIDIA Thor', '125772', 125_772],
    ['NVIDIA GH200 480GB', '97871', 97_871],
    ['NVIDIA GB10', '[Insufficient Permissions]', null],
    ['NVIDIA H100 80GB HBM3', '[N/A]', null],
    ['NVIDIA H100 80GB HBM3', '0', null],
  ])('%s that says %s has %s MiB', async (name, total, wanted) => {
    smi.set({ lines: [row(0, { name, total, used: '[N/A]', free: '[N/A]' })] });
    const gpu = (await source.inventory()).gpus[0]!;
    expect(gpu.memory_total_mib).toBe(wanted);
    expect(gpu.memory_kind === 'unified').toBe(wanted === 128_000);
    expect(gpu.memory_free_mib).toBe(wanted === 128_000 ? 117_760 : null);
  });

  it('does not take what the host uses for what engines hold', async () => {
    smi.set({ lines: [row(0, { name: 'NVIDIA Thor', total: '512', used: '300', free: '212' })] });
    expect((await source.snapshot()).gpus[0]!.memory_used_mib).toBeNull();
    expect((await source.inventory()).gpus[0]!.memory_free_mib).toBe(117_760);
  });

  it.each([
    ['NVIDIA A40-48Q', true],
    ['GRID M60-2B4', true],
    ['A100-1-5CME', true],
    ['NVIDIA A100-PCIE-40GB', undefined],
    ['Tesla V100-SXM2-16GB', undefined],
  ])('%s is virtual: %s', async (name, virtual) => {
    smi.set({ lines: [row(0, { name })] });
    expect((await source.inventory()).gpus[0]!.virtual).toBe(virtual);
  });
});

describe('GPUs that go', () => {
  it('keeps one that vanishes as unusable and fatal', async () => {
    smi.set(PAIR);
    await source.inventory();
    smi.set({ lines: [row(0)] });
    expect((await source.inventory()).gpus[1]).toMatchObject({
      uuid: 'GPU-1',
      usable: false,
      fatal: true,
      reason: expect.stringContaining('no longer lists it'),
    });
    expect((await source.snapshot()).gpus[1]).toMatchObject({
      usable: false,
      memory_used_mib: null,
      processes: null,
    });
  });

  it('knows the one that the sentence is about by its address', async () => {
    smi.set(PAIR);
    await source.inventory();
    const line = 'Unable to determine the device handle for GPU0000:19:00.0: Unknown Error';
    smi.set({ lines: [row(0), line], code: 15 });
    const { gpus, conditions } = await source.inventory();
    expect(gpus[1]).toMatchObject({ usable: false, fatal: true, reason: expect.stringContaining('lost') });
    expect(codes(conditions)).toEqual(['gpu_lost']);
  });

  it('asks for each alone where the lost one fails the whole command', async () => {
    const sentence =
      'Unable to determine the device handle for GPU 0000:19:00.0: GPU is lost.  Reboot the system';
    const alone = { 0: { line: row(0) }, 1: { line: sentence, code: 15 }, 2: { line: row(2) } };
    smi.set({ lines: [sentence], code: 15, alone, topo: { text: sentence, code: 15 } });
    const { gpus, driver_version, conditions } = await source.inventory();
    expect(gpus.map(gpu => [gpu.index, gpu.usable])).toEqual([
      [0, true],
      [2, true],
    ]);
    expect(driver_version).toBe('580.95.05');
    expect(codes(conditions)).toEqual(['gpu_lost', 'gpu_topology_unknown']);
    expect(smi.calls.filter(call => call === 'topo -m')).toHaveLength(1);
  });

  it('keeps what it knew, not fatal, when the look as a whole fails', async () => {
    smi.set(PAIR);
    await source.inventory();
    smi.set({ lines: ['Failed to initialize NVML: Driver/library version mismatch'], code: 18 });
    const { gpus, conditions } = await source.inventory();
    expect(gpus).toMatchObject([{ usable: false }, { usable: false }]);
    expect(gpus.map(gpu => gpu.fatal)).toEqual([undefined, undefined]);
    expect(gpus[0]!.reason).toContain('library differ');
    expect(codes(conditions)).toEqual(['gpu_driver_mismatch']);
  });
});

describe('lines', () => {
  const listed = async (lines: string[]) => {
    smi.set({ lines, topo: { text: matrix(2, 'NV4') } });
    const { gpus, conditions } = await fresh().inventory();
    return { gpus: gpus.map(gpu => [gpu.index, gpu.uuid, gpu.usable]), codes: codes(conditions) };
  };
  const [ZERO, ONE] = [
    [0, 'GPU-0', true],
    [1, 'GPU-1', true],
  ];

  it('come in any order', async () => {
    expect(await listed([row(1), row(0)])).toEqual({ gpus: [ZERO, ONE], codes: [] });
  });
  it('have warnings, headers, colours and blank lines between them', async () => {
    const noise = [
      '\ufeffWARNING: something, as always',
      '',
      'index, uuid, name, x',
      `\x1b[1m${row(0)}\x1b[0m`,
      '---',
    ];
    expect(await listed([...noise, row(1)])).toEqual({ gpus: [ZERO, ONE], codes: [] });
  });
  it('may have units', async () => {
    smi.set({ lines: [row(0, { total: '81559 MiB', used: '4 MiB' })] });
    expect((await source.inventory()).gpus[0]!.memory_total_mib).toBe(81_559);
  });
  it('may have names with commas, quoted or not', async () => {
    smi.set({
      lines: [row(0, { name: 'NVIDIA H100, PCIe, 80GB' }), row(1, { name: '"NVIDIA ""H100"", PCIe"' })],
    });
    const { gpus } = await source.inventory();
    expect(gpus.map(gpu => [gpu.name, gpu.memory_total_mib])).toEqual([
      ['NVIDIA H100, PCIe, 80GB', 81_559],
      ['NVIDIA "H100", PCIe', 81_559],
    ]);
  });
  it.each(['[Insufficient Permissions]', '[Insufficient', '[Insufficient, Permissions]'])(
    'that keep the memory back by %s are told',
    async cell => {
      smi.set({ lines: [row(0, { total: cell, used: cell, free: cell })] });
      const { gpus, conditions } = await source.inventory();
      expect(gpus[0]).toMatchObject({ memory_total_mib: null, memory_free_mib: null, usable: false });
      expect(codes(conditions)).toContain('gpu_no_permission');
    },
  );
  it('whose index or UUID is not clear make no GPU usable', async () => {
    expect(await listed([row(0), row(0, { uuid: 'GPU-1' })])).toEqual({
      gpus: [
        [0, 'GPU-0', false],
        [0, 'GPU-1', false],
      ],
      codes: ['gpu_list_odd', 'gpu_topology_unknown'],
    });
    expect((await listed([row(0), row(1, { uuid: 'GPU-0' })])).gpus).toEqual([[0, 'GPU-0', false]]);
    expect(await listed([row(0), row(0), row(1)])).toEqual({ gpus: [ZERO, ONE], codes: ['gpu_list_odd'] });
    expect((await listed([row(0, { uuid: '[N/A]' }), row(1)])).gpus).toEqual([[0, 'unknown-0', false], ONE]);
  });
  it('that lack an index below the highest are told', async () => {
    smi.set({ lines: [row(0), row(2)], topo: { text: matrix(2, 'NV4') } });
    const { islands, conditions } = await source.inventory();
    expect({ islands, codes: codes(conditions) }).toEqual({
      islands: [],
      codes: ['gpu_missing', 'gpu_topology_unknown'],
    });
  });
  it('in another encoding cost no figure', async () => {
    smi.set({ raw: Buffer.from(`${row(0, { name: 'NVIDIA\xae H100' })}\n`, 'latin1') });
    expect((await source.inventory()).gpus[0]).toMatchObject({ usable: true, memory_total_mib: 81_559 });
  });
  it('that end within their address are no rows, and an odd address is none', async () => {
    const fields = BASE_FIELDS;
    const base = (index: number, bus: string) => `${index}, GPU-${index}, NVIDIA H100, 81559, 4, ${bus}`;
    smi.set({ fields, raw: `${base(0, '00000000:18:00.0')}\n${base(1, '00000000:1')}` });
    const cut = await source.inventory();
    expect([cut.gpus.length, codes(cut.conditions)[0]]).toEqual([1, 'gpu_row_malformed']);
    smi.set({ fields, raw: `${base(0, 'x00000000:18:00.0y')}\n` });
    expect((await fresh().inventory()).gpus[0]!.pci_bus_id).toBeNull();
  });
  it('have names that are fit for a terminal', async () => {
    smi.set({ lines: [row(0, { name: `NVIDIA\u202e H\x07100${'0'.repeat(200)}` })] });
    expect((await source.inventory()).gpus[0]!.name).toBe(`NVIDIA H100${'0'.repeat(85)}`);
  });
  it('on the other stream are no rows', async () => {
    smi.set({
      lines: [row(0)],
      stderr: `${row(1)}\nWARNING: infoROM is corrupted at gpu 0000:18:00.0\nWARNING: infoROM is corrupted at gpu 0000:19:00.0\n`,
      code: 14,
    });
    const { gpus, conditions } = await source.inventory();
    expect([gpus.length, codes(conditions)]).toEqual([1, ['gpu_inforom', 'gpu_inforom']]);
  });
});

describe('a driver that refuses fields', () => {
  it('is asked once for each, and not again', async () => {
    const refused = ['compute_cap', 'fabric.state', 'gpu_recovery_action'];
    smi.set({ lines: [row(0)], refused });
    expect((await source.inventory()).gpus[0]).toMatchObject({ usable: true, compute_capability: null });
    await source.inventory();
    for (const field of refused) {
      const asked = smi.calls.filter(call => call.includes(field));
      expect(asked.length).toBe(refused.indexOf(field) + 1);
    }
  });
  it('may not even know the UUID', async () => {
    smi.set({ lines: [row(0)], refused: ['uuid', 'pci.bus_id'] });
    expect((await source.inventory()).gpus).toMatchObject([
      { uuid: 'unknown-0', pci_bus_id: null, usable: true },
    ]);
  });
});

describe('an output without GPUs', () => {
  it.each<[string, number, string]>([
    ['No devices were found', 6, 'gpu_none_found'],
    ['No devices were found', 0, 'gpu_none_found'],
    ["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, 'gpu_driver_absent'],
    ["NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12, 'gpu_driver_absent'],
    ['Failed to initialize NVML: Driver Not Loaded', 9, 'gpu_driver_absent'],
    ['Failed to initialize NVML: Unknown Error', 255, 'gpu_driver_failed'],
    ['Failed to initialize NVML: Insufficient Permissions', 4, 'gpu_no_permission'],
    ['Failed to initialize NVML: GPU access blocked by the operating system', 255, 'gpu_no_permission'],
    ['', 0, 'gpu_none_found'],
    ['', 9, 'gpu_driver_absent'],
    ['', 15, 'gpu_lost'],
    ['Failed to initialize NVML: GPU is lost', 15, 'gpu_lost'],
    ['Failed to initialize NVML: Timeout', 10, 'gpu_driver_unresponsive'],
    ['Unable to determine the device handle for GPU0000:18:00.0: GPU requires reset', 16, 'gpu_needs_reset'],
    ['/opt/wrap: line 2: nvidia-smi: command not found', 127, 'gpu_tool_missing'],
    ['', 127, 'gpu_tool_missing'],
    ['', 139, 'gpu_tool_failed'],
    ['Segmentation fault', 139, 'gpu_tool_failed'],
    ['etwas anderes, als man denkt', 1, 'gpu_tool_failed'],
  ])('%j with exit %i is %s', async (text, code, condition) => {
    smi.set({ lines: [text], code });
    const inventory = await source.inventory();
    expect(inventory).toMatchObject({ source: 'none', gpus: [], islands: [] });
    expect(codes(inventory.conditions)).toEqual([condition]);
    expect(inventory.conditions[0]!.message.length).toBeGreaterThan(20);
  });
});

describe('the topology', () => {
  it.each([
    ['of fewer GPUs', matrix(1, 'X')],
    ['of more GPUs', matrix(3, 'NV18')],
    ['that is no matrix', 'Invalid combination of input arguments.\n'],
    ['that is empty', ''],
    ['of others', matrix(2, 'NV18').replaceAll('GPU1', 'GPU2')],
  ])('%s is asked for again, and then not counted on', async (_, text) => {
    smi.set({ lines: [row(0), row(1)], topo: { text } });
    const { islands, conditions } = await source.inventory();
    expect({ islands, codes: codes(conditions) }).toEqual({ islands: [], codes: ['gpu_topology_unknown'] });
    expect(smi.calls.filter(call => call === 'topo -m')).toHaveLength(2);
  });
});

describe('a machine without nvidia-smi', () => {
  it('has no GPUs, and no condition unless the program was named', async () => {
    const none = new SmiSource('', new NvidiaSmi('/nowhere/nvidia-smi'));
    expect(await none.inventory()).toMatchObject({ source: 'none', gpus: [], conditions: [] });
    const named = new SmiSource('/nowhere/nvidia-smi');
    expect(codes((await named.inventory()).conditions)).toEqual(['gpu_tool_missing']);
    expect(codes((await new SmiSource(dir).inventory()).conditions)).toEqual(['gpu_tool_failed']);
    expect(codes((await new SmiSource('a\0b').inventory()).conditions)).toEqual(['gpu_tool_failed']);
  });
});

describe('a snapshot', () => {
  it('has the processes of each GPU, whatever their names', async () => {
    smi.set({
      lines: [row(0, { used: '60004' }), row(1)],
      apps: { text: 'GPU-0, 41, 60000, python, with, commas\nGPU-0, 42, [N/A], [Not Found]\n' },
    });
    expect((await source.snapshot()).gpus).toEqual([
      {
        uuid: 'GPU-0',
        index: 0,
        usable: true,
        reason: null,
        memory_used_mib: 60_004,
        processes: [
          { pid: 41, used_mib: 60_000 },
          { pid: 42, used_mib: null },
        ],
      },
      { uuid: 'GPU-1', index: 1, usable: true, reason: null, memory_used_mib: 4, processes: [] },
    ]);
  });

  it.each([
    ['Not supported\n', 3],
    ['GPU-0, [Insufficient Permissions], 5, x\n', 0],
    ['GPU-0, 41\n', 0],
  ])('says that it does not know the processes from %j', async (text, code) => {
    smi.set({ lines: [row(0)], apps: { text, code } });
    expect((await source.snapshot()).gpus[0]!.processes).toBeNull();
  });

  it('has no processes where a sentence says so', async () => {
    smi.set({ lines: [row(0)], apps: { text: 'No running processes found\n' } });
    expect((await source.snapshot()).gpus[0]!.processes).toEqual([]);
  });

  it('is one look for all who ask at once', async () => {
    smi.set({ lines: [row(0)] });
    await Promise.all([source.snapshot(), source.snapshot(), source.snapshot()]);
    expect(smi.calls).toHaveLength(2);
  });
});

it('tells a program that is slow and ends when it is told to from one that failed', async () => {
  const bin = join(dir, 'slow');
  writeFileSync(bin, '#!/bin/sh\nsleep 60 &\nwait\n', { mode: 0o755 });
  const slow = new NvidiaSmi(bin, 50);
  expect(await slow.run([])).toMatchObject({ code: null, hung: true });
  expect(await slow.run([])).toMatchObject({ hung: true, text: expect.stringContaining('within 50 ms') });
});

it('says of a script whose interpreter is absent that it is there', async () => {
  const bin = join(dir, 'script');
  writeFileSync(bin, '#!/no/such/sh\n', { mode: 0o755 });
  expect((await new NvidiaSmi(bin).run([]))?.text).toContain('interpreter');
});

it.each(['topo', 'compute_cap', '--query-compute-apps'])(
  'asks nothing more in a look in which %s hung, and offers no GPU of it',
  async word => {
    const asked: string[] = [];
    const hangs = {
      run: async (args: string[]) => {
        asked.push(args.join(' '));
        if (asked.at(-1)!.includes(word)) return { code: null, out: '', text: 'no answer', hung: true };
        return await smi.run(args);
      },
    };
    smi.set(PAIR);
    const sick = new SmiSource('smi', hangs as unknown as NvidiaSmi, join(dir, 'meminfo'));
    const inventory = await sick.inventory();
    const { silent, gpus } = inventory.snapshot ?? (await sick.snapshot());
    expect(asked.at(-1)).toContain(word);
    expect(silent?.code).toBe('gpu_driver_unresponsive');
    expect(gpus).toMatchObject([{ usable: false }, { usable: false }]);
    if (inventory.snapshot !== undefined) {
      expect(codes(inventory.conditions)).toEqual(['gpu_driver_unresponsive']);
      expect(inventory.gpus.map(gpu => gpu.usable)).toEqual([false, false]);
    }
  },
);

it('does not wait for what a wrapper has left behind', async () => {
  const bin = join(dir, 'wrapper');
  writeFileSync(bin, `#!/bin/sh\nsleep 60 &\necho $! > ${dir}/pid\necho '${row(0)}'\nexit 3\n`, {
    mode: 0o755,
  });
  expect(await new NvidiaSmi(bin).run([])).toMatchObject({ code: 3, out: `${row(0)}\n`, hung: false });
  process.kill(Number(readFileSync(join(dir, 'pid'), 'utf8')), 'SIGKILL');
});

it('gives up on an nvidia-smi that hangs, and does not start another', async () => {
  const bin = join(dir, 'stuck');
  writeFileSync(bin, `#!/bin/sh\ntrap '' TERM\necho $$ > ${dir}/pid\nwhile :; do sleep 60; done\n`, {
    mode: 0o755,
  });
  const sleeper = new NvidiaSmi(bin, 50, 50);
  expect(await sleeper.run(['60'])).toMatchObject({ code: null, hung: true });
  expect(await sleeper.run(['60'])).toMatchObject({
    hung: true,
    text: expect.stringContaining('still hangs'),
  });
  const pid = Number(readFileSync(join(dir, 'pid'), 'utf8'));
  process.kill(-pid, 'SIGKILL'); // with what it waits for
});
