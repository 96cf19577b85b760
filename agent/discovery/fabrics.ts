// The fabrics of agent.yaml against the ports that there are (INV-3). Nothing is inferred from addresses or prefixes:
// which HCA is on which fabric is what agent.yaml says, and what it says is checked.

import type { Hca, Inventory } from '../../contracts/inventory.js';
import { nearest } from '../../contracts/nearest.js';

type NodeFabric = Inventory['fabrics'][number];

/** What agent.yaml says of a fabric. An HCA is `mlx5_0`, or one port of it: `mlx5_0:2`. */
export interface FabricConfig {
  name: string;
  hcas: string[];
  rate_gbps: number | null;
}

/**
 * A listed port that can't carry traffic makes the fabric unusable until it is back: NCCL pairs ports by their place in
 * the list, so a gap pairs wrong rails. A slow one is told, and serves.
 */
export function checkFabrics(
  fabrics: FabricConfig[],
  ports: Hca[],
  portless: readonly string[] = [],
): NodeFabric[] {
  const listed = new Set(fabrics.flatMap(fabric => fabric.hcas.map(hca => parsed(hca).name)));
  const spare = [...new Set(ports.filter(serves).map(port => port.name))].filter(name => !listed.has(name));
  return fabrics.map(({ name, hcas: wanted, rate_gbps: rate }) => {
    const faults = wanted.flatMap(hca =>
      portless.includes(parsed(hca).name)
        ? [`${parsed(hca).name} has no ports: see the kernel log`]
        : fault(hca, ports, spare),
    );
    const odd = wanted.flatMap(hca => remarks(hca, ports, rate));
    return { name, usable: faults.length === 0, hcas: wanted, problems: [...faults, ...odd] };
  });
}

function parsed(hca: string): { name: string; port: number | null } {
  const [, name, port] = /^(.*?)(?::(\d{1,3}))?$/s.exec(hca)!;
  return { name: name!, port: port === undefined ? null : Number(port) };
}

/** ACTIVE_DEFER isn't ACTIVE: libibverbs doesn't take it for one, and NCCL passes such a port over. */
const serves = (port: Hca): boolean => port.link_layer === 'InfiniBand' && port.state === 'ACTIVE';

function portsOf(hca: string, all: Hca[]): Hca[] {
  const { name, port } = parsed(hca);
  return all.filter(p => p.name === name && (port === null || p.port === port));
}

/** An HCA with several ports serves if one of them does. */
function fault(hca: string, all: Hca[], spare: string[]): string[] {
  const ports = portsOf(hca, all);
  const { name, port } = parsed(hca);
  if (ports.length === 0 && all.some(p => p.name === name)) return [`${name} has no port ${port}`];
  if (ports.length === 0) return [absent(hca, name, all, spare)];
  if (ports.some(serves)) return [];
  const infiniband = ports.filter(p => p.link_layer === 'InfiniBand');
  if (ports.every(p => p.link_layer === null && p.state === null))
    return [
      `${hca} tells neither its state nor its link layer: it does not answer, or is sick (see the kernel log)`,
    ];
  if (infiniband.length === 0) {
    const layer = ports[0]!.link_layer ?? 'unknown';
    return [`${hca} is not InfiniBand (link layer ${layer}${layer === 'Ethernet' ? ': RoCE' : ''})`];
  }
  const { state, phys_state: phys } = infiniband[0]!;
  const hint = STATE_HINTS[state === 'INIT' && phys !== 'LinkUp' ? '' : (state ?? '')] ?? '';
  return [`${hca} is not active (state ${state ?? 'unknown'}, ${phys ?? 'unknown'}${hint})`];
}

const STATE_HINTS: Record<string, string> = {
  // A cable with nobody to give the port an address.
  INIT: ', no subnet manager has configured it',
  ARMED: ', the subnet manager has not brought it up yet',
};

function absent(hca: string, name: string, all: Hca[], spare: string[]): string {
  const near = nearest(name, spare);
  if (near !== null) return `${hca} is not on this node, did you mean ${JSON.stringify(near)}?`;
  const hint = all.length === 0 ? ', nor any other HCA: is its kernel module (mlx5_ib) loaded?' : '';
  return `${hca} is not on this node${hint}`;
}

function remarks(hca: string, all: Hca[], rate: number | null): string[] {
  return portsOf(hca, all)
    .filter(serves)
    .flatMap(({ rate_gbps: actual, phys_state: phys }) => {
      const said: string[] = [];
      if (rate !== null && actual !== null && actual < rate)
        said.push(`${hca} runs at ${actual} Gb/s, agent.yaml expects ${rate}${unknownSpeed(actual, rate)}`);
      if (phys !== null && phys !== 'LinkUp') said.push(`${hca} is active but its link is in ${phys}`);
      return said;
    })
    .filter((text, at, every) => every.indexOf(text) === at);
}

/** Kernels older than a speed print it as SDR: 10 Gb/s over four lanes. */
const unknownSpeed = (actual: number, rate: number): string =>
  actual === 10 && rate >= 100 ? ' (or this kernel is older than that speed)' : '';
