// The node's inventory as it is now, and the one that the control plane is told. Figures that change all the time
// (free memory) don't make a new one: each change is a signal into a workflow's history (INV-11).
import { FOREIGN_MIB, type Gpu, type Inventory } from '../contracts/inventory.js';
import { loadTlsFiles, type TlsPaths } from '../lib/tls/load.js';
import type { Conditions } from './conditions.js';
import type { NodeFacts } from './discovery/index.js';

/** A GPU that was told as foreign is free of others only below this: what trembles around the limit isn't news. */
const FREE_AGAIN_MIB = 384;

export interface InventoryOptions {
  nodeId: string;
  agentVersion: string;
  tls: TlsPaths | null;
  conditions: Conditions;
}

export class NodeInventory {
  private facts: NodeFacts;
  private told: NodeFacts;
  private lookedAt = performance.now();

  constructor(
    private readonly opts: InventoryOptions,
    facts: NodeFacts,
  ) {
    this.facts = facts;
    this.told = steadied(facts, []);
  }

  /** Takes a new look at the node; true when it tells something new. */
  update(facts: NodeFacts): boolean {
    this.facts = facts;
    this.lookedAt = performance.now();
    const steady = steadied(facts, this.told.gpus);
    if (essence(steady) === essence(this.told)) return false;
    this.told = steady;
    return true;
  }

  /** What Hello and InventoryChanged carry. */
  announced(): Inventory {
    return this.whole(this.told);
  }

  /** ms since the last look. */
  age(): number {
    return Math.round(performance.now() - this.lookedAt);
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
    // One that has ended is shown with its date.
    const { info } = loadTlsFiles(tls, undefined, { anyDate: true });
    return { cn: info.cn ?? '', not_after: info.not_after };
  } catch {
    return null; // the stream says what is wrong with the files, at each attempt
  }
}

/** Others hold more of it than placement may overlook (INV-13). */
export const isForeign = (gpu: Pick<Gpu, 'foreign_mib'>): boolean => (gpu.foreign_mib ?? 0) > FOREIGN_MIB;

/**
 * What may be told of a look. A GPU that was told as foreign keeps the figure it was told with until others hold clearly
 * less: readers judge by the figure. The conditions of foreign GPUs are made anew, without figures.
 */
function steadied(facts: NodeFacts, told: Gpu[]): NodeFacts {
  const gpus = facts.gpus.map(gpu => {
    const before = told.find(t => t.uuid === gpu.uuid);
    const stays = before !== undefined && isForeign(before) && !isForeign(gpu);
    return stays && (gpu.foreign_mib ?? FOREIGN_MIB) >= FREE_AGAIN_MIB
      ? { ...gpu, foreign_mib: before.foreign_mib }
      : gpu;
  });
  const foreign = gpus.filter(isForeign).map(gpu => ({
    code: 'gpu_foreign',
    message: `GPU ${gpu.index} (${gpu.uuid}): other programs hold more than ${FOREIGN_MIB} MiB of it`,
  }));
  const others = facts.conditions.filter(c => c.code !== 'gpu_foreign');
  return { ...facts, gpus, conditions: [...others, ...foreign] };
}

function essence(facts: NodeFacts): string {
  const gpus = facts.gpus.map(gpu => ({ ...gpu, memory_free_mib: null, foreign_mib: isForeign(gpu) }));
  // Texts of conditions may carry figures; which ones there are is what matters.
  return JSON.stringify({ ...facts, gpus, conditions: facts.conditions.map(c => c.code).sort() });
}
