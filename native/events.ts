// What the driver tells by itself (Xid, ECC, a recovery that it asks for), as it happens. The wait is on a thread of its
// own and ends a few times a second: it holds up neither a question nor the end of this process.
import { setTimeout as pause } from 'node:timers/promises';
import { EVENTS, NVML } from './codes.js';
import type { Gpu } from './gpu.js';
import type { Library } from './library.js';
import type { DriverEvent } from './protocol.js';

/** Known to every driver. */
const FIRST = EVENTS.XID | EVENTS.DOUBLE_BIT_ECC;
/** Each newer than the one before: a driver that doesn't know a bit refuses the whole call. */
const MORE = [
  EVENTS.MIG_CONFIG,
  EVENTS.DRAM_RETIREMENT_FAILURE,
  EVENTS.FATAL_POISON,
  EVENTS.GPU_UNAVAILABLE,
  EVENTS.RECOVERY_ACTION,
];
const WAIT_MS = 250;
/** After a failed wait: a lost GPU makes each of them fail at once. */
const REST_MS = 1_000;

export class Events {
  readonly #tell: (event: DriverEvent) => void;
  #library: Library | null = null;
  #set: bigint | null = null;
  readonly #uuids = new Map<bigint, string>();
  #stopped = false;
  #waiting: Promise<void> = Promise.resolve();

  constructor(tell: (event: DriverEvent) => void) {
    this.#tell = tell;
  }

  /** Takes in GPUs that aren't watched yet. Never throws: without events the agent has its looks. */
  async watch(library: Library, gpus: { gpu: Gpu; uuid: string }[]): Promise<void> {
    if (library !== this.#library) await this.#begin(library);
    const set = this.#set;
    if (set === null) return;
    for (const { gpu, uuid } of gpus) {
      if (this.#uuids.get(gpu.handle) === uuid) continue;
      this.#uuids.set(gpu.handle, uuid);
      // Without ECC memory a GPU may refuse its events.
      if ((await register(gpu, FIRST, set)) !== NVML.OK) await register(gpu, EVENTS.XID, set);
      for (const bit of MORE) await register(gpu, bit, set);
    }
  }

  /** Comes back when nothing waits in the driver any more. */
  stop(): Promise<void> {
    this.#stopped = true;
    return this.#waiting;
  }

  async #begin(library: Library): Promise<void> {
    this.#library = library;
    this.#uuids.clear();
    this.#set = null;
    const set = [null] as (bigint | null)[];
    if ((await library.call('nvmlEventSetCreate', '_Out_ nvmlEventSet_t *', set)) !== NVML.OK) return;
    this.#set = set[0]!;
    this.#waiting = this.#wait(library, this.#set);
  }

  async #wait(library: Library, set: bigint): Promise<void> {
    const parameters = 'nvmlEventSet_t, _Out_ nvmlEventData_t *, uint32_t';
    while (!this.#stopped && library === this.#library) {
      const data = {} as { device: bigint | null; eventType: number | bigint; eventData: number | bigint };
      const code = await library.call('nvmlEventSetWait_v2', parameters, set, data, WAIT_MS);
      if (code === NVML.OK) this.#tell(eventOf(data, this.#uuids));
      else if (code === NVML.FUNCTION_NOT_FOUND || code === NVML.UNINITIALIZED) return;
      else if (code !== NVML.TIMEOUT) await pause(REST_MS, undefined, { ref: false });
    }
  }
}

const register = (gpu: Gpu, mask: number, set: bigint): Promise<number> =>
  gpu.call('nvmlDeviceRegisterEvents', ', uint64_t, nvmlEventSet_t', mask, set);

const eventOf = (
  data: { device: bigint | null; eventType: number | bigint; eventData: number | bigint },
  uuids: Map<bigint, string>,
): DriverEvent => ({
  uuid: data.device === null ? null : (uuids.get(data.device) ?? null),
  type: Number(data.eventType),
  data: Number(data.eventData),
});
