// GPUs as nvidia-smi tells them. A GPU that was there and is sick or gone stays in the list as unusable with the
// reason (its slot must not be taken for another's), and a driver that doesn't answer is a condition, not "no GPUs".
import type { Condition } from '../../contracts/inventory.js';
import { indexCell, numberCell, type Row, type RowFault, splitCells } from './cells.js';
import { hostMemory } from './host-memory.js';
import { migInstances } from './mig.js';
import { type Asked, NvidiaSmi, PatientSmi } from './nvidia-smi.js';
import { SILENT } from './nvml-failures.js';
import { gpuOf, missingIndices, notesOf, type ReadGpu, untangled, withDetails } from './smi-gpus.js';
import { conditionsOf, type LostGpu, lostGpus, needsReset } from './smi-sentences.js';
import { FORMAT, SmiTables } from './smi-tables.js';
import { type Islands, islandsOf } from './topology.js';
import type { GpuFacts, GpuInventory, GpuProcess, GpuSnapshot, GpuSource } from './types.js';

/** One look at the list of GPUs. */
interface Listing {
  /** null: there is no nvidia-smi. */
  gpus: ReadGpu[] | null;
  /** By UUID, as they came. */
  rows: Map<string, Row>;
  faults: RowFault[];
  lost: LostGpu[];
  conditions: Condition[];
}

/** A listing with what only inventories ask. */
interface Whole extends Omit<Listing, 'gpus'> {
  gpus: ReadGpu[];
  driver: string | null;
  islands: string[][];
  /** Two of its answers don't fit together, or one was cut: a GPU may have come or gone between them. */
  doubtful: boolean;
}

export class SmiSource implements GpuSource {
  readonly #smi: PatientSmi;
  /** True when agent.yaml names the program: then its absence is a fault. */
  readonly #wanted: boolean;
  readonly #meminfo: string;
  readonly #tables: SmiTables;
  /** Every GPU ever seen since the agent started, by UUID. */
  readonly #known = new Map<string, GpuFacts>();
  #snapshot: Promise<GpuSnapshot> | null = null;

  constructor(bin: string, smi: Asked = new NvidiaSmi(bin), meminfo = '/proc/meminfo') {
    this.#smi = new PatientSmi(smi);
    this.#tables = new SmiTables(this.#smi);
    this.#wanted = bin !== '';
    this.#meminfo = meminfo;
  }

  inventory(): Promise<GpuInventory> {
    return this.#smi.look(() => this.#inventory());
  }

  async #inventory(): Promise<GpuInventory> {
    let listing = await this.#list();
    if (listing.gpus === null)
      return { source: 'none', driver_version: null, gpus: [], islands: [], conditions: listing.conditions };
    let whole = await this.#whole({ ...listing, gpus: listing.gpus });
    // Where a lost GPU fails the other questions, a second look finds the same.
    if (whole.doubtful && whole.lost.length === 0 && this.#smi.hung === null) {
      listing = await this.#list();
      whole = await this.#whole({ ...listing, gpus: listing.gpus ?? [] });
    }
    const silent = this.#silent();
    // What could not be asked says nothing of a GPU that was seen before.
    for (const { used: _, ...gpu } of whole.gpus)
      if (silent === null || !this.#known.has(gpu.uuid)) this.#known.set(gpu.uuid, gpu);
    const all = this.#withVanished(whole).map(gpu => (silent === null ? gpu : unanswered(gpu)));
    const gpus = all.map(({ used: _, ...gpu }) => gpu);
    return {
      source: gpus.length === 0 ? 'none' : 'nvidia-smi',
      driver_version: whole.driver,
      gpus,
      islands: whole.islands,
      conditions:
        silent === null
          ? whole.conditions
          : [silent, ...listing.conditions.filter(c => c.code !== silent.code)],
      ...partial(whole),
      ...(silent === null ? {} : { snapshot: { gpus: all.map(gpu => momentOf(gpu, null)), silent } }),
    };
  }

  /** Concurrent callers share one look: each costs a second of a driver lock on a busy node. */
  snapshot(): Promise<GpuSnapshot> {
    this.#snapshot ??= this.#smi
      .look(() => this.#look())
      .finally(() => {
        this.#snapshot = null;
      });
    return this.#snapshot;
  }

  async #look(): Promise<GpuSnapshot> {
    const listing = await this.#list();
    const read = (listing.gpus ?? []).map(gpu => this.#withKnownFault(gpu));
    const processes = read.length === 0 ? null : await this.#processes();
    const silent = this.#silent();
    const gpus = this.#withVanished({ ...listing, gpus: read }).map(gpu =>
      silent === null
        ? momentOf(gpu, processes === null || !gpu.usable ? null : (processes.get(gpu.uuid) ?? []))
        : momentOf(unanswered(gpu), null),
    );
    return { gpus, ...(silent === null ? {} : { silent }) };
  }

  /** The driver has stopped to answer in this look. */
  #silent(): Condition | null {
    const { hung } = this.#smi;
    return hung === null ? null : conditionsOf(hung, 0)[0]!;
  }

  async #list(): Promise<Listing> {
    const { output, rows, faults } = await this.#tables.list();
    if (output === null) {
      const message = 'discovery.nvidia_smi names a program that does not exist';
      const conditions = this.#wanted ? [{ code: 'gpu_tool_missing', message }] : [];
      return { gpus: null, rows: new Map(), faults, lost: [], conditions };
    }
    const host = await hostMemory(this.#meminfo);
    const { gpus, conditions } = untangled(rows.map(row => gpuOf(row, host)));
    const lost = lostGpus(output.text);
    conditions.unshift(...conditionsOf(output, rows.length), ...faults.map(cutRow));
    const gaps = missingIndices(gpus);
    if (gaps.length > lost.length + faults.length) conditions.push(gapCondition(gaps));
    return {
      gpus,
      rows: new Map(gpus.map(gpu => [gpu.uuid, rows.find(row => indexCell(row.index) === gpu.index)!])),
      faults,
      lost,
      conditions,
    };
  }

  async #whole(listing: Omit<Listing, 'gpus'> & { gpus: ReadGpu[] }): Promise<Whole> {
    const found = listing.gpus.length === 0 ? [] : await this.#tables.details();
    const detailsOf = (gpu: ReadGpu) =>
      found.find(
        row =>
          indexCell(row.index) === gpu.index &&
          (row.uuid === undefined || row.uuid === listing.rows.get(gpu.uuid)?.uuid),
      );
    const split = listing.gpus.some(gpu => withDetails(gpu, detailsOf(gpu)).mig === true);
    const instances = split ? migInstances((await this.#smi.run(['-L']))?.out ?? '') : new Map();
    const gpus = listing.gpus.map(gpu => {
      const detailed = withDetails(gpu, detailsOf(gpu));
      return detailed.mig === true
        ? { ...detailed, mig_instances: instances.get(gpu.index) ?? [] }
        : detailed;
    });
    const topology = await this.#islands(gpus);
    const untold = !this.#tables.hasDetails ? [] : gpus.filter(gpu => detailsOf(gpu) === undefined);
    return {
      ...listing,
      gpus,
      driver: found.map(row => row.driver_version ?? '').find(version => /^\d+\.\d/.test(version)) ?? null,
      islands: topology.islands,
      conditions: [
        ...listing.conditions,
        ...untold.map(untoldCondition),
        ...gpus.flatMap(gpu => notesOf(gpu, listing.rows.get(gpu.uuid)!, detailsOf(gpu))),
        ...topology.conditions,
      ],
      doubtful:
        listing.faults.length > 0 || topology.doubtful || (untold.length > 0 && untold.length < gpus.length),
    };
  }

  async #islands(gpus: GpuFacts[]): Promise<Islands> {
    if (gpus.length < 2) return { islands: [], conditions: [], doubtful: false };
    const output = await this.#smi.run(['topo', '-m']);
    return islandsOf(output?.out ?? '', gpus);
  }

  /** Processes by UUID; null when the driver doesn't tell (containers without the host's pids, some vGPUs). */
  async #processes(): Promise<Map<string, GpuProcess[]> | null> {
    const query = '--query-compute-apps=gpu_uuid,pid,used_memory,process_name';
    const output = await this.#smi.run([query, FORMAT]);
    if (output === null || output.code !== 0 || /not supported/i.test(output.text)) return null;
    const processes = new Map<string, GpuProcess[]>();
    for (const line of output.out.split(/\r?\n/)) {
      const [uuid, pidCell, used] = splitCells(line);
      if (used === undefined) {
        // A sentence ("No running processes found"), or a row cut short: then who else is there isn't known.
        if (pidCell === undefined) continue;
        return null;
      }
      const pid = indexCell(pidCell);
      if (pid === null) return null;
      processes.set(uuid!, [...(processes.get(uuid!) ?? []), { pid, used_mib: numberCell(used) }]);
    }
    return processes;
  }

  /** MIG mode and the like are asked for with the inventory only: they hold until the next one. */
  #withKnownFault(gpu: ReadGpu): ReadGpu {
    const reason = gpu.reason ?? this.#known.get(gpu.uuid)?.reason ?? null;
    return { ...gpu, usable: reason === null, reason };
  }

  #withVanished({
    gpus,
    faults,
    lost,
    conditions,
  }: Omit<Listing, 'gpus' | 'rows'> & { gpus: ReadGpu[] }): ReadGpu[] {
    const there = new Set(gpus.map(gpu => gpu.uuid));
    const places = new Set(gpus.map(gpu => gpu.pci_bus_id));
    const vanished = [...this.#known.values()]
      .filter(gpu => !there.has(gpu.uuid))
      // Another one is in its place: it was replaced.
      .filter(gpu => gpu.pci_bus_id === null || !places.has(gpu.pci_bus_id))
      .map((gpu): ReadGpu => {
        const { fatal: _, ...rest } = gpu;
        const gone = whyGone(gpu, { listed: gpus.length, faults, lost, conditions });
        return { ...rest, memory_free_mib: null, used: null, usable: false, ...gone };
      });
    return [...gpus, ...vanished].sort((a, b) => a.index - b.index);
  }
}

const unanswered = (gpu: ReadGpu): ReadGpu => (gpu.usable ? { ...gpu, usable: false, reason: SILENT } : gpu);

const momentOf = (
  { uuid, index, usable, reason, used }: ReadGpu,
  processes: GpuProcess[] | null,
): GpuSnapshot['gpus'][number] => ({ uuid, index, usable, reason, memory_used_mib: used, processes });

function whyGone(
  gpu: GpuFacts,
  seen: { listed: number; faults: RowFault[]; lost: LostGpu[]; conditions: Condition[] },
): Pick<GpuFacts, 'reason' | 'fatal'> {
  const lost = seen.lost.find(({ bus, index }) =>
    bus === null ? index === gpu.index : sameBus(bus, gpu.pci_bus_id),
  );
  if (lost !== undefined && needsReset(lost.word)) return { reason: 'it requires a reset', fatal: true };
  if (lost !== undefined) return { reason: 'the driver has lost it (reboot the node)', fatal: true };
  // A look that failed as a whole, or in part, says nothing of the GPU itself.
  if (seen.listed === 0) return { reason: seen.conditions[0]?.message ?? 'nvidia-smi lists no GPU' };
  if (seen.faults.length > 0 || seen.conditions.some(c => c.code === 'gpu_list_odd'))
    return { reason: "nvidia-smi's list is not whole, or not clear" };
  return {
    reason: 'nvidia-smi no longer lists it: it has fallen off the bus (reboot the node)',
    fatal: true,
  };
}

/** Why GPUs that aren't listed may be there all the same. */
function partial({ gpus, faults, conditions }: Whole): { partial?: string } {
  const odd = faults.length > 0 || conditions.some(c => c.code === 'gpu_list_odd');
  return gpus.length > 0 && odd ? { partial: "nvidia-smi's list is not whole, or not clear" } : {};
}

/** `0000:13:00.0` and `00000000:13:00.0` are one place. */
function sameBus(a: string, b: string | null): boolean {
  const short = (bus: string) => bus.toLowerCase().replace(/^0+(?=[0-9a-f]{4}:)/, '');
  return b !== null && short(a) === short(b);
}

const cutRow = ({ line, index }: RowFault): Condition => ({
  code: 'gpu_row_malformed',
  message: `line ${line} of nvidia-smi's list${index === null ? '' : `, of GPU ${index},`} is cut short or garbled: that GPU is left out`,
});

const gapCondition = (gaps: number[]): Condition => ({
  code: 'gpu_missing',
  message: `nvidia-smi lists no GPU with index ${gaps.slice(0, 8).join(', ')}, and ones above: a GPU is missing (see the kernel log, reboot the node)`,
});

const untoldCondition = (gpu: GpuFacts): Condition => ({
  code: 'gpu_details_unknown',
  message: `GPU ${gpu.index} (${gpu.uuid}): nvidia-smi does not tell its MIG mode, fabric and health`,
});
