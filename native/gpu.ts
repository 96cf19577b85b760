// One GPU, figure by figure. What the driver doesn't tell is null with its code kept: one call that fails costs one
// figure, never the GPU.
import koffi from 'koffi';
import { NVML } from './codes.js';
import { fabricOf, recoveryActionOf, remapOf } from './health.js';
import { DeviceAttributes, MemoryV2, ProcessInfo, versionOf } from './layouts.js';
import { type Library, textOf } from './library.js';
import type { Figures, GpuReading, Holder, HoldersReading, Memory } from './protocol.js';

export type Handle = bigint;

/** The longest buffers of NVML's own header: newer drivers write longer names than older ones. */
const TEXT_BYTES = 96;
/** usedGpuMemory of a process whose figure isn't told. */
const NOT_AVAILABLE = 0xffff_ffff_ffff_ffffn;
/** More than any GPU has (7); a driver that claims more is not believed. */
const MIG_MAX = 64;
/** Contexts on one GPU; a driver that claims more is not believed. */
const PROCESSES_MAX = 65_536;

/** A GPU that may be asked. */
export class Gpu {
  constructor(
    readonly library: Library,
    readonly index: number,
    readonly handle: Handle,
  ) {}

  call(name: string, parameters: string, ...args: unknown[]): Promise<number> {
    return this.library.call(name, `nvmlDevice_t${parameters}`, this.handle, ...args);
  }

  async holders(): Promise<HoldersReading> {
    const codes: Record<string, number> = {};
    return {
      index: this.index,
      handle: NVML.OK,
      uuid: await this.text(codes, 'uuid', 'nvmlDeviceGetUUID'),
      memory: await this.#memory(codes),
      processes: await this.#processes(codes),
      codes,
    };
  }

  /** What may change at any time. */
  async state(): Promise<
    HoldersReading & Pick<GpuReading, 'ecc_uncorrected' | 'remap' | 'recovery_action' | 'fabric' | 'mig'>
  > {
    const holders = await this.holders();
    const { codes } = holders;
    const mig = await this.#pair(codes, 'mig', 'nvmlDeviceGetMigMode', 'uint32_t');
    const ecc = [null] as (number | bigint | null)[];
    const volatile = 0;
    const uncorrected = 1;
    const total = ', int, int, _Out_ uint64_t *';
    const counted = await this.figure(codes, 'ecc_uncorrected', () =>
      this.call('nvmlDeviceGetTotalEccErrors', total, uncorrected, volatile, ecc),
    );
    return {
      ...holders,
      mig,
      ecc_uncorrected: counted ? Number(ecc[0]) : null,
      remap: await remapOf(this, codes),
      recovery_action: await recoveryActionOf(this, codes),
      fabric: await fabricOf(this, codes),
    };
  }

  /** What hardly changes, but for links. */
  async identity(codes: Figures['codes'], migOn: boolean) {
    const major = [null] as (number | null)[];
    const minor = [null] as (number | null)[];
    const capable = await this.figure(codes, 'compute_capability', () =>
      this.call('nvmlDeviceGetCudaComputeCapability', ', _Out_ int *, _Out_ int *', major, minor),
    );
    return {
      name: await this.text(codes, 'name', 'nvmlDeviceGetName'),
      pci_bus_id: await this.#busId(codes),
      compute_capability: capable ? `${major[0]}.${minor[0]}` : null,
      ecc_mode: await this.#pair(codes, 'ecc_mode', 'nvmlDeviceGetEccMode', 'int'),
      virtualization: await this.number(codes, 'virtualization', 'nvmlDeviceGetVirtualizationMode', 'int'),
      numa_node: await this.number(codes, 'numa_node', 'nvmlDeviceGetNumaNodeId', 'uint32_t'),
      compute_mode: await this.number(codes, 'compute_mode', 'nvmlDeviceGetComputeMode', 'int'),
      mig_instances: migOn ? await this.#migInstances(codes) : [],
    };
  }

  async text(codes: Figures['codes'], figure: string, name: string): Promise<string | null> {
    const bytes = Buffer.alloc(TEXT_BYTES);
    const told = await this.figure(codes, figure, () =>
      this.call(name, ', _Out_ uint8_t *, uint32_t', bytes, bytes.length),
    );
    return told ? textOf(bytes) || null : null;
  }

  async number(codes: Figures['codes'], figure: string, name: string, type: string): Promise<number | null> {
    const value = [null] as (number | null)[];
    const told = await this.figure(codes, figure, () => this.call(name, `, _Out_ ${type} *`, value));
    return told ? value[0]! : null;
  }

  async #pair(codes: Figures['codes'], figure: string, name: string, type: string) {
    const current = [null] as (number | null)[];
    const pending = [null] as (number | null)[];
    const told = await this.figure(codes, figure, () =>
      this.call(name, `, _Out_ ${type} *, _Out_ ${type} *`, current, pending),
    );
    return told ? { current: current[0]!, pending: pending[0]! } : null;
  }

  /** The second version tells what the driver reserves; drivers before it have the first. */
  async #memory(codes: Figures['codes']): Promise<Memory | null> {
    const second = { version: versionOf(MemoryV2, 2), total: 0, free: 0, used: 0, reserved: 0 };
    const code = await this.call('nvmlDeviceGetMemoryInfo_v2', ', _Inout_ nvmlMemory_v2_t *', second);
    if (code === NVML.OK) return memoryOf(second, Number(second.reserved));
    if (code !== NVML.FUNCTION_NOT_FOUND && code !== NVML.ARGUMENT_VERSION_MISMATCH) {
      codes.memory = code;
      return null;
    }
    const first = { total: 0, free: 0, used: 0 };
    const told = await this.figure(codes, 'memory', () =>
      this.call('nvmlDeviceGetMemoryInfo', ', _Out_ nvmlMemory_t *', first),
    );
    return told ? memoryOf(first, null) : null;
  }

  async #busId(codes: Figures['codes']): Promise<string | null> {
    const pci = {} as { busId?: Uint8Array };
    const told = await this.figure(codes, 'pci_bus_id', () =>
      this.call('nvmlDeviceGetPciInfo_v3', ', _Out_ nvmlPciInfo_t *', pci),
    );
    return told ? textOf(Uint8Array.from(pci.busId!)) || null : null;
  }

  /** The list may grow between the question for its size and the one for itself. */
  async #processes(codes: Figures['codes']): Promise<Holder[] | null> {
    const size = koffi.sizeof(ProcessInfo);
    let room = 32;
    for (let attempt = 0; attempt < 6; attempt++) {
      const list = Buffer.alloc(room * size);
      const count = [room];
      const code = await this.#processList(count, list);
      if (code === NVML.INSUFFICIENT_SIZE && count[0]! <= PROCESSES_MAX) {
        room = Math.max(count[0]!, room) + 32;
        continue;
      }
      if (code !== NVML.OK || count[0]! > room) {
        codes.processes = code;
        return null;
      }
      return Array.from({ length: count[0]! }, (_, at) =>
        holderOf(koffi.decode(list, at * size, ProcessInfo)),
      );
    }
    codes.processes = NVML.INSUFFICIENT_SIZE;
    return null;
  }

  async #processList(count: number[], list: Buffer): Promise<number> {
    const name = 'nvmlDeviceGetComputeRunningProcesses';
    const parameters = ', _Inout_ uint32_t *, _Out_ uint8_t *';
    const third = await this.call(`${name}_v3`, parameters, count, list);
    return third === NVML.FUNCTION_NOT_FOUND ? this.call(`${name}_v2`, parameters, count, list) : third;
  }

  /** Indices may have holes. */
  async #migInstances(codes: Figures['codes']): Promise<GpuReading['mig_instances']> {
    const max = await this.number(codes, 'mig_instances', 'nvmlDeviceGetMaxMigDeviceCount', 'uint32_t');
    const found: GpuReading['mig_instances'] = [];
    for (let at = 0; at < Math.min(max ?? 0, MIG_MAX); at++) {
      const handle = [null] as (bigint | null)[];
      const code = await this.call(
        'nvmlDeviceGetMigDeviceHandleByIndex',
        ', uint32_t, _Out_ nvmlDevice_t *',
        at,
        handle,
      );
      if (code !== NVML.OK || handle[0] === null) continue;
      const instance = new Gpu(this.library, this.index, handle[0]!);
      const attributes = {} as Record<string, number>;
      const sized = await instance.call(
        'nvmlDeviceGetAttributes_v2',
        `, _Out_ ${DeviceAttributes.name} *`,
        attributes,
      );
      found.push({
        uuid: await instance.text({}, 'uuid', 'nvmlDeviceGetUUID'),
        name: await instance.text({}, 'name', 'nvmlDeviceGetName'),
        memory_mib: sized === NVML.OK ? Number(attributes.memorySizeMB) : null,
      });
    }
    return found;
  }

  /** True when the driver answered; else its code is kept. */
  async figure(codes: Figures['codes'], figure: string, ask: () => Promise<number>): Promise<boolean> {
    const code = await ask();
    if (code !== NVML.OK) codes[figure] = code;
    return code === NVML.OK;
  }
}

const memoryOf = (out: Record<'total' | 'free' | 'used', unknown>, reserved: number | null): Memory => ({
  total: Number(out.total),
  free: Number(out.free),
  used: Number(out.used),
  reserved,
});

const holderOf = (info: { pid: number; usedGpuMemory: number | bigint }): Holder => ({
  pid: info.pid,
  used: BigInt(info.usedGpuMemory) === NOT_AVAILABLE ? null : Number(info.usedGpuMemory),
});
