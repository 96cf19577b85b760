// The GPUs that this node has had, and what was told of them once: a driver that loses a GPU lists one less, without a
// word. On disk, so that neither the agent's restart nor the node's makes a missing GPU one that never was.

import path from 'node:path';
import { z } from 'zod';
import type { Logger } from '../../lib/log.js';
import { makeDir, readText, removeFile, writeAtomic } from '../state/files.js';
import type { GpuFault } from './nvml-faults.js';
import { nameless } from './nvml-gpus.js';
import type { GpuFacts, GpuSnapshot } from './types.js';

const KnownGpu = z.object({
  uuid: z.string(),
  index: z.number().int(),
  name: z.string(),
  pci_bus_id: z.string().nullable(),
  memory_total_mib: z.number().nullable(),
  compute_capability: z.string().nullable(),
  mig: z.boolean().nullable(),
});
type KnownGpu = z.infer<typeof KnownGpu>;

/** A fault that was told once, as by an event. */
const ToldFault = z.object({
  uuid: z.string(),
  reason: z.string(),
  fatal: z.boolean(),
  /** It ends with the boot. */
  boot_id: z.string(),
  /** Uncorrectable errors when it was told; null: not told by them. Fewer: the GPU was reset. */
  ecc: z.number().nullable(),
});
type ToldFault = z.infer<typeof ToldFault>;

const KnownFile = z.object({ gpus: z.array(KnownGpu), faults: z.array(ToldFault) });

export interface KnownGpusOptions {
  bootId: string;
  /** null: kept in memory only. */
  workDir: string | null;
  /** Nothing is written, as by `--check`. */
  readOnly?: boolean;
  log: Logger;
}

type Judged = Pick<GpuFacts, 'uuid' | 'index' | 'usable' | 'reason' | 'fatal'>;

export class KnownGpus {
  readonly #opts: KnownGpusOptions;
  readonly #file: string | null;
  readonly #gpus = new Map<string, KnownGpu>();
  readonly #faults = new Map<string, ToldFault>();
  /** Faults of an earlier run of the agent: a GPU that was reset since is well again. */
  readonly #inherited = new Set<string>();
  /** How many looks in a row have missed it. */
  readonly #missed = new Map<string, number>();
  /** Uncorrectable errors at the first look. */
  readonly #ecc = new Map<string, number>();
  #written = '';

  constructor(opts: KnownGpusOptions) {
    this.#opts = opts;
    this.#file = opts.workDir === null ? null : path.join(opts.workDir, 'gpus.json');
    const { gpus, faults } = this.#read();
    for (const gpu of gpus) this.#gpus.set(gpu.uuid, gpu);
    for (const fault of faults.filter(told => told.boot_id === opts.bootId)) {
      this.#faults.set(fault.uuid, fault);
      this.#inherited.add(fault.uuid);
    }
  }

  /**
   * A list of the driver's, completed and remembered.
   * @param told why the driver could not list them all; null: what it doesn't list, twice in a row, is gone.
   * @param again the list of the last look once more: it confirms nothing.
   */
  take(listed: GpuFacts[], told: string | null, again = false): GpuFacts[] {
    const failure = told ?? unlisted(listed);
    const named = this.#named(listed).map((gpu): GpuFacts => {
      const known = gpu.uuid === nameless(gpu.index) ? undefined : this.#gpus.get(gpu.uuid);
      if (known === undefined || gpu.name !== 'unknown') return gpu;
      const { uuid: _, index: __, ...identity } = known;
      return { ...gpu, ...identity };
    });
    if (failure === null) for (const gpu of named) this.#watch(gpu);
    if (failure === null && !again) this.#countMissed(named);
    const missing = this.#missing(named, failure).map(
      ({ known, ...judged }): GpuFacts => ({ ...known, memory_free_mib: null, ...judged }),
    );
    for (const gpu of named) if (gpu.uuid !== nameless(gpu.index)) this.#gpus.set(gpu.uuid, identityOf(gpu));
    this.#save();
    return [...named.map(gpu => this.#withFault(gpu)), ...missing.map(gpu => this.#withFault(gpu))].sort(
      (a, b) => a.index - b.index,
    );
  }

  /** The same for a moment's look, from which nothing is learnt. */
  judge({ gpus, ...more }: GpuSnapshot, failure: string | null): GpuSnapshot {
    const named = this.#named(gpus);
    const missing = this.#missing(named, failure ?? unlisted(gpus)).map(
      ({ known: _, fatal: __, ...judged }) => ({
        ...judged,
        memory_used_mib: null,
        processes: null,
      }),
    );
    const all = [...named, ...missing].sort((a, b) => a.index - b.index);
    return {
      ...more,
      gpus: all.map(gpu => {
        const { fatal: _, ...judged } = this.#withFault<typeof gpu & { fatal?: boolean }>(gpu);
        return judged;
      }),
    };
  }

  /** True when it is news. */
  fault(uuid: string, { reason, fatal }: GpuFault, ecc: number | null = null): boolean {
    const told = this.#faults.get(uuid);
    if (told !== undefined && (told.fatal || !fatal)) return false;
    this.#faults.set(uuid, { uuid, reason, fatal, ecc, boot_id: this.#opts.bootId });
    this.#save();
    return true;
  }

  /** GPUs that the driver counts and doesn't name are those that it has lost: by their place, else by their index. */
  #named<T extends Judged & { pci_bus_id?: string | null }>(listed: T[]): T[] {
    const there = new Set(listed.map(gpu => gpu.uuid));
    const missing = [...this.#gpus.values()].filter(gpu => !there.has(gpu.uuid));
    const unnamed = listed.filter(gpu => gpu.uuid === nameless(gpu.index));
    return listed.map(gpu => {
      if (gpu.uuid !== nameless(gpu.index)) return gpu;
      const bus = gpu.pci_bus_id ?? null;
      const known =
        missing.find(({ pci_bus_id }) => bus !== null && pci_bus_id === bus) ??
        missing.find(({ index }) => index === gpu.index) ??
        (unnamed.length === 1 && missing.length === 1 ? missing[0] : undefined);
      return known === undefined ? gpu : { ...gpu, uuid: known.uuid };
    });
  }

  /** A driver may leave one out for a moment: its engines are stopped by a second look only. */
  #countMissed(listed: Judged[]): void {
    const there = new Set(listed.map(gpu => gpu.uuid));
    for (const uuid of this.#gpus.keys()) {
      if (there.has(uuid)) this.#missed.delete(uuid);
      else this.#missed.set(uuid, (this.#missed.get(uuid) ?? 0) + 1);
    }
  }

  #missing(
    listed: (Judged & { pci_bus_id?: string | null })[],
    failure: string | null,
  ): (Judged & { known: KnownGpu })[] {
    const there = new Set(listed.map(gpu => gpu.uuid));
    const places = new Set(listed.map(gpu => gpu.pci_bus_id ?? null));
    return [...this.#gpus.values()]
      .filter(gpu => !there.has(gpu.uuid))
      .flatMap(known => {
        if (failure === null && known.pci_bus_id !== null && places.has(known.pci_bus_id)) {
          this.#gpus.delete(known.uuid); // another is in its place: it was replaced
          return [];
        }
        const { uuid, index } = known;
        const confirmed = (this.#missed.get(uuid) ?? 0) > 1;
        const why =
          failure === null && confirmed
            ? { reason: this.#gone(), fatal: true }
            : { reason: failure ?? MISSED_ONCE, fatal: false };
        return [
          { known, uuid, index, usable: false, reason: why.reason, ...(why.fatal ? { fatal: true } : {}) },
        ];
      });
  }

  #gone(): string {
    const taken =
      this.#file === null ? '' : `; if it was taken out for good, remove ${this.#file} and restart the agent`;
    return `the driver no longer lists it: it has fallen off the bus (reboot the node${taken})`;
  }

  /** Faults that show in figures only, and those that are over. */
  #watch(gpu: GpuFacts): void {
    const { uuid, health } = gpu;
    // The driver has been asked for what it needs, and a reset means that every agent has let go of the GPU.
    if (this.#inherited.delete(uuid) && health?.recovery_action === 'none') this.#faults.delete(uuid);
    const errors = health?.ecc_uncorrected ?? null;
    if (errors === null) return;
    const before = this.#ecc.get(uuid);
    const told = this.#faults.get(uuid)?.ecc ?? null;
    if (told !== null && errors < told) this.#faults.delete(uuid);
    if (before === undefined || errors < before) this.#ecc.set(uuid, errors);
    // Of one that has been told already, as a contained error, the figure is no second fault.
    else if (errors > before && !this.#faults.has(uuid)) this.fault(uuid, NEW_ERRORS, errors);
  }

  #withFault<T extends Judged>(gpu: T): T {
    const told = this.#faults.get(gpu.uuid);
    if (told === undefined || gpu.fatal === true || (!gpu.usable && !told.fatal)) return gpu;
    return { ...gpu, usable: false, reason: told.reason, ...(told.fatal ? { fatal: true } : {}) };
  }

  #read(): z.infer<typeof KnownFile> {
    const nothing = { gpus: [], faults: [] };
    if (this.#file === null) return nothing;
    try {
      const text = readText(this.#file);
      return text === null ? nothing : KnownFile.parse(JSON.parse(text));
    } catch (error) {
      this.#opts.log.warn(
        { err: error, file: this.#file },
        'the list of known GPUs can not be read: it is begun anew',
      );
      return nothing;
    }
  }

  /** Never throws: it is needed for what may happen later. */
  #save(): void {
    if (this.#file === null || this.#opts.readOnly) return;
    const text = `${JSON.stringify({ gpus: [...this.#gpus.values()], faults: [...this.#faults.values()] }, null, 1)}\n`;
    if (text === this.#written) return;
    try {
      if (this.#gpus.size === 0) removeFile(this.#file);
      else {
        makeDir(path.dirname(this.#file));
        writeAtomic(this.#file, text);
      }
      this.#written = text;
    } catch (error) {
      this.#opts.log.warn({ err: error }, 'the list of known GPUs could not be written');
    }
  }
}

const MISSED_ONCE = 'the driver does not list it any more: it is looked for once more';

/** A list without any GPU says nothing of those that were there: as a driver that is loaded anew gives it. */
const unlisted = (listed: readonly unknown[]): string | null =>
  listed.length === 0 ? 'the driver lists no GPU at all' : null;

const NEW_ERRORS: GpuFault = {
  reason:
    'it has had new uncorrectable memory errors (reset it when its engines have ended, have it replaced if they come again)',
  fatal: true,
};

const identityOf = ({
  uuid,
  index,
  name,
  pci_bus_id,
  memory_total_mib,
  compute_capability,
  mig,
}: GpuFacts): KnownGpu => ({ uuid, index, name, pci_bus_id, memory_total_mib, compute_capability, mig });
