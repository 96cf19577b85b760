// `llmgw agent --check [--json]`: the node as the agent sees it. Starts nothing, writes nothing, takes no lock.
import { readFileSync } from 'node:fs';
import type { Inventory } from '../contracts/inventory.js';
import { openDiscovery } from './assemble.js';
import { Conditions } from './conditions.js';
import type { AgentConfig } from './config.js';
import { wholeInventory } from './inventory.js';
import { agentVersion } from './version.js';

export async function inventoryOf(config: AgentConfig): Promise<Inventory> {
  const conditions = new Conditions();
  const facts = await openDiscovery(config).discover(isEngine);
  return wholeInventory(
    { nodeId: config.node_id, agentVersion: agentVersion(), tls: config.tls, conditions },
    facts,
  );
}

/** Engines carry a mark in their environment; there is no supervisor here to ask. */
function isEngine(pid: number): boolean {
  try {
    return `\0${readFileSync(`/proc/${pid}/environ`, 'latin1')}`.includes('\0LLMGW_ENGINE=');
  } catch {
    return false; // gone, or another user's
  }
}

/** For people. */
export function formatInventory(i: Inventory): string {
  const lines = [
    `node ${i.node_id}, agent ${i.agent_version}, boot ${i.boot_id}`,
    `address ${i.mgmt_addr ?? '(as the control plane sees it)'}; GPUs read from ${i.source}${i.driver_version === null ? '' : `, driver ${i.driver_version}`}`,
    ...i.gpus.map(
      g =>
        `  GPU ${g.index}  ${g.name}  ${g.uuid}  ${mib(g.memory_free_mib)} free of ${mib(g.memory_total_mib)}${g.usable ? '' : `  unusable: ${g.reason}`}`,
    ),
    ...i.nvlink_islands.map(
      island => `  NVLink island: GPUs ${island.map(uuid => indexOf(i, uuid)).join(' ')}`,
    ),
    ...i.hcas.map(
      h =>
        `  HCA ${h.name} port ${h.port}: ${h.state ?? '?'}, ${h.rate_gbps ?? '?'} Gb/s, ${h.link_layer ?? '?'}`,
    ),
    ...i.fabrics.map(f => `  fabric ${f.name}: ${f.usable ? 'usable' : f.problems.join('; ')}`),
    ...i.engines.map(
      e =>
        `  engine ${e.name} (${e.type}): ${e.problems.length > 0 ? e.problems.join('; ') : (e.version ?? 'version unknown')}`,
    ),
    ...(i.certificate === null
      ? []
      : [`  certificate ${i.certificate.cn}, until ${i.certificate.not_after}`]),
    ...i.conditions.map(c => `  condition ${c.code}: ${c.message}`),
  ];
  return `${lines.join('\n')}\n`;
}

const mib = (n: number | null): string => (n === null ? '?' : `${n} MiB`);
const indexOf = (i: Inventory, uuid: string): string =>
  String(i.gpus.find(g => g.uuid === uuid)?.index ?? uuid);
