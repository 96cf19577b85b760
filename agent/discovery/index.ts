// Discovery: what this node is, put together from its parts. NVML comes before nvidia-smi once there is a helper
// process for it; until then `prefer_nvml` has nothing to prefer.
import { readFile } from 'node:fs/promises';
import type { Condition, Gpu, Inventory } from '../../contracts/inventory.js';
import type { AgentConfig } from '../config.js';
import { EngineCatalog } from '../engines/catalog.js';
import { checkFabrics, infinibandPorts } from './infiniband.js';
import { loadSimulation, SimulatedSource, simulationRefusal } from './simulated.js';
import { SmiSource } from './smi-source.js';
import type { GpuFacts, GpuInventory, GpuSnapshot, GpuSource } from './types.js';

export type { GpuProcess, GpuSnapshot } from './types.js';
export { simulationRefusal };

/** An inventory without what the agent knows of itself. */
export type NodeFacts = Omit<Inventory, 'node_id' | 'agent_version' | 'certificate'>;

export type DiscoveryConfig = Pick<
  AgentConfig,
  'node_id' | 'server' | 'mgmt_addr' | 'labels' | 'fabrics' | 'discovery' | 'engines'
>;

export interface Discovery {
  /** Everything; a second or two with nvidia-smi. `isOurs`: whether a pid belongs to one of our engines. */
  discover(isOurs?: (pid: number) => boolean): Promise<NodeFacts>;
  /** The GPUs alone, for baselines and the proof of stop (INV-2). */
  gpuSnapshot(): Promise<GpuSnapshot>;
  /** The engines of agent.yaml. */
  catalog: EngineCatalog;
  /** What engines of a simulated node must know to be seen on its GPUs; empty on a real one. */
  engineEnv: Record<string, string>;
}

/** Less than this by others is subtracted from free memory, not called foreign (INV-13). */
const FOREIGN_MIB = 512;

const NO_GPUS: GpuSource = {
  inventory: async (): Promise<GpuInventory> => ({
    source: 'none',
    driver_version: null,
    gpus: [],
    islands: [],
    conditions: [],
  }),
  snapshot: async () => ({ gpus: [] }),
};

/**
 * @param env LLMGW_SIMULATE names the file of a simulated node.
 * @throws Error with one sentence when a simulation is refused or its file can't be used.
 */
export function createDiscovery(config: DiscoveryConfig, env: NodeJS.ProcessEnv = process.env): Discovery {
  const simulated = simulatedSource(config, env);
  const gpus = config.discovery.skip_gpus
    ? NO_GPUS
    : (simulated ?? new SmiSource(config.discovery.nvidia_smi));
  const catalog = new EngineCatalog(config.engines, { env });
  return {
    catalog,
    engineEnv: simulated?.engineEnv ?? {},
    gpuSnapshot: () => gpus.snapshot(),
    async discover(isOurs = () => false) {
      const [inventory, hcas, engines, bootId] = await Promise.all([
        gpus.inventory(),
        simulated?.hcas() ?? infinibandPorts(config.discovery.ib_root),
        catalog.list(),
        readFile('/proc/sys/kernel/random/boot_id', 'utf8'),
      ]);
      const snapshot = inventory.gpus.length === 0 ? { gpus: [] } : await gpus.snapshot();
      const fabrics = checkFabrics(simulated?.fabrics(config.fabrics) ?? config.fabrics, hcas);
      const listed = inventory.gpus.map(gpu => withForeign(gpu, snapshot, isOurs));
      return {
        boot_id: bootId.trim(),
        mgmt_addr: config.mgmt_addr,
        labels: config.labels,
        source: inventory.source,
        driver_version: inventory.driver_version,
        gpus: listed,
        nvlink_islands: inventory.islands,
        hcas,
        fabrics,
        engines,
        conditions: [...inventory.conditions, ...conditions(listed, fabrics)],
      };
    },
  };
}

function simulatedSource(config: DiscoveryConfig, env: NodeJS.ProcessEnv): SimulatedSource | null {
  const file = env.LLMGW_SIMULATE;
  if (file === undefined || file === '') return null;
  const refusal = simulationRefusal(config.server);
  if (refusal !== null) throw new Error(refusal);
  return new SimulatedSource(loadSimulation(file), config.node_id);
}

function withForeign(gpu: GpuFacts, snapshot: GpuSnapshot, isOurs: (pid: number) => boolean): Gpu {
  const processes = snapshot.gpus.find(seen => seen.uuid === gpu.uuid)?.processes ?? null;
  const others = processes?.filter(process => !isOurs(process.pid)) ?? null;
  // One holder of unknown size makes the sum unknown; a sum without it would look like room.
  const known = others?.every(process => process.used_mib !== null) ?? false;
  const foreign = known ? others!.reduce((sum, process) => sum + process.used_mib!, 0) : null;
  return { ...gpu, foreign_mib: foreign };
}

function conditions(gpus: Gpu[], fabrics: Inventory['fabrics']): Condition[] {
  return [
    ...gpus
      .filter(gpu => !gpu.usable)
      .map(gpu => ({ code: 'gpu_unusable', message: `GPU ${gpu.index} (${gpu.uuid}): ${gpu.reason}` })),
    ...gpus
      .filter(gpu => (gpu.foreign_mib ?? 0) > FOREIGN_MIB)
      .map(gpu => ({
        code: 'gpu_foreign',
        message: `GPU ${gpu.index} (${gpu.uuid}): other programs hold ${gpu.foreign_mib} MiB of it`,
      })),
    ...fabrics
      .filter(fabric => fabric.problems.length > 0)
      .map(fabric => ({
        code: 'fabric_degraded',
        message: `fabric ${fabric.name}: ${fabric.problems.join('; ')}`,
      })),
  ];
}
