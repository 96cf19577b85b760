// InfiniBand ports from sysfs. Every attribute can be missing or unreadable (EINVAL while a port is down): null for
// that attribute, never the end of the scan.
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Hca, Inventory } from '../../contracts/inventory.js';

type NodeFabric = Inventory['fabrics'][number];

/** @param root usually /sys/class/infiniband; a node without InfiniBand has no such folder. */
export async function infinibandPorts(root: string): Promise<Hca[]> {
  const names = await folders(root);
  const ports = await Promise.all(
    names.map(async name => {
      const numbers = await folders(join(root, name, 'ports'));
      return Promise.all(numbers.map(number => port(root, name, number)));
    }),
  );
  return ports.flat().sort((a, b) => byName(a.name, b.name) || a.port - b.port);
}

const byName = (a: string, b: string): number => a.localeCompare(b, 'en', { numeric: true });

async function port(root: string, name: string, number: string): Promise<Hca> {
  const attribute = (file: string): Promise<string | null> =>
    readFile(join(root, name, 'ports', number, file), 'utf8').then(
      text => text.trim() || null,
      () => null,
    );
  const [state, phys, rate, link] = await Promise.all(
    ['state', 'phys_state', 'rate', 'link_layer'].map(attribute),
  );
  return {
    name,
    port: Number(number),
    state: word(state ?? null),
    phys_state: word(phys ?? null),
    rate_gbps: gigabits(rate ?? null),
    link_layer: link ?? null,
  };
}

/** `4: ACTIVE` → `ACTIVE`. */
const word = (text: string | null): string | null => text?.replace(/^\d+:\s*/, '') ?? null;

/** `400 Gb/sec (4X NDR)` → 400; a port without a cable may say `0 GB/sec`. */
function gigabits(text: string | null): number | null {
  const match = /^(\d+(?:\.\d+)?)\s*Gb\/sec/i.exec(text ?? '');
  return match === null ? null : Number(match[1]);
}

async function folders(path: string): Promise<string[]> {
  return readdir(path).catch(() => []);
}

/** What agent.yaml says of a fabric. */
export interface FabricConfig {
  name: string;
  hcas: string[];
  rate_gbps: number | null;
}

/**
 * The fabrics of agent.yaml against the ports that there are (INV-3). A listed port that can't carry traffic makes the
 * fabric unusable: NCCL pairs ports by their place in the list, so a gap pairs wrong rails.
 */
export function checkFabrics(fabrics: FabricConfig[], hcas: Hca[]): NodeFabric[] {
  return fabrics.map(({ name, hcas: wanted, rate_gbps: rate }) => {
    const faults = wanted.flatMap(hca => fault(hca, hcas));
    const slow = rate === null ? [] : wanted.flatMap(hca => slowness(hca, hcas, rate));
    return { name, usable: faults.length === 0, hcas: wanted, problems: [...faults, ...slow] };
  });
}

/** An HCA with several ports serves if one of them does. */
function fault(hca: string, all: Hca[]): string[] {
  const ports = all.filter(port => port.name === hca);
  if (ports.length === 0) return [`${hca} is not on this node`];
  const infiniband = ports.filter(port => port.link_layer === 'InfiniBand');
  if (infiniband.length === 0) {
    return [`${hca} is not InfiniBand (link layer ${ports[0]!.link_layer ?? 'unknown'})`];
  }
  if (infiniband.some(port => port.state === 'ACTIVE')) return [];
  const { state, phys_state: phys } = infiniband[0]!;
  // A cable with nobody to give the port an address.
  const hint = state === 'INIT' && phys === 'LinkUp' ? ', no subnet manager has configured it' : '';
  return [`${hca} is not active (state ${state ?? 'unknown'}, ${phys ?? 'unknown'}${hint})`];
}

function slowness(hca: string, all: Hca[], rate: number): string[] {
  const active = all.find(port => port.name === hca && port.state === 'ACTIVE');
  const actual = active?.rate_gbps ?? null;
  return actual !== null && actual < rate
    ? [`${hca} runs at ${actual} Gb/s, agent.yaml expects ${rate}`]
    : [];
}
