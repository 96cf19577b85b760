import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { table } from '../../agent/check-table.js';
import { loadAgentConfigText } from '../../agent/config.js';
import { type HostFacts, hostConditions, hostFacts } from '../../agent/host.js';
import type { Inventory } from '../../contracts/inventory.js';

const WELL: HostFacts = {
  nofile: Number.POSITIVE_INFINITY,
  memlock: 8 * 2 ** 20,
  shm: { sizeMib: 64_000, freeMib: 60_000 },
  ephemeral: { first: 32_768, last: 60_999 },
  nccl: [],
};

function config(text = '') {
  const loaded = loadAgentConfigText(`server: http://a:1\nengines: {vllm: }\n${text}`, 'a', () => 'gpu-7');
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.errors));
  return loaded.config;
}

describe('the host', () => {
  let root: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'llmgw-host-'));
  });
  afterEach(() => rmSync(root, { recursive: true }));
  const put = (path: string, text: string) => {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  };

  it('is read from its files, whatever is missing', async () => {
    expect(await hostFacts(root, join(root, 'home'))).toEqual({
      nofile: null,
      memlock: null,
      shm: null,
      ephemeral: null,
      nccl: [],
    });
    put(
      'proc/self/limits',
      'Max locked memory    8388608   unlimited   bytes\nMax open files    1024   524288   files\n',
    );
    put('proc/sys/net/ipv4/ip_local_port_range', '20000\t60999\n');
    put(
      'etc/nccl.conf',
      '# NCCL_DEBUG=INFO\nNCCL_IB_DISABLE=1\n NCCL_SOCKET_IFNAME = eth0\nNCCL_IB_DISABLE=0\n',
    );
    put('home/.nccl.conf', '\u0000garbage');
    mkdirSync(join(root, 'dev/shm'), { recursive: true });
    expect(await hostFacts(root, join(root, 'home'))).toMatchObject({
      nofile: 524_288,
      memlock: 8_388_608,
      shm: { sizeMib: expect.any(Number) },
      ephemeral: { first: 20_000, last: 60_999 },
      nccl: [{ file: join(root, 'etc/nccl.conf'), names: ['NCCL_IB_DISABLE', 'NCCL_SOCKET_IFNAME'] }],
    });
  });

  it.each<[Partial<HostFacts>, string[]]>([
    [{}, []],
    [{ shm: { sizeMib: 64, freeMib: 64 } }, ['shm_small']],
    [{ shm: { sizeMib: 64_000, freeMib: 12 } }, ['shm_full']],
    [{ ephemeral: { first: 21_999, last: 60_999 } }, ['ports_ephemeral']],
    [{ ephemeral: { first: 1_024, last: 20_000 } }, ['ports_ephemeral']],
    [{ nccl: [{ file: '/etc/nccl.conf', names: ['NCCL_IB_DISABLE'] }] }, ['nccl_conf']],
    [{ nofile: null, memlock: null, shm: null, ephemeral: null }, []],
  ])('with %j has the conditions %j', (facts, codes) => {
    const found = hostConditions({ ...WELL, ...facts }, config());
    expect(found.map(condition => condition.code)).toEqual(codes);
    const bare = { ...config(), engines: {} };
    expect(hostConditions({ ...WELL, ...facts }, bare)).toEqual([]);
  });
});

describe('the table', () => {
  const NOW = Date.parse('2026-11-30T12:00:00Z');
  const inventory: Inventory = {
    node_id: 'gpu-a-01',
    boot_id: 'b',
    agent_version: '1.0.0',
    mgmt_addr: null,
    labels: {},
    source: 'nvml',
    driver_version: '580.95.05',
    gpus: [
      {
        index: 0,
        uuid: 'GPU-0',
        name: 'NVIDIA H100',
        pci_bus_id: '00000000:18:00.0',
        memory_total_mib: 81_559,
        memory_free_mib: null,
        foreign_mib: 700,
        compute_capability: '9.0',
        mig: true,
        usable: false,
        reason: 'MIG mode',
        mig_instances: [{ uuid: 'MIG-x', name: '1g.10gb' }],
      },
    ],
    nvlink_islands: [],
    hcas: [
      {
        name: 'mlx5_8',
        port: 1,
        state: 'ACTIVE',
        phys_state: 'LinkUp',
        rate_gbps: null,
        link_layer: 'Ethernet',
      },
    ],
    fabrics: [{ name: 'ib-a', usable: true, hcas: ['mlx5_0'], problems: [] }],
    engines: [
      { name: 'vllm', type: 'vllm', version: null, launch_mode: 'mp', problems: ['/no/vllm does not exist'] },
    ],
    certificate: { cn: 'gpu-a-01', not_after: '2026-12-10T11:00:00.000Z' },
    conditions: [{ code: 'gpu_unusable', message: 'GPU 0 (GPU-0): MIG mode' }],
  };
  const shown = (changes: Partial<Inventory> = {}, used = new Set<number>([20_001, 443])) =>
    table({
      inventory: { ...inventory, ...changes },
      config: config(),
      host: WELL,
      agent: null,
      used,
      now: NOW,
    });

  it('has a line for each thing, and each problem with what to do', () => {
    expect(shown()).toBe(
      `node gpu-a-01, agent 1.0.0, boot b
address (as the control plane sees it; set mgmt_addr for multi-node replicas)
GPUs read from nvml, driver 580.95.05
  GPU 0  NVIDIA H100  ? free of 81559 MiB  compute 9.0  00000000:18:00.0  GPU-0  unusable: MIG mode, 700 MiB of others
  GPU 0 has MIG 1g.10gb MIG-x
  HCA mlx5_8  port 1  ACTIVE  LinkUp  rate unknown  Ethernet (RoCE)
  fabric ib-a: usable, mlx5_0
  engine vllm (vllm): version unknown, mp, /no/vllm does not exist
  ports 20000-21999: 1999 of 2000 free; in use: 20001
  certificate gpu-a-01, until 2026-12-10T11:00:00.000Z (9 days left)
  clock 2026-11-30T12:00:00.000Z; its offset shows when connected: the control plane compares it at each hello, over 5 s is clock_skew
  limits of this shell: open files unlimited, locked memory 8 MiB, /dev/shm 60000 MiB free of 64000 MiB
to look at:
  gpu_unusable: GPU 0 (GPU-0): MIG mode; nvidia-smi -i INDEX -mig 0 makes it whole again
  engine vllm: /no/vllm does not exist; install it, or correct engines.vllm
`,
    );
  });

  it('says that nothing is wrong, and that there is no certificate', () => {
    const well = shown({ conditions: [], engines: [], gpus: [], certificate: null }, new Set());
    expect(well).toContain('certificate none: tls is not set');
    expect(well).toContain('all 2000 free');
    expect(well.endsWith('nothing is wrong\n')).toBe(true);
    const broken = shown({ certificate: null, conditions: [{ code: 'certificate', message: 'x' }] });
    expect(broken).toContain('certificate that can be used: none');
    const over = shown({ certificate: { cn: 'gpu-a-01', not_after: '2026-11-29T11:00:00.000Z' } });
    expect(over).toContain('(it has ended)');
  });
});
