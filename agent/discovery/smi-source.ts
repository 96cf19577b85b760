// GPUs as nvidia-smi tells them. A GPU that was there and is sick or gone stays in the list as unusable with the
// reason (its slot must not be taken for another's), and a driver that doesn't answer is a condition, not "no GPUs".
import type { Condition } from '../../contracts/inventory.js';
import { csvRows, numberCell, sickness, textCell } from './cells.js';
import { NvidiaSmi, type SmiOutput } from './nvidia-smi.js';
import { maximalCliques, nvlinkPairs } from './topology.js';
import type { GpuFacts, GpuInventory, GpuProcess, GpuSnapshot, GpuSource } from './types.js';

/** What every driver in use knows. */
const BASE = [
  'index',
  'uuid',
  'name',
  'pci.bus_id',
  'memory.total',
  'memory.used',
  'memory.free',
  'driver_version',
];
/** Unknown to older drivers, which refuse the whole query: asked apart, each dropped once it was refused. */
const OPTIONAL = ['compute_cap', 'mig.mode.current', 'fabric.state'];

const format = ['--format=csv,noheader,nounits'];

const SENTENCES: { match: RegExp; code: string; message: (text: string) => string }[] = [
  {
    match: /Driver\/library version mismatch/,
    code: 'gpu_driver_mismatch',
    message: text =>
      `the NVIDIA driver in the kernel and its library differ (${/NVML library version: (\S+)/.exec(text)?.[1] ?? 'after an upgrade'}): reboot the node or reload the module; running engines go on`,
  },
  {
    match: /couldn't communicate with the NVIDIA driver/,
    code: 'gpu_driver_absent',
    message: () => 'nvidia-smi cannot reach the NVIDIA driver: it is not loaded',
  },
  {
    match: /No devices were found/,
    code: 'gpu_none_found',
    message: () => 'the NVIDIA driver is loaded but found no GPU',
  },
  {
    match: /Insufficient Permissions/,
    code: 'gpu_no_permission',
    message: () => 'the agent may not ask the NVIDIA driver (insufficient permissions)',
  },
];

const LOST =
  /Unable to determine the device handle for (?:GPU)?\s*([0-9A-Fa-f:.]+?):?\s+(?:Unknown Error|GPU is lost.*)$/gm;

interface Reading {
  /** null: there is no nvidia-smi. */
  gpus: (GpuFacts & { used: number | null })[] | null;
  driver: string | null;
  conditions: Condition[];
}

export class SmiSource implements GpuSource {
  readonly #smi: NvidiaSmi;
  /** True when agent.yaml names the program: then its absence is a fault. */
  readonly #wanted: boolean;
  readonly #optional = new Set(OPTIONAL);
  /** Every GPU ever seen since the agent started, by UUID. */
  readonly #known = new Map<string, GpuFacts>();
  #snapshot: Promise<GpuSnapshot> | null = null;

  constructor(bin: string, smi: NvidiaSmi = new NvidiaSmi(bin)) {
    this.#smi = smi;
    this.#wanted = bin !== '';
  }

  async inventory(): Promise<GpuInventory> {
    const { gpus: read, driver, conditions } = await this.#read();
    if (read === null) return { source: 'none', driver_version: null, gpus: [], islands: [], conditions };
    const extra = await this.#optionalFields();
    const gpus = read.map(({ used: _, ...gpu }) => withOptional(gpu, extra.get(gpu.uuid)));
    for (const gpu of gpus) this.#known.set(gpu.uuid, gpu);
    const all = this.#withVanished(gpus);
    const topology = gpus.length > 1 ? await this.#smi.run(['topo', '-m']) : null;
    return {
      source: all.length === 0 ? 'none' : 'nvidia-smi',
      driver_version: driver,
      gpus: all,
      islands: topology === null ? [] : islands(topology, gpus, conditions),
      conditions,
    };
  }

  /** Concurrent callers share one look: each costs a second of a driver lock on a busy node. */
  snapshot(): Promise<GpuSnapshot> {
    this.#snapshot ??= this.#look().finally(() => {
      this.#snapshot = null;
    });
    return this.#snapshot;
  }

  async #look(): Promise<GpuSnapshot> {
    const { gpus: read } = await this.#read();
    const gpus = read?.map(gpu => this.#withKnownFault(gpu)) ?? null;
    const used = new Map((gpus ?? []).map(gpu => [gpu.uuid, gpu.used]));
    const processes = gpus === null || gpus.length === 0 ? null : await this.#processes();
    return {
      gpus: this.#withVanished(gpus ?? []).map(({ uuid, index, usable, reason }) => ({
        uuid,
        index,
        usable,
        reason,
        memory_used_mib: used.get(uuid) ?? null,
        processes: processes === null || !usable ? null : (processes.get(uuid) ?? []),
      })),
    };
  }

  async #read(): Promise<Reading> {
    const output = await this.#smi.run([`--query-gpu=${BASE.join(',')}`, ...format]);
    if (output === null) {
      const condition = {
        code: 'gpu_tool_missing',
        message: 'discovery.nvidia_smi names a program that does not exist',
      };
      return { gpus: null, driver: null, conditions: this.#wanted ? [condition] : [] };
    }
    const rows = csvRows(output.text, BASE.length).filter(row => numberCell(row[0]) !== null);
    const conditions = conditionsOf(output, rows.length);
    const gpus = rows.map(row => {
      const [index, uuid, name, bus, total, used, free] = row;
      const reason = sickness(row);
      return {
        index: Number(index),
        uuid: textCell(uuid) ?? `unknown-${index}`,
        name: textCell(name) ?? 'unknown',
        pci_bus_id: textCell(bus),
        memory_total_mib: numberCell(total),
        memory_free_mib: numberCell(free),
        compute_capability: null,
        mig: null,
        usable: reason === null,
        reason,
        used: numberCell(used),
      };
    });
    return {
      gpus,
      driver: rows.map(row => textCell(row[7])).find(version => version !== null) ?? null,
      conditions,
    };
  }

  /** The optional columns by UUID; a column that the driver doesn't know is dropped for good. */
  async #optionalFields(): Promise<Map<string, Map<string, string>>> {
    const found = new Map<string, Map<string, string>>();
    while (this.#optional.size > 0) {
      const fields = [...this.#optional];
      const output = await this.#smi.run([`--query-gpu=uuid,${fields.join(',')}`, ...format]);
      const refused = /Field "([^"]+)" is not a valid field/.exec(output?.text ?? '')?.[1];
      if (refused !== undefined && this.#optional.delete(refused)) continue;
      for (const [uuid, ...cells] of csvRows(output?.text ?? '', fields.length + 1)) {
        found.set(uuid!, new Map(fields.map((field, i) => [field, cells[i]!])));
      }
      break;
    }
    return found;
  }

  /** Processes by UUID; null when the driver doesn't tell (containers without the host's pids, some vGPUs). */
  async #processes(): Promise<Map<string, GpuProcess[]> | null> {
    const columns = ['gpu_uuid', 'pid', 'used_memory', 'process_name'];
    const output = await this.#smi.run([`--query-compute-apps=${columns.join(',')}`, ...format]);
    if (output === null || output.code !== 0 || /not supported/i.test(output.text)) return null;
    const processes = new Map<string, GpuProcess[]>();
    for (const [uuid, pid, used] of csvRows(output.text, columns.length)) {
      const process = { pid: numberCell(pid), used_mib: numberCell(used) };
      if (process.pid === null) return null;
      processes.set(uuid!, [...(processes.get(uuid!) ?? []), { ...process, pid: process.pid }]);
    }
    return processes;
  }

  /** MIG mode and the like are asked for with the inventory only: they hold until the next one. */
  #withKnownFault<T extends GpuFacts>(gpu: T): T {
    const reason = gpu.reason ?? this.#known.get(gpu.uuid)?.reason ?? null;
    return { ...gpu, usable: reason === null, reason };
  }

  #withVanished(present: GpuFacts[]): GpuFacts[] {
    const there = new Set(present.map(gpu => gpu.uuid));
    const vanished = [...this.#known.values()]
      .filter(gpu => !there.has(gpu.uuid))
      .map(gpu => ({
        ...gpu,
        memory_free_mib: null,
        usable: false,
        reason: 'nvidia-smi no longer lists it',
      }));
    return [...present, ...vanished].sort((a, b) => a.index - b.index);
  }
}

function conditionsOf({ code, text }: SmiOutput, rows: number): Condition[] {
  const conditions = [...text.matchAll(LOST)].map(([, bus]) => ({
    code: 'gpu_lost',
    message: `the driver has lost the GPU at ${bus}: reboot the node`,
  }));
  if (conditions.length > 0) return conditions;
  const known = SENTENCES.find(({ match }) => match.test(text) && rows === 0);
  if (known !== undefined) return [{ code: known.code, message: known.message(text) }];
  if (rows > 0 || (code === 0 && text.trim() === '')) return [];
  const said = text.trim().split('\n')[0]?.slice(0, 200) ?? '';
  return [
    { code: 'gpu_driver_unresponsive', message: said === '' ? `nvidia-smi exited with ${code}` : said },
  ];
}

function withOptional(gpu: GpuFacts, fields: Map<string, string> | undefined): GpuFacts {
  const mode = fields?.get('mig.mode.current');
  const mig = mode === 'Enabled' ? true : mode === 'Disabled' ? false : null;
  const fabric = textCell(fields?.get('fabric.state'));
  const reason =
    gpu.reason ??
    (mig === true ? 'MIG mode' : null) ??
    // CUDA answers 802 until the fabric manager has joined the GPU.
    (fabric !== null && /In Progress|Not Started/i.test(fabric)
      ? `its NVLink fabric is not up (${fabric})`
      : null);
  return {
    ...gpu,
    compute_capability: textCell(fields?.get('compute_cap')),
    mig,
    usable: reason === null,
    reason,
  };
}

function islands(output: SmiOutput, gpus: GpuFacts[], conditions: Condition[]): string[][] {
  const { gpus: shown, pairs } = nvlinkPairs(output.text);
  const uuids = new Map(gpus.map(gpu => [gpu.index, gpu.uuid]));
  if (shown.length !== gpus.length || shown.some(index => !uuids.has(index))) {
    const message = `nvidia-smi topo -m shows ${shown.length} GPUs, the list ${gpus.length}: NVLink is not counted on`;
    conditions.push({ code: 'gpu_topology_unknown', message });
    return [];
  }
  return maximalCliques(shown, pairs).map(clique => clique.map(index => uuids.get(index)!));
}
