import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { checkFabrics } from '../../agent/discovery/fabrics.js';
import { type Infiniband, infiniband } from '../../agent/discovery/infiniband.js';
import type { Hca } from '../../contracts/inventory.js';
import { casesOf, laySysfs, readCase, type Sysfs } from './cases.js';

let root: string;
beforeEach(() => {
  root = join(mkdtempSync(join(tmpdir(), 'llmgw-ib-')), 'infiniband');
});
afterEach(() => rmSync(join(root, '..'), { recursive: true }));

const look = async (tree: Sysfs): Promise<Infiniband> => {
  laySysfs(root, tree);
  return await infiniband(root);
};
const named = (ports: Hca[]) => ports.map(({ name, port }) => `${name}:${port}`);
const active = (ports: Hca[], layer: string) =>
  named(ports.filter(port => port.link_layer === layer && port.state === 'ACTIVE'));

interface Answer {
  usable_ib?: string[];
  roce?: string[];
  warnings?: number;
  rates?: Record<string, number>;
  results?: Answer[];
  ports?: Record<string, string | { state: string; phys?: string; rate_gbps: number | null }>;
}

function compare(found: Infiniband, answer: Answer): void {
  expect(active(found.ports, 'InfiniBand')).toEqual(answer.usable_ib);
  if (answer.roce !== undefined) expect(active(found.ports, 'Ethernet')).toEqual(answer.roce);
  expect(found.conditions).toHaveLength(answer.warnings ?? 0);
  for (const [key, rate] of Object.entries(answer.rates ?? {}))
    expect(found.ports.find(port => `${port.name}:${port.port}` === key)!.rate_gbps).toBe(rate);
  for (const [name, wanted] of Object.entries(answer.ports ?? {})) {
    const { state, phys_state: phys, rate_gbps } = found.ports.find(port => port.name === name)!;
    if (typeof wanted === 'string') expect(state).toBe(wanted);
    else expect({ state, phys, rate_gbps }).toEqual({ phys, ...wanted });
  }
  // Each usable port makes a fabric, each other one doesn't.
  for (const port of found.ports) {
    const hca = `${port.name}:${port.port}`;
    const [checked] = checkFabrics([{ name: 'ib', hcas: [hca], rate_gbps: null }], found.ports);
    expect([hca, checked!.usable]).toEqual([hca, answer.usable_ib!.includes(hca)]);
    if (!checked!.usable) expect(checked!.problems[0]).toContain(hca);
  }
}

describe('cases', () => {
  const single = casesOf('ib-sysfs').filter(name => !name.includes('missing-dirs'));
  it.each(single)('%s', async name => {
    const { input, expect: answer } = readCase<Sysfs, Answer>(name);
    compare(await look(input), answer);
  });

  const { input, expect: answer } = readCase<{ variants: Sysfs[] }, Answer>('ib-sysfs-10-missing-dirs');
  it.each(input.variants.map((variant, at) => [at, variant] as const))(
    'ib-sysfs-10, variant %i',
    async (at, variant) => {
      compare(await look(variant), answer.results![at]!);
    },
  );
});

const PORT = { port: 1, state: 'ACTIVE', phys_state: 'LinkUp', rate_gbps: 400, link_layer: 'InfiniBand' };
const file = (name: string, files: Record<string, string>, port = 1): Record<string, string> =>
  Object.fromEntries(Object.entries(files).map(([key, text]) => [`${name}/ports/${port}/${key}`, text]));

describe('attributes', () => {
  it.each([
    ['2.5 Gb/sec (1X SDR)', 2.5],
    ['100 Gb/sec (4X EDR)', 100],
    ['400 Gb/sec (4X NDR)', 400],
    ['1600 Gb/sec (8X XDR)', 1600],
    ['40 Gb/sec', 40],
    ['0 GB/sec', 0],
    ['', null],
    ['<unknown>', null],
    ['-1 Gb/sec', null],
    ['99999999999999999999 Gb/sec', null],
  ])('the rate %j is %s', async (rate, gbps) => {
    const { ports } = await look({ files: file('mlx5_0', { rate, state: '4: ACTIVE' }) });
    expect(ports).toEqual([
      { name: 'mlx5_0', port: 1, state: 'ACTIVE', phys_state: null, rate_gbps: gbps, link_layer: null },
    ]);
  });

  it('are null where they are odd', async () => {
    const { ports } = await look({ files: file('mlx5_0', { state: '7: ', phys_state: '9: <unknown>' }) });
    expect(ports[0]).toMatchObject({ state: null, phys_state: '<unknown>' });
  });

  it('come in the order in which people count', async () => {
    const files = Object.assign({}, ...['mlx5_10', 'mlx5_2'].map(name => file(name, { state: '4: ACTIVE' })));
    expect(named((await look({ files })).ports)).toEqual(['mlx5_2:1', 'mlx5_10:1']);
  });

  it('that hang leave the HCAs in the list, and are not asked again meanwhile', async () => {
    const well = { state: '4: ACTIVE', link_layer: 'InfiniBand' };
    laySysfs(root, { files: { ...file('mlx5_0', well), ...file('mlx5_2', well) } });
    mkdirSync(join(root, 'mlx5_1/ports/1'), { recursive: true });
    // Nobody writes into this pipe: reading it hangs, as an attribute of a card with dead firmware does.
    execFileSync('mkfifo', [join(root, 'mlx5_1/ports/1/state')]);
    const first = await infiniband(root, 400);
    expect(first.ports).toMatchObject([
      { name: 'mlx5_0', state: 'ACTIVE' },
      { name: 'mlx5_1', state: null },
      { name: 'mlx5_2', state: 'ACTIVE', link_layer: 'InfiniBand' },
    ]);
    // No thread of ours waits: the process can end.
    expect(process.getActiveResourcesInfo().filter(name => name.startsWith('FSReq'))).toEqual([]);
    expect(first.conditions.map(condition => condition.code)).toEqual(['hca_unresponsive']);
    const second = await infiniband(root, 400);
    expect(second.conditions.map(condition => condition.code)).toEqual(['hca_unresponsive']);
    expect(named(second.ports)).toEqual(['mlx5_0:1', 'mlx5_1:1', 'mlx5_2:1']);
    const pipe = join(root, 'mlx5_1/ports/1/state');
    writeFileSync(pipe, '4: ACTIVE\n'); // lets the thread go
    rmSync(pipe);
    await expect.poll(async () => (await infiniband(root)).conditions).toEqual([]);
  });

  it('tell a device whose ports are a file from one that is not there', async () => {
    const { ports, portless } = await look({ files: { 'mlx5_0/ports': '' } });
    const [checked] = checkFabrics([{ name: 'ib', hcas: ['mlx5_0'], rate_gbps: null }], ports, portless);
    expect(checked!.problems).toEqual(['mlx5_0 has no ports: see the kernel log']);
  });

  it('tell a root that is no folder', async () => {
    writeFileSync(root, '');
    expect((await infiniband(root)).conditions.map(condition => condition.code)).toEqual(['hca_unreadable']);
    rmSync(root);
    mkdirSync(root);
    chmodSync(root, 0o755);
    expect(await infiniband(root)).toEqual({ ports: [], portless: [], conditions: [] });
  });
});

describe('a fabric (INV-3)', () => {
  const check = (hcas: string[], ports: Hca[], rate_gbps: number | null = 200) =>
    checkFabrics([{ name: 'ib-a', hcas, rate_gbps }], ports)[0]!;

  it('is usable when all its HCAs are active InfiniBand', () => {
    expect(check(['mlx5_0'], [{ ...PORT, name: 'mlx5_0' }])).toEqual({
      name: 'ib-a',
      usable: true,
      hcas: ['mlx5_0'],
      problems: [],
    });
  });

  it('is not usable with an HCA that is absent, down or Ethernet, and names each', () => {
    const ports = [
      { ...PORT, name: 'mlx5_0' },
      { ...PORT, name: 'mlx5_1', state: 'DOWN', phys_state: 'Polling' },
      { ...PORT, name: 'mlx5_2', link_layer: 'Ethernet' },
      { ...PORT, name: 'mlx5_bond_0', link_layer: 'Ethernet' },
      { ...PORT, name: 'mlx5_5', state: 'ACTIVE_DEFER' },
    ];
    expect(check(['mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_bond_0', 'mlx5_5', 'eth7', 'mlx5_0:2'], ports)).toEqual(
      {
        name: 'ib-a',
        usable: false,
        hcas: ['mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_bond_0', 'mlx5_5', 'eth7', 'mlx5_0:2'],
        problems: [
          'mlx5_1 is not active (state DOWN, Polling)',
          'mlx5_2 is not InfiniBand (link layer Ethernet: RoCE)',
          'mlx5_bond_0 is not InfiniBand (link layer Ethernet: RoCE)',
          'mlx5_5 is not active (state ACTIVE_DEFER, LinkUp)',
          'eth7 is not on this node',
          'mlx5_0 has no port 2',
        ],
      },
    );
  });

  it('says that a subnet manager is missing', () => {
    const state = (name: string, is: string) => ({ ...PORT, name, state: is });
    expect(check(['mlx5_0', 'mlx5_1'], [state('mlx5_0', 'INIT'), state('mlx5_1', 'ARMED')]).problems).toEqual(
      [
        'mlx5_0 is not active (state INIT, LinkUp, no subnet manager has configured it)',
        'mlx5_1 is not active (state ARMED, LinkUp, the subnet manager has not brought it up yet)',
      ],
    );
  });

  it('suggests the HCA that serves no fabric, and says when there is none at all', () => {
    const ports = ['mlx5_0', 'mlx5_ib2'].map(name => ({ ...PORT, name }));
    expect(check(['mlx5_0', 'mlx5_2'], ports).problems).toEqual([
      'mlx5_2 is not on this node, did you mean "mlx5_ib2"?',
    ]);
    expect(check(['mlx5_0', 'mlx5_1'], ports.slice(0, 1)).problems).toEqual(['mlx5_1 is not on this node']);
    expect(check(['mlx5_0'], []).problems[0]).toContain('nor any other HCA: is its kernel module');
  });

  it('names a port that is slower than agent.yaml expects, or retrains, and stays usable', () => {
    const slow = [
      { ...PORT, name: 'mlx5_0', rate_gbps: 100 },
      { ...PORT, name: 'mlx5_1', rate_gbps: 10 },
      { ...PORT, name: 'mlx5_2', phys_state: 'LinkErrorRecovery' },
      { ...PORT, name: 'mlx5_3', rate_gbps: null },
    ];
    expect(check(['mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_3'], slow)).toMatchObject({
      usable: true,
      problems: [
        'mlx5_0 runs at 100 Gb/s, agent.yaml expects 200',
        'mlx5_1 runs at 10 Gb/s, agent.yaml expects 200 (or this kernel is older than that speed)',
        'mlx5_2 is active but its link is in LinkErrorRecovery',
      ],
    });
  });

  it('is usable with an HCA of which one port serves, or one port is named', () => {
    const ports = [
      { ...PORT, name: 'mlx4_0' },
      { ...PORT, name: 'mlx4_0', port: 2, link_layer: 'Ethernet' },
    ];
    expect(check(['mlx4_0'], ports).usable).toBe(true);
    expect(check(['mlx4_0:1'], ports).usable).toBe(true);
    expect(check(['mlx4_0:2'], ports).problems[0]).toContain('mlx4_0:2 is not InfiniBand');
  });
});
