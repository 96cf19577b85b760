// The node's inventory as it is now, and the one that the control plane is told. Figures that change all the time
// (free memory) don't make a new one: each change is a signal into a workflow's history (INV-11).
import type { Inventory } from '../contracts/inventory.js';
import { loadTlsFiles, type TlsPaths } from '../lib/tls/load.js';
import type { Conditions } from './conditions.js';
import type { NodeFacts } from './discovery/index.js';

/** Memory of others counts in steps of this; at 512 MiB a GPU is foreign (INV-13). */
const FOREIGN_STEP_MIB = 512;

export interface InventoryOptions {
  nodeId: string;
  agentVersion: string;
  tls: TlsPaths | null;
  conditions: Conditions;
}

export class NodeInventory {
  private facts: NodeFacts;
  private told: NodeFacts;

  constructor(
    private readonly opts: InventoryOptions,
    facts: NodeFacts,
  ) {
    this.facts = facts;
    this.told = facts;
  }

  /** Takes a new look at the node; true when it tells something new. */
  update(facts: NodeFacts): boolean {
    this.facts = facts;
    if (essence(facts) === essence(this.told)) return false;
    this.told = facts;
    return true;
  }

  /** What Hello and InventoryChanged carry. */
  announced(): Inventory {
    return this.whole(this.told);
  }

  /** With the figures of the last look. */
  latest(): Inventory {
    return this.whole(this.facts);
  }

  private whole(facts: NodeFacts): Inventory {
    return wholeInventory(this.opts, facts);
  }
}

/** Adds what the agent knows of itself. */
export function wholeInventory(opts: InventoryOptions, facts: NodeFacts): Inventory {
  return {
    node_id: opts.nodeId,
    agent_version: opts.agentVersion,
    ...facts,
    certificate: certificateOf(opts.tls),
    conditions: [...facts.conditions, ...opts.conditions.list()],
  };
}

function certificateOf(tls: TlsPaths | null): Inventory['certificate'] {
  if (tls === null) return null;
  try {
    const { info } = loadTlsFiles(tls);
    return { cn: info.cn ?? '', not_after: info.not_after };
  } catch {
    return null; // the stream says what is wrong with the files, at each attempt
  }
}

function essence(facts: NodeFacts): string {
  const gpus = facts.gpus.map(gpu => ({
    ...gpu,
    memory_free_mib: null,
    foreign_mib: gpu.foreign_mib === null ? null : Math.floor(gpu.foreign_mib / FOREIGN_STEP_MIB),
  }));
  // Texts of conditions may carry figures; which ones there are is what matters.
  return JSON.stringify({ ...facts, gpus, conditions: facts.conditions.map(c => c.code).sort() });
}
