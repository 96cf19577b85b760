import { expect, test } from 'vitest';
import { limitsProblem } from '../../agent/limits.js';
import { fabricHcas, mgmtConditions, networkOf } from '../../agent/network.js';
import type { Hca, Inventory } from '../../contracts/inventory.js';
import { orderFor } from '../supervisor/harness.js';

const port = (name: string, number = 1, change: Partial<Hca> = {}): Hca => ({
  name,
  port: number,
  state: 'ACTIVE',
  phys_state: 'LinkUp',
  rate_gbps: 400,
  link_layer: 'InfiniBand',
  ...change,
});
const facts = (
  hcas: Hca[],
  fabric: Partial<Inventory['fabrics'][number]> = {},
): Pick<Inventory, 'fabrics' | 'hcas'> => ({
  hcas,
  fabrics: [{ name: 'ib-a', usable: true, hcas: ['mlx5_10', 'mlx5_2'], problems: [], ...fabric }],
});
const member = { ...orderFor('gang'), nodes: 2, rank: 1, fabric: 'ib-a' };
const around = { seen: '127.0.0.1', facts: async () => facts([port('mlx5_2'), port('mlx5_10')]) };

test('the HCAs of a fabric come in the order of agent.yaml, whatever the kernel’s is', () => {
  expect(fabricHcas(facts([port('mlx5_2'), port('mlx5_10')]), 'ib-a')).toEqual(['mlx5_10', 'mlx5_2']);
});

test('of an HCA whose other port is no active InfiniBand only the active one is named', () => {
  const mixed = [
    port('mlx5_2'),
    port('mlx5_10', 1, { link_layer: 'Ethernet' }),
    port('mlx5_10', 2),
    port('mlx5_10', 3, { state: 'DOWN' }),
  ];
  expect(fabricHcas(facts(mixed), 'ib-a')).toEqual(['mlx5_10:2', 'mlx5_2']);
  const named = facts(mixed, { hcas: ['mlx5_10:2'] });
  expect(fabricHcas(named, 'ib-a')).toEqual(['mlx5_10:2']);
});

test('a fabric that is down, unknown or not named refuses a member, with what is wrong', () => {
  const down = facts([], { usable: false, problems: ['mlx5_2 is not active (state DOWN, Polling)'] });
  expect(() => fabricHcas(down, 'ib-a')).toThrow("fabric ib-a can't be used now: mlx5_2 is not active");
  expect(() => fabricHcas(facts([]), 'ib-b')).toThrow('this node is on no fabric "ib-b": it has ib-a');
  expect(() => fabricHcas(facts([]), null)).toThrow('names no fabric');
  for (const name of ['ib-b', null]) {
    expect(() => fabricHcas(facts([]), name)).toThrow(expect.objectContaining({ code: 'FABRIC_DOWN' }));
  }
});

test('a member of a gang has the node’s own address, its interface and its HCAs', async () => {
  const config = { mgmt_addr: '127.0.0.1', mgmt_interface: null };
  expect(await networkOf(config, member, around)).toEqual({
    mgmtAddr: '127.0.0.1',
    mgmtInterface: 'lo',
    fabricHcas: ['mlx5_10', 'mlx5_2'],
    announced: '127.0.0.1',
  });
  const alias = { mgmt_addr: '127.3.2.1', mgmt_interface: null };
  expect(await networkOf(alias, member, around)).toMatchObject({
    mgmtAddr: '127.3.2.1',
    mgmtInterface: 'lo',
  });
});

test('without an address that the others can meet it at it is refused, and the key is named', async () => {
  for (const [mgmt_addr, mgmt_interface, says] of [
    [null, null, 'mgmt_addr is not set'],
    ['192.0.2.77', null, 'mgmt_addr 192.0.2.77 is on no interface'],
    ['127.0.0.1', 'nosuch0', 'mgmt_interface nosuch0'],
  ] as const) {
    await expect(networkOf({ mgmt_addr, mgmt_interface }, member, around)).rejects.toMatchObject({
      code: 'MGMT_ADDR_UNUSABLE',
      message: expect.stringContaining(says),
    });
  }
});

test('a node says so before a member is ordered: on a fabric, or where it names what the machine has not', () => {
  const fabrics = [{ name: 'ib-a', hcas: ['mlx5_0'], rate_gbps: null }];
  const said = (config: Partial<Parameters<typeof mgmtConditions>[0]>) =>
    mgmtConditions({ mgmt_addr: null, mgmt_interface: null, fabrics: [], ...config }).map(
      ({ code, message }) => `${code}: ${message}`,
    );
  for (const config of [{}, { fabrics, mgmt_addr: '127.0.0.11' }, { mgmt_interface: 'lo' }])
    expect(said(config)).toEqual([]);
  for (const [config, why] of [
    [{ fabrics }, 'mgmt_addr is not set'],
    [{ mgmt_addr: '192.0.2.77' }, 'mgmt_addr 192.0.2.77 is on no interface'],
    [{ mgmt_interface: 'nosuch0' }, 'mgmt_interface nosuch0 is not up'],
    [{ fabrics, mgmt_addr: '127.0.0.1', mgmt_interface: 'nosuch0' }, 'mgmt_interface nosuch0 is not up'],
  ] as const)
    expect(said(config)).toEqual([expect.stringContaining(`mgmt_addr_unusable: ${why}`)]);
});

test('a single member needs neither: the address is what the control plane sees', async () => {
  const config = { mgmt_addr: null, mgmt_interface: null };
  const facts = () => Promise.reject(new Error('nobody asked for it'));
  const single = orderFor('single');
  expect(await networkOf(config, single, { seen: '127.0.0.1', facts })).toMatchObject({
    mgmtAddr: '127.0.0.1',
    fabricHcas: [],
  });
  // Behind a NAT: nothing could listen there, and routers reach it all the same.
  expect(await networkOf(config, single, { seen: '192.0.2.1', facts })).toMatchObject({
    mgmtAddr: '0.0.0.0',
    announced: '192.0.2.1',
  });
});

const fabrics = [{ name: 'ib-a', hcas: ['mlx5_0'], rate_gbps: null }];
const limits = (memlock: string, files: string, processes = 'unlimited') =>
  `Limit                     Soft Limit           Hard Limit           Units
Max processes             100                  ${processes}                processes
Max open files            1024                 ${files}                files
Max locked memory         1024                 ${memlock}              bytes
`;
const status = (uid: number, caps: string) => `Uid:\t${uid}\t${uid}\t${uid}\t${uid}\nCapEff:\t${caps}\n`;
const user = status(1_000, '0000000000000000');

test('small limits on a node with a fabric are told with what to set; the hard ones count', () => {
  const config = { fabrics, supervisor: { user: null } };
  const said = limitsProblem(config, {
    limits: limits('8388608', '4096', '1000'),
    status: user,
    of: 'agent',
  });
  expect(said).toContain('locked memory 8192 KiB');
  expect(said).toContain('open files 4096');
  expect(said).toContain('processes 1000');
  expect(said).toContain('LimitMEMLOCK=infinity');
  const shell = limitsProblem(config, { limits: limits('8388608', '4096'), status: user, of: 'shell' });
  expect(shell).toContain('limits of this shell are small');
  expect(
    limitsProblem(config, { limits: limits('unlimited', '65536'), status: user, of: 'agent' }),
  ).toBeNull();
  const single = { ...config, fabrics: [] };
  expect(limitsProblem(single, { limits: limits('8388608', '4096'), status: user, of: 'agent' })).toBeNull();
});

test('root may pin what it wants, unless it has lost the capability or runs engines as another', () => {
  const small = limits('8388608', '1048576');
  const root = status(0, '000001ffffffffff');
  const config = { fabrics, supervisor: { user: null } };
  expect(limitsProblem(config, { limits: small, status: root, of: 'agent' })).toBeNull();
  expect(
    limitsProblem(config, { limits: small, status: status(0, '00000000a80425fb'), of: 'agent' }),
  ).toContain('locked');
  const other = { fabrics, supervisor: { user: 'llm' } };
  expect(limitsProblem(other, { limits: small, status: root, of: 'agent' })).toContain('locked');
  expect(limitsProblem(config, { limits: 'another form', status: '', of: 'agent' })).toBeNull();
});
