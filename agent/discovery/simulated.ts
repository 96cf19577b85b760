// A node without hardware: GPUs and fabric from a file (LLMGW_SIMULATE), the processes on them from what the stand-in
// engines say of themselves. Only for control planes on loopback: a simulated node in a real fleet would be given
// real work.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readdir, readFile, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import type { Hca } from '../../contracts/inventory.js';
import { isLoopbackHost, parseServerUrl } from '../../lib/address.js';
import type { FabricConfig } from './fabrics.js';
import type { GpuFacts, GpuInventory, GpuProcess, GpuSnapshot, GpuSource } from './types.js';

export const Simulation = z.strictObject({
  gpus: z.strictObject({
    count: z.number().int().min(0).max(64),
    name: z.string().default('NVIDIA H100 80GB HBM3'),
    memory_total_mib: z.number().int().positive().default(81_559),
    compute_capability: z.string().default('9.0'),
  }),
  /** Indices of GPUs in which every pair has NVLink. */
  islands: z.array(z.array(z.number().int())).default([]),
  fabrics: z.array(z.strictObject({ name: z.string(), hcas: z.array(z.string()) })).default([]),
  rate_gbps: z.number().positive().default(400),
  driver_version: z.string().default('580.95.05'),
  /** Where stand-in engines say which GPUs they hold (LLMGW_STANDIN_GPU_DIR). */
  gpu_dir: z.string(),
});
export type Simulation = z.output<typeof Simulation>;

/** What the driver itself takes of each GPU, as on real ones. */
const DRIVER_MIB = 4;

/** Why this agent may not simulate; null when it may. */
export function simulationRefusal(server: string): string | null {
  const url = parseServerUrl(server);
  if ('error' in url || isLoopbackHost(url.host)) return null;
  return `LLMGW_SIMULATE is set but server is ${server}: a simulated node may only join a control plane on this machine; unset LLMGW_SIMULATE`;
}

/** @throws Error with one sentence that names the file. */
export function loadSimulation(file: string): Simulation {
  let raw: unknown;
  try {
    raw = parse(readFileSync(file, 'utf8'));
  } catch (error) {
    throw new Error(`LLMGW_SIMULATE: ${file} can't be read: ${(error as Error).message}`);
  }
  const parsed = Simulation.safeParse(raw);
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  throw new Error(`LLMGW_SIMULATE: ${file}: ${path.join('.') || 'the file'}: ${message}`);
}

export class SimulatedSource implements GpuSource {
  readonly #simulation: Simulation;
  readonly #uuids: string[];

  /** @param nodeId makes the UUIDs: the same for a node at each start, different between nodes. */
  constructor(simulation: Simulation, nodeId: string) {
    this.#simulation = simulation;
    this.#uuids = Array.from({ length: simulation.gpus.count }, (_, index) => uuidOf(nodeId, index));
  }

  /** Stand-ins register themselves there: without it their GPUs would look empty. */
  get engineEnv(): Record<string, string> {
    return { LLMGW_STANDIN_GPU_DIR: this.#simulation.gpu_dir };
  }

  async inventory(): Promise<GpuInventory> {
    const { gpus, islands, driver_version } = this.#simulation;
    const held = await this.#holders();
    const facts = this.#uuids.map((uuid, index): GpuFacts => {
      return {
        index,
        uuid,
        name: gpus.name,
        pci_bus_id: `00000000:${(0x18 + index).toString(16).toUpperCase()}:00.0`,
        memory_total_mib: gpus.memory_total_mib,
        memory_free_mib: gpus.memory_total_mib - usedOf(held.get(uuid)),
        compute_capability: gpus.compute_capability,
        mig: false,
        usable: true,
        reason: null,
      };
    });
    return {
      source: 'simulated',
      driver_version,
      gpus: facts,
      islands: islands.map(island => island.flatMap(index => this.#uuids[index] ?? [])),
      conditions: [
        { code: 'simulated', message: 'the GPUs of this node are simulated: no model is really loaded' },
      ],
    };
  }

  async snapshot(): Promise<GpuSnapshot> {
    const held = await this.#holders();
    return {
      gpus: this.#uuids.map((uuid, index) => ({
        uuid,
        index,
        usable: true,
        reason: null,
        memory_used_mib: usedOf(held.get(uuid)),
        processes: held.get(uuid) ?? [],
      })),
    };
  }

  hcas(): Hca[] {
    const { fabrics, rate_gbps } = this.#simulation;
    const port = { port: 1, state: 'ACTIVE', phys_state: 'LinkUp', rate_gbps, link_layer: 'InfiniBand' };
    return fabrics.flatMap(fabric => fabric.hcas.map(name => ({ name, ...port })));
  }

  /** The simulated fabrics, but for those that agent.yaml names itself. */
  fabrics(configured: FabricConfig[]): FabricConfig[] {
    const names = new Set(configured.map(fabric => fabric.name));
    const own = this.#simulation.fabrics.filter(fabric => !names.has(fabric.name));
    return [...configured, ...own.map(fabric => ({ ...fabric, rate_gbps: null }))];
  }

  /** Processes by UUID. An entry whose process is gone was left by a SIGKILL: not believed, and cleared away. */
  async #holders(): Promise<Map<string, GpuProcess[]>> {
    const held = new Map<string, GpuProcess[]>();
    const dir = this.#simulation.gpu_dir;
    const names = await readdir(dir).catch(() => []);
    await Promise.all(
      names
        .filter(name => /^\d+\.json$/.test(name))
        .map(async name => {
          const entry = Entry.safeParse(await readJson(join(dir, name)));
          if (!entry.success) return;
          const { pid, start_time, gpus, used_mib } = entry.data;
          if ((await startTimeOf(pid)) !== start_time)
            return void (await unlink(join(dir, name)).catch(() => {}));
          for (const gpu of gpus) {
            const uuid = /^\d+$/.test(gpu) ? this.#uuids[Number(gpu)] : gpu;
            if (uuid !== undefined) held.set(uuid, [...(held.get(uuid) ?? []), { pid, used_mib }]);
          }
        }),
    );
    return held;
  }
}

const Entry = z.object({
  pid: z.number().int(),
  start_time: z.number(),
  gpus: z.array(z.string()),
  used_mib: z.number(),
});

const usedOf = (processes: GpuProcess[] = []): number =>
  processes.reduce((sum, process) => sum + (process.used_mib ?? 0), DRIVER_MIB);

async function readJson(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, 'utf8'));
  } catch {
    return null;
  }
}

/** Clock ticks since boot (field 22 of /proc/PID/stat); null for a process that is gone or only awaits its parent. */
async function startTimeOf(pid: number): Promise<number | null> {
  const stat = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => null);
  if (stat === null) return null;
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return fields[0] === 'Z' || fields[0] === 'X' ? null : Number(fields[19]);
}

function uuidOf(nodeId: string, index: number): string {
  const hex = createHash('sha256').update(`${nodeId} ${index}`).digest('hex');
  const parts = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)];
  return `GPU-${parts.join('-')}`;
}
