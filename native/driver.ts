// The driver as a whole: opened once and kept open, since opening it starts GPUs that nobody holds and takes seconds.
import { NVML } from './codes.js';
import { Gpu } from './gpu.js';
import { Library, textOf } from './library.js';
import { linksOf, pairsOf } from './links.js';
import type { GpuReading, HoldersReading, OpenFailure, Reading } from './protocol.js';

/** No machine has as many; a driver that claims more is not believed. */
const GPUS_MAX = 128;
const VERSION_BYTES = 80;

/** What hardly changes. */
type Identity = Pick<
  GpuReading,
  | 'name'
  | 'pci_bus_id'
  | 'compute_capability'
  | 'ecc_mode'
  | 'virtualization'
  | 'numa_node'
  | 'compute_mode'
  | 'mig_instances'
  | 'links'
  | 'p2p'
  | 'codes'
>;

const NOTHING: Omit<GpuReading, 'index' | 'handle' | 'codes'> = {
  uuid: null,
  memory: null,
  processes: null,
  name: null,
  pci_bus_id: null,
  compute_capability: null,
  mig: null,
  mig_instances: [],
  ecc_mode: null,
  ecc_uncorrected: null,
  remap: null,
  recovery_action: null,
  fabric: null,
  virtualization: null,
  numa_node: null,
  compute_mode: null,
  links: null,
  p2p: null,
};

/** A handle, or the code that stands in its place: the slot stays. */
export type Slot = Gpu | { index: number; code: number };

export class OpenError extends Error {
  constructor(readonly failure: OpenFailure) {
    super(failure.message ?? `${failure.step}: ${failure.code}`);
  }
}

export class Driver {
  readonly #path: string;
  #library: Library | null = null;
  #version: string | null = null;
  readonly #identities = new Map<string, Identity>();

  /** @param path '' looks in the usual places. */
  constructor(path: string) {
    this.#path = path;
  }

  /** Every GPU that the driver counts, opened first if need be. @throws OpenError */
  async slots(): Promise<Slot[]> {
    let library = await this.#open();
    const count = [null] as (number | null)[];
    const ask = () => library.call('nvmlDeviceGetCount_v2', '_Out_ uint32_t *', count);
    let code = await ask();
    if (code === NVML.UNINITIALIZED) {
      this.#library = null; // the driver was loaded anew
      library = await this.#open();
      code = await ask();
    }
    if (code === NVML.OK && count[0]! > GPUS_MAX) code = NVML.UNKNOWN;
    if (code !== NVML.OK) throw new OpenError({ step: 'nvmlDeviceGetCount_v2', code, message: null });
    const slots: Slot[] = [];
    for (let index = 0; index < count[0]!; index++) slots.push(await slotOf(library, index));
    return slots;
  }

  /** null: not open. */
  get library(): Library | null {
    return this.#library;
  }

  async holders(): Promise<HoldersReading[]> {
    const readings: HoldersReading[] = [];
    for (const slot of await this.slots()) {
      readings.push(
        slot instanceof Gpu
          ? await slot.holders()
          : { index: slot.index, handle: slot.code, uuid: null, memory: null, processes: null, codes: {} },
      );
    }
    return readings;
  }

  /** @param full asks anew for what hardly changes; without it only of GPUs that weren't there before. */
  async inventory(full: boolean): Promise<Reading> {
    const slots = await this.slots();
    const there = slots.filter(slot => slot instanceof Gpu);
    if (full) this.#identities.clear();
    const gpus: GpuReading[] = [];
    for (const slot of slots) {
      if (!(slot instanceof Gpu)) {
        gpus.push({ ...NOTHING, index: slot.index, handle: slot.code, codes: {} });
        continue;
      }
      const state = await slot.state();
      const identity = await this.#identity(slot, state.uuid, state.mig?.current === 1, there);
      gpus.push({ ...NOTHING, ...identity, ...state, codes: { ...identity.codes, ...state.codes } });
    }
    return { driver_version: this.#version, gpus };
  }

  async close(): Promise<void> {
    if (this.#library !== null) await this.#library.call('nvmlShutdown', 'void');
    this.#library = null;
  }

  /** The library, initialised. @throws OpenError */
  async #open(): Promise<Library> {
    if (this.#library !== null) return this.#library;
    let library: Library;
    try {
      library = new Library(this.#path);
    } catch (error) {
      throw new OpenError({ step: 'load', code: null, message: (error as Error).message });
    }
    const code = await library.call('nvmlInit_v2', 'void');
    if (code !== NVML.OK) throw new OpenError({ step: 'nvmlInit_v2', code, message: null });
    const bytes = Buffer.alloc(VERSION_BYTES);
    const told = await library.call(
      'nvmlSystemGetDriverVersion',
      '_Out_ uint8_t *, uint32_t',
      bytes,
      bytes.length,
    );
    this.#version = told === NVML.OK ? textOf(bytes) || null : null;
    this.#library = library;
    return library;
  }

  async #identity(gpu: Gpu, uuid: string | null, migOn: boolean, all: Gpu[]): Promise<Identity> {
    // MIG instances come and go by themselves, and GPUs by number: both make another key.
    const key = `${uuid} ${migOn} ${all.map(other => other.index)}`;
    const known = uuid === null ? undefined : this.#identities.get(key);
    if (known !== undefined) return known;
    const codes: Record<string, number> = {};
    // Instances of a GPU have no NVLink.
    const p2p = migOn ? null : await pairsOf(gpu, all);
    const identity: Identity = {
      ...(await gpu.identity(codes, migOn)),
      p2p,
      // Where the driver has a word on each pair, nobody needs to know where each link leads.
      links: migOn ? null : await linksOf(gpu, p2p === null || Object.values(p2p).includes(null)),
      codes,
    };
    this.#identities.set(key, identity);
    return identity;
  }
}

async function slotOf(library: Library, index: number): Promise<Slot> {
  const handle = [null] as (bigint | null)[];
  const parameters = 'uint32_t, _Out_ nvmlDevice_t *';
  const code = await library.call('nvmlDeviceGetHandleByIndex_v2', parameters, index, handle);
  if (code !== NVML.OK) return { index, code };
  return handle[0] == null ? { index, code: NVML.UNKNOWN } : new Gpu(library, index, handle[0]);
}
