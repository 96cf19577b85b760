// Discovery: what this node is, put together from its parts.
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { type Condition, FOREIGN_MIB, type Inventory } from '../../contracts/inventory.js';
import { type Logger, silentLogger } from '../../lib/log.js';
import type { AgentConfig } from '../config.js';
import { EngineCatalog } from '../engines/catalog.js';
import { hostConditions, hostFacts } from '../host.js';
import { mgmtConditions } from '../network.js';
import { checkFabrics } from './fabrics.js';
import { type IsOurs, type Judged, withForeign } from './foreign.js';
import { HardwareSource } from './hardware.js';
import { infiniband } from './infiniband.js';
import { KnownGpus } from './known-gpus.js';
import { SILENT } from './nvml-failures.js';
import { NvmlHelper, type NvmlHelperOptions } from './nvml-helper.js';
import { loadSimulation, SimulatedSource, simulationRefusal } from './simulated.js';
import { SmiSource } from './smi-source.js';
import type { GpuInventory, GpuSnapshot, GpuSource } from './types.js';

export type { GpuProcess, GpuSnapshot } from './types.js';
export { simulationRefusal };

/** An inventory without what the agent knows of itself. */
export type NodeFacts = Omit<Inventory, 'node_id' | 'agent_version' | 'certificate'>;

export type DiscoveryConfig = Pick<
  AgentConfig,
  | 'node_id'
  | 'server'
  | 'mgmt_addr'
  | 'mgmt_interface'
  | 'labels'
  | 'fabrics'
  | 'discovery'
  | 'engines'
  | 'supervisor'
>;

export interface DiscoveryOptions {
  log?: Logger;
  /** Keeps the GPUs that it has seen in work_dir; else it only reads what is kept there. */
  keep?: boolean;
  /** Of NVML's helper, for tests. */
  nvml?: Omit<NvmlHelperOptions, 'library'>;
}

/** Whether an engine of ours is on a GPU, also one whose processes the driver doesn't name (containers). */
type Holds = (uuid: string) => boolean;

export interface Discovery {
  /** Everything; a second or two with nvidia-smi. `isOurs`: whether a pid belongs to one of our engines. */
  discover(isOurs?: IsOurs, holds?: Holds): Promise<NodeFacts>;
  /** GPUs and HCAs anew, everything else as `discover` found it last. */
  discoverHardware(isOurs: IsOurs, holds?: Holds): Promise<NodeFacts>;
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
  let last: { seen: Hardware; rest: Rest; isOurs: IsOurs; holds: Holds | undefined } | null = null;

  const lookAtHardware = async (): Promise<Hardware> => {
    const [inventory, hcas] = await Promise.all([
      gpus.inventory(),
      simulated === null
        ? infiniband(config.discovery.ib_root)
        : { ports: simulated.hcas(), portless: [], conditions: [] },
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
    isOurs: IsOurs,
    holds: Holds = () => false,
  ): NodeFacts => {
    const fabrics = checkFabrics(
      simulated?.fabrics(config.fabrics) ?? config.fabrics,
      hcas.ports,
      hcas.portless,
    );
    const { silent } = snapshot;
    const told = silent === undefined || inventory.conditions.some(({ code }) => code === silent.code);
    const answered = inventory.gpus.map(gpu =>
      silent === undefined || !gpu.usable ? gpu : { ...gpu, usable: false, reason: SILENT },
    );
    const judged = answered.map(gpu => withForeign(gpu, snapshot, isOurs, holds(gpu.uuid)));
    const listed = judged.map(({ unnamed: _, ...gpu }) => gpu);
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
      conditions: [
        ...(told ? [] : [silent]),
        ...inventory.conditions,
        ...hcas.conditions,
        ...conditions(judged, fabrics),
        ...mgmtConditions(config),
        ...host,
      ],
    };
  };

  return {
    catalog,
    engineEnv: simulated?.engineEnv ?? {},
    gpuSnapshot: () => gpus.snapshot(),
    async discover(isOurs, holds) {
      const [seen, rest] = await Promise.all([lookAtHardware(), lookAtRest()]);
      if (isOurs !== undefined) last = { seen, rest, isOurs, holds };
      return factsOf(seen, rest, isOurs ?? (() => false), holds);
    },
    async discoverHardware(isOurs, holds) {
      const [seen, rest] = await Promise.all([lookAtHardware(), last?.rest ?? lookAtRest()]);
      last = { seen, rest, isOurs, holds };
      return factsOf(seen, rest, isOurs, holds);
    },
    onNews: listener =>
      hardware?.onNews(() => {
        const inventory = hardware.again();
        if (inventory === null || last === null) return listener(null);
        const seen = { ...last.seen, inventory, snapshot: inventory.snapshot ?? last.seen.snapshot };
        listener(factsOf(seen, last.rest, last.isOurs, last.holds));
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

function conditions(gpus: Judged[], fabrics: Inventory['fabrics']): Condition[] {
  return [
    ...gpus
      .filter(gpu => !gpu.usable)
      .map(gpu => ({ code: 'gpu_unusable', message: `GPU ${gpu.index} (${gpu.uuid}): ${gpu.reason}` })),
    ...gpus
      .filter(gpu => (gpu.foreign_mib ?? 0) > FOREIGN_MIB)
      .map(gpu => ({
        code: 'gpu_foreign',
        message: `GPU ${gpu.index} (${gpu.uuid}): ${gpu.unnamed > 0 ? `${gpu.unnamed} MiB are in use by no process that the driver names: find its program (fuser -v /dev/nvidia*), or reset it` : `other programs hold ${gpu.foreign_mib} MiB of it`}`,
      })),
    ...fabrics
      .filter(fabric => fabric.problems.length > 0)
      .map(fabric => ({
        code: 'fabric_degraded',
        message: `fabric ${fabric.name}: ${fabric.problems.join('; ')}`,
      })),
  ];
}
