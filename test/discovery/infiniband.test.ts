import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { checkFabrics, infinibandPorts } from '../../agent/discovery/infiniband.js';
import { readCase } from './cases.js';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'llmgw-ib-'));
});
afterEach(() => rmSync(root, { recursive: true }));

interface Sysfs {
  files: Record<string, string>;
  read_errors?: Record<string, string>;
}

function lay({ files, read_errors = {} }: Sysfs): void {
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), `${text}\n`);
  }
  // A folder in the file's place fails to be read, as an attribute that returns EINVAL does.
  for (const path of Object.keys(read_errors)) mkdirSync(join(root, path), { recursive: true });
}

const fabric = (...hcas: string[]) => [{ name: 'ib-a', hcas, rate_gbps: 200 }];

it('reads ports whose attributes are missing or unreadable', async () => {
  lay(readCase<Sysfs, unknown>('ib-sysfs-03-down-disabled-no-cable').input);
  expect(await infinibandPorts(root)).toEqual([
    {
      name: 'mlx5_0',
      port: 1,
      state: 'ACTIVE',
      phys_state: 'LinkUp',
      rate_gbps: 100,
      link_layer: 'InfiniBand',
    },
    {
      name: 'mlx5_1',
      port: 1,
      state: 'DOWN',
      phys_state: 'Disabled',
      rate_gbps: 0,
      link_layer: 'InfiniBand',
    },
    {
      name: 'mlx5_2',
      port: 1,
      state: 'DOWN',
      phys_state: 'Disabled',
      rate_gbps: null,
      link_layer: 'InfiniBand',
    },
  ]);
});

it('finds nothing where there is no InfiniBand', async () => {
  expect(await infinibandPorts(join(root, 'absent'))).toEqual([]);
});

it('orders HCAs as people count them', async () => {
  for (const name of ['mlx5_10', 'mlx5_2']) mkdirSync(join(root, name, 'ports', '1'), { recursive: true });
  expect((await infinibandPorts(root)).map(port => port.name)).toEqual(['mlx5_2', 'mlx5_10']);
});

describe('a fabric (INV-3)', () => {
  const port = { port: 1, state: 'ACTIVE', phys_state: 'LinkUp', rate_gbps: 400, link_layer: 'InfiniBand' };

  it('is usable when all its HCAs are active InfiniBand', () => {
    const hcas = [{ ...port, name: 'mlx5_0' }];
    expect(checkFabrics(fabric('mlx5_0'), hcas)).toEqual([
      { name: 'ib-a', usable: true, hcas: ['mlx5_0'], problems: [] },
    ]);
  });

  it('is not usable with an HCA that is absent, down or Ethernet, and names each', () => {
    const hcas = [
      { ...port, name: 'mlx5_0' },
      { ...port, name: 'mlx5_1', state: 'DOWN', phys_state: 'Polling' },
      { ...port, name: 'mlx5_2', link_layer: 'Ethernet' },
    ];
    expect(checkFabrics(fabric('mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_3'), hcas)).toMatchObject([
      {
        usable: false,
        problems: [
          'mlx5_1 is not active (state DOWN, Polling)',
          'mlx5_2 is not InfiniBand (link layer Ethernet)',
          'mlx5_3 is not on this node',
        ],
      },
    ]);
  });

  it('says that a subnet manager is missing', async () => {
    lay(readCase<Sysfs, unknown>('ib-sysfs-11-init-no-subnet-manager').input);
    const [checked] = checkFabrics(fabric('mlx5_0', 'mlx5_2'), await infinibandPorts(root));
    expect(checked!.problems).toEqual([
      'mlx5_0 is not active (state INIT, LinkUp, no subnet manager has configured it)',
    ]);
  });

  it('names a port that is slower than agent.yaml expects, and stays usable', () => {
    const hcas = [{ ...port, name: 'mlx5_0', rate_gbps: 100 }];
    expect(checkFabrics(fabric('mlx5_0'), hcas)).toMatchObject([
      { usable: true, problems: ['mlx5_0 runs at 100 Gb/s, agent.yaml expects 200'] },
    ]);
  });
});
