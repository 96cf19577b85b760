// Where an engine listens, where others find it, and which HCAs its gang uses: from agent.yaml and from what this
// machine has at the moment. A member that could not meet the others is refused before it waits for them for minutes.
import { isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';
import type { MemberOrder } from '../contracts/activities.js';
import { LlmgwError } from '../contracts/errors.js';
import type { Condition, Inventory } from '../contracts/inventory.js';
import type { AgentConfig } from './config.js';
import type { Network } from './supervisor/types.js';

type Facts = Pick<Inventory, 'fabrics' | 'hcas'>;

export interface Surroundings {
  /** This node's address as the control plane sees it; null before Welcome. */
  seen: string | null;
  /** A fresh look; asked for gangs only. */
  facts(): Promise<Facts>;
}

/** Throws FABRIC_DOWN and MGMT_ADDR_UNUSABLE for a member of a gang. */
export async function networkOf(
  config: Management,
  order: MemberOrder,
  { seen, facts }: Surroundings,
): Promise<Network & { announced: string | null }> {
  if (order.nodes > 1) refuseUnmet(config);
  const mgmtAddr = config.mgmt_addr ?? ownAddress(seen) ?? '0.0.0.0';
  return {
    mgmtAddr,
    mgmtInterface: config.mgmt_interface ?? interfaceOf(mgmtAddr),
    // A check may come before a fabric is chosen; prepare refuses a gang without one.
    fabricHcas: order.nodes > 1 && order.fabric != null ? fabricHcas(await facts(), order.fabric) : [],
    // Unset: what the control plane sees is where routers reach us.
    announced: config.mgmt_addr ?? seen,
  };
}

type Management = Pick<AgentConfig, 'mgmt_addr' | 'mgmt_interface'>;

function refuseUnmet(config: Management): void {
  const problem = unmet(config);
  if (problem !== null) throw new LlmgwError('MGMT_ADDR_UNUSABLE', problem);
}

/**
 * The same before any gang is placed here. A node without fabrics may leave mgmt_addr out, since it hosts no member;
 * one that is given must be the machine's own all the same, for every engine listens at it.
 */
export function mgmtConditions(config: Management & Pick<AgentConfig, 'fabrics'>): Condition[] {
  const { fabrics, mgmt_addr, mgmt_interface } = config;
  const problem =
    fabrics.length === 0 && mgmt_addr === null ? absentInterface(mgmt_interface) : unmet(config);
  return problem === null ? [] : [{ code: 'mgmt_addr_unusable', message: problem }];
}

function unmet({ mgmt_addr, mgmt_interface }: Management): string | null {
  if (mgmt_addr === null)
    return 'mgmt_addr is not set in agent.yaml: the members of a multi-node replica meet at it';
  if (interfaceOf(mgmt_addr) === null)
    return `mgmt_addr ${mgmt_addr} is on no interface of this machine, and engines could not listen there: correct it in agent.yaml`;
  return absentInterface(mgmt_interface);
}

function absentInterface(name: string | null): string | null {
  return name === null || networkInterfaces()[name] !== undefined
    ? null
    : `mgmt_interface ${name} is not up on this machine, or there is none: correct it in agent.yaml`;
}

/**
 * NCCL_IB_HCA's entries of a fabric, in the order of agent.yaml: NCCL pairs them by their place. An HCA with another
 * port that isn't active InfiniBand is named with the port (INV-3).
 */
export function fabricHcas({ fabrics, hcas }: Facts, name: string | null): string[] {
  const refuse = (sentence: string): never => {
    throw new LlmgwError('FABRIC_DOWN', sentence);
  };
  if (name === null) return refuse('the order names no fabric, and a multi-node replica runs on one');
  const fabric = fabrics.find(f => f.name === name);
  if (fabric === undefined) {
    const known = fabrics.map(f => f.name).join(', ') || 'none';
    return refuse(`this node is on no fabric ${JSON.stringify(name)}: it has ${known}`);
  }
  if (!fabric.usable) return refuse(`fabric ${name} can't be used now: ${fabric.problems.join('; ')}`);
  return fabric.hcas.flatMap(hca => {
    const ports = hcas.filter(port => port.name === hca);
    const active = ports.filter(port => port.link_layer === 'InfiniBand' && port.state === 'ACTIVE');
    return active.length === ports.length ? [hca] : active.map(port => `${hca}:${port.port}`);
  });
}

/** An address of this machine; one behind a NAT isn't, and nothing could listen there. */
function ownAddress(seen: string | null): string | null {
  return seen !== null && interfaceOf(seen) !== null ? seen : null;
}

function interfaceOf(address: string): string | null {
  for (const [name, entries] of Object.entries(networkInterfaces())) {
    if (entries?.some(entry => entry.address === address)) return name;
  }
  // All of 127.0.0.0/8 is the loopback interface's, and only its first address is listed.
  return isIPv4(address) && address.startsWith('127.') && address !== '127.0.0.1'
    ? interfaceOf('127.0.0.1')
    : null;
}
