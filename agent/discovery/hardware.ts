// The GPUs of a real node: by NVML, by nvidia-smi where NVML can't be had, and never by both. A driver that doesn't
// answer isn't asked another way: nvidia-smi would hang in the same place.
import type { Condition } from '../../contracts/inventory.js';
import type { Logger } from '../../lib/log.js';
import { EVENTS } from '../../native/codes.js';
import type { DriverEvent, Reading } from '../../native/protocol.js';
import { hostMemory, isIntegrated } from './host-memory.js';
import type { KnownGpus } from './known-gpus.js';
import { conditionOf, SILENT } from './nvml-failures.js';
import { gpusOf, type ReadGpu, snapshotOf } from './nvml-gpus.js';
import type { NvmlHelper } from './nvml-helper.js';
import { islandsOf } from './nvml-links.js';
import { NvmlSilent } from './nvml-terms.js';
import type { GpuInventory, GpuSnapshot, GpuSource } from './types.js';
import { eventWord, faultOfEvent } from './xid.js';

/** How often names, links and MIG instances are asked for anew, ms; events ask at once. */
const FULL_EVERY = 60_000;
/** A GPU in trouble may tell of it a thousand times a second: a line of each kind in this time, ms. */
const LOG_EVERY = 10_000;

export interface HardwareOptions {
  /** null: agent.yaml prefers nvidia-smi. */
  nvml: NvmlHelper | null;
  smi: GpuSource;
  known: KnownGpus;
  log: Logger;
}

/** The last answer of NVML. */
interface Last {
  reading: Reading;
  gpus: ReadGpu[];
  islands: string[][];
  conditions: Condition[];
  fullAt: number;
}

export class HardwareSource implements GpuSource {
  readonly #opts: HardwareOptions;
  readonly #helper: NvmlHelper | null;
  readonly #listeners = new Set<() => void>();
  readonly #logged = new Map<string, number>();
  #last: Last | null = null;
  /** What inventory() returned last came from NVML. */
  #byNvml = false;
  #wantFull = false;
  #said = '';
  #snapshot: Promise<GpuSnapshot> | null = null;

  constructor(opts: HardwareOptions) {
    this.#opts = opts;
    this.#helper = opts.nvml;
    this.#helper?.onEvent(event => this.#event(event));
  }

  async inventory(): Promise<GpuInventory> {
    if (this.#helper === null) return this.#bySmi(null);
    const full = this.#last === null || this.#wantFull || performance.now() - this.#last.fullAt > FULL_EVERY;
    let reading: Reading;
    try {
      reading = await this.#helper.inventory(full);
    } catch (error) {
      this.#byNvml = false;
      const condition = conditionOf(error, this.#helper.library);
      this.#say(error, condition);
      return error instanceof NvmlSilent ? this.#silent(condition!) : this.#bySmi(condition);
    }
    if (full) this.#wantFull = false;
    const shared = reading.gpus.some(({ name }) => isIntegrated(name ?? ''));
    const { gpus, conditions } = gpusOf(reading, shared ? await hostMemory() : null);
    const links = islandsOf(reading.gpus);
    this.#last = {
      reading,
      gpus,
      islands: links.islands,
      conditions: [...conditions, ...links.conditions],
      fullAt: full ? performance.now() : this.#last!.fullAt,
    };
    this.#byNvml = true;
    this.#said = '';
    return this.#told(this.#last);
  }

  /** The last inventory with what has been told since; null: it wasn't NVML's. */
  again(): GpuInventory | null {
    return this.#byNvml && this.#last !== null ? this.#told(this.#last, true) : null;
  }

  /** Concurrent callers share one look. */
  snapshot(): Promise<GpuSnapshot> {
    this.#snapshot ??= this.#look().finally(() => {
      this.#snapshot = null;
    });
    return this.#snapshot;
  }

  /** The driver has told something by itself. */
  onNews(listener: () => void): void {
    this.#listeners.add(listener);
  }

  /** Lets the helper end. */
  end(): void {
    this.#helper?.end();
  }

  /** The same, and waits for it. */
  async close(): Promise<void> {
    await this.#helper?.close();
  }

  #told({ reading, gpus, islands, conditions }: Last, again = false): GpuInventory {
    const facts = gpus.map(({ used_mib: _, processes: __, ...gpu }) => gpu);
    const listed = this.#opts.known.take(facts, null, again);
    const seen = gpus.map(({ uuid, index, usable, reason, used_mib, processes }) => ({
      uuid,
      index,
      usable,
      reason,
      memory_used_mib: used_mib,
      processes,
    }));
    return {
      source: 'nvml',
      driver_version: reading.driver_version,
      gpus: listed,
      islands,
      conditions: reading.gpus.length === 0 ? [...conditions, NONE] : conditions,
      snapshot: this.#opts.known.judge({ gpus: seen }, null),
    };
  }

  #silent(condition: Condition): GpuInventory {
    const gpus = this.#opts.known.take([], SILENT);
    return {
      source: gpus.length === 0 ? 'none' : 'nvml',
      driver_version: this.#last?.reading.driver_version ?? null,
      gpus,
      islands: this.#last?.islands ?? [],
      conditions: [condition],
      snapshot: this.#opts.known.judge({ gpus: [] }, SILENT),
    };
  }

  async #bySmi(condition: Condition | null): Promise<GpuInventory> {
    const { smi, known } = this.#opts;
    const inventory = await smi.inventory();
    const conditions = [
      ...(condition === null ? [] : [condition]),
      ...inventory.conditions.filter(({ code }) => code !== condition?.code),
    ];
    const gpus = known.take(inventory.gpus, inventory.partial ?? blind(inventory.gpus, conditions));
    // Without this a node whose driver was never installed would show nothing wrong and host nothing.
    const unseen = inventory.gpus.length === 0 && conditions.length === 0;
    return { ...inventory, gpus, conditions: unseen ? [this.#nothingToAsk()] : conditions };
  }

  async #look(): Promise<GpuSnapshot> {
    const { known, smi } = this.#opts;
    let condition: Condition | null = null;
    if (this.#helper !== null) {
      try {
        return known.judge(snapshotOf(await this.#helper.holders(), this.#last?.gpus ?? []), null);
      } catch (error) {
        if (error instanceof NvmlSilent) return known.judge({ gpus: [] }, SILENT);
        condition = conditionOf(error, this.#helper.library);
      }
    }
    const snapshot = await smi.snapshot();
    return known.judge(snapshot, blind(snapshot.gpus, condition === null ? [] : [condition]));
  }

  #nothingToAsk(): Condition {
    const nvml =
      this.#helper === null
        ? 'discovery.prefer_nvml is false'
        : 'there is no libnvidia-ml.so.1 where the loader looks';
    return {
      code: 'gpu_driver_absent',
      message: `no GPU can be looked at: ${nvml}, and no nvidia-smi on PATH; install the NVIDIA driver, or set discovery.skip_gpus: true`,
    };
  }

  #event(event: DriverEvent): void {
    const { known, log } = this.#opts;
    const fault = faultOfEvent(event);
    const what = eventWord(event);
    const key = `${event.uuid} ${what}`;
    const now = performance.now();
    if (now - (this.#logged.get(key) ?? -LOG_EVERY) >= LOG_EVERY) {
      this.#logged.set(key, now);
      const fields = { gpu: event.uuid, event: what, reason: fault?.reason };
      if (fault === null) log.warn(fields, 'the driver tells of a GPU');
      else log.error(fields, 'a GPU can not be used any more');
    }
    if (fault !== null && event.uuid !== null) {
      if (known.fault(event.uuid, fault)) this.#news();
      return;
    }
    if (event.type === EVENTS.XID) return; // of the program that was on it
    this.#wantFull = true;
    this.#news();
  }

  #news(): void {
    for (const listener of this.#listeners) listener();
  }

  /** Once for each reason. */
  #say(error: unknown, condition: Condition | null): void {
    const said = condition?.code ?? 'no library';
    if (said === this.#said) return;
    this.#said = said;
    const { log } = this.#opts;
    if (error instanceof NvmlSilent) log.error(condition!.message);
    else
      log.info(
        { why: condition?.message ?? (error as Error).message },
        'NVML can not be used: nvidia-smi is asked for the GPUs',
      );
  }
}

const NONE: Condition = {
  code: 'gpu_none_found',
  message: "the NVIDIA driver is loaded but found no GPU: see the kernel's log, and lspci for the cards",
};

/** Why a list without GPUs says nothing of those that were there; null: it is a list. */
function blind(listed: readonly unknown[], conditions: Condition[]): string | null {
  if (listed.length > 0) return null;
  return conditions[0]?.message ?? 'neither NVML nor nvidia-smi can be asked';
}
