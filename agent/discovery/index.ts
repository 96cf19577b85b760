// Discovery: what this node is, put together from its parts.
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Condition, Gpu, Inventory } from '../../contracts/inventory.js';
import { type Logger, silentLogger } from '../../lib/log.js';
import type { AgentConfig } from '../config.js';
import { EngineCatalog } from '../engines/catalog.js';
import { hostConditions, hostFacts } from '../host.js';
import { checkFabrics } from './fabrics.js';
import { HardwareSource } from './hardware.js';
import { infiniband } from './infiniband.js';
import { KnownGpus } from './known-gpus.js';
import { NvmlHelper, type NvmlHelperOptions } from './nvml-helper.js';
import { loadSimulation, SimulatedSource, simulationRefusal } from './simulated.js';
import { SmiSource } from './smi-source.js';
import type { GpuFacts, GpuInventory, GpuSnapshot, GpuSource } from './types.js';

export type { GpuProcess, GpuSnapshot } from './types.js';
export { simulationRefusal };

/** An inventory without what the agent knows of itself. */
export type NodeFacts = Omit<Inventory, 'node_id' | 'agent_version' | 'certificate'>;

export type DiscoveryConfig = Pick<
  AgentConfig,
  'node_id' | 'server' | 'mgmt_addr' | 'labels' | 'fabrics' | 'discovery' | 'engines' | 'supervisor'
>;

export interface DiscoveryOptions {
  log?: Logger;
  /** Keeps the GPUs that it has seen in work_dir; else it only reads what is kept there. */
  keep?: boolean;
  /** Of NVML's helper, for tests. */
  nvml?: Omit<NvmlHelperOptions, 'library'>;
}

export interface Discovery {
  /** Everything; a second or two with nvidia-smi. `isOurs`: whether a pid belongs to one of our engines. */
  discover(isOurs?: (pid: number) => boolean): Promise<NodeFacts>;
  /** GPUs and HCAs anew, everything else as `discover` found it last. */
  discoverHardware(isOurs: (pid: number) => boolean): Promise<NodeFacts>;
  /** The driver tells something by itself; `facts` has it already. null: it is to be looked for. */
  onNews(listener: (facts: NodeFacts | null) => void): void;
  /** Ends what it has running. */
  end(): void;
  /** The same, and waits for it. */
  close(): Promise<void>;
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

interface Hardware {
  inventory: GpuInventory;
  snapshot: GpuSnapshot;
  hcas: Awaited<ReturnType<typeof infiniband>>;
}

interface Rest {
  engines: NodeFacts['engines'];
  host: Condition[];
}

/**
 * @param env LLMGW_SIMULATE names the file of a simulated node.
 * @throws Error with one sentence when a simulation is refused or its file can't be used.
 */
export function createDiscovery(
  config: DiscoveryConfig,
  env: NodeJS.ProcessEnv = process.env,
  options: DiscoveryOptions = {},
): Discovery {
  const simulated = simulatedSource(config, env);
  const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  const hardware =
    simulated === null && !config.discovery.skip_gpus ? hardwareSource(config, bootId, options) : null;
  const gpus: GpuSource = config.discovery.skip_gpus ? NO_GPUS : (simulated ?? hardware!);
  const catalog = new EngineCatalog(config.engines, { env });
  let last: { seen: Hardware; rest: Rest; isOurs: (pid: number) => boolean } | null = null;

  const lookAtHardware = async (): Promise<Hardware> => {
    const [inventory, hcas] = await Promise.all([
      gpus.inventory(),
      simulated === null ? infiniband(config.discovery.ib_root) : { ports: simulated.hcas(), conditions: [] },
    ]);
    const snapshot =
      inventory.snapshot ?? (inventory.gpus.length === 0 ? { gpus: [] } : await gpus.snapshot());
    return { inventory, snapshot, hcas };
  };

  const lookAtRest = async (): Promise<Rest> => {
    const [engines, host] = await Promise.all([
      catalog.list(),
      // A simulated node's engines need nothing of the host.
      simulated === null ? hostFacts().then(facts => hostConditions(facts, config)) : [],
    ]);
    return { engines, host };
  };

  const factsOf = (
    { inventory, snapshot, hcas }: Hardware,
    { engines, host }: Rest,
    isOurs: (pid: number) => boolean,
  ): NodeFacts => {
    const fabrics = checkFabrics(simulated?.fabrics(config.fabrics) ?? config.fabrics, hcas.ports);
    const listed = inventory.gpus.map(gpu => withForeign(gpu, snapshot, isOurs));
    return {
      boot_id: bootId,
      mgmt_addr: config.mgmt_addr,
      labels: config.labels,
      source: inventory.source,
      driver_version: inventory.driver_version,
      gpus: listed,
      nvlink_islands: inventory.islands,
      hcas: hcas.ports,
      fabrics,
      engines,
      conditions: [...inventory.conditions, ...hcas.conditions, ...conditions(listed, fabrics), ...host],
    };
  };

  return {
    catalog,
    engineEnv: simulated?.engineEnv ?? {},
    gpuSnapshot: () => gpus.snapshot(),
    async discover(isOurs) {
      const [seen, rest] = await Promise.all([lookAtHardware(), lookAtRest()]);
      if (isOurs !== undefined) last = { seen, rest, isOurs };
      return factsOf(seen, rest, isOurs ?? (() => false));
    },
    async discoverHardware(isOurs) {
      const [seen, rest] = await Promise.all([lookAtHardware(), last?.rest ?? lookAtRest()]);
      last = { seen, rest, isOurs };
      return factsOf(seen, rest, isOurs);
    },
    onNews: listener =>
      hardware?.onNews(() => {
        const inventory = hardware.again();
        if (inventory === null || last === null) return listener(null);
        const seen = { ...last.seen, inventory, snapshot: inventory.snapshot ?? last.seen.snapshot };
        listener(factsOf(seen, last.rest, last.isOurs));
      }),
    end: () => hardware?.end(),
    close: async () => hardware?.close(),
  };
}

function hardwareSource(
  config: DiscoveryConfig,
  bootId: string,
  { log = silentLogger(), keep = false, nvml = {} }: DiscoveryOptions,
): HardwareSource {
  const { prefer_nvml, nvml_library, nvidia_smi } = config.discovery;
  // The helper runs in another folder; a bare name is for the loader.
  const library = nvml_library.includes('/') ? resolve(nvml_library) : nvml_library;
  return new HardwareSource({
    nvml: prefer_nvml ? new NvmlHelper({ library, ...nvml }) : null,
    smi: new SmiSource(nvidia_smi),
    known: new KnownGpus({ bootId, workDir: config.supervisor.work_dir, readOnly: !keep, log }),
    log,
  });
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
