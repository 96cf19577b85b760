// Which engine has which ports, on disk: a repeated prepare gets the same ones, a new generation gets others, and
// none comes back within ten minutes (a socket in TIME_WAIT or a late child of the old engine may still be on it).
import path from 'node:path';
import { z } from 'zod';
import { EnginePorts } from '../../contracts/engine.js';
import { LlmgwError } from '../../contracts/errors.js';
import type { PortNeed } from '../engines/types.js';
import { makeDir, readText, writeAtomic } from './files.js';

/** Longer than TIME_WAIT (60 s on Linux) and than any stop takes. */
const COOL_MS = 600_000;

const LeaseFile = z.object({
  /** Where the next search starts: the whole range is used before a port comes again. */
  next: z.number().int(),
  leases: z.record(
    z.string(),
    z.object({
      ports: EnginePorts,
      /** Of the names that have several in a row. */
      counts: z.record(z.string(), z.number().int()).default({}),
      free_at: z.number().nullable(),
    }),
  ),
});
type LeaseFile = z.infer<typeof LeaseFile>;

/** Longest run of ports that is asked for in one piece: Ray's worker ports. */
const MAX_RUN = 256;

const portsOf = ({ ports, counts }: LeaseFile['leases'][string]): number[] =>
  Object.entries(ports).flatMap(([name, first]) =>
    Array.from({ length: counts[name] ?? 1 }, (_, i) => first + i),
  );

export interface PortRange {
  from: number;
  to: number;
}

export class PortLeases {
  private readonly file: string;
  private state: LeaseFile;

  constructor(
    workDir: string,
    private readonly range: PortRange,
    private readonly now: () => number = Date.now,
  ) {
    makeDir(workDir);
    this.file = path.join(workDir, 'ports.json');
    this.state = { next: range.from, leases: {} };
    const text = readText(this.file);
    if (text === null) return;
    try {
      this.state = LeaseFile.parse(JSON.parse(text));
    } catch {
      // Only the cool-down is lost: ports of live engines are in their handles and are found taken by the check.
    }
  }

  /** The ports of `key`, the same on every call; `isFree` is asked before one is taken. */
  async take(
    key: string,
    needs: PortNeed[],
    isFree: (port: number) => Promise<boolean>,
  ): Promise<EnginePorts> {
    const known = this.state.leases[key];
    if (known !== undefined && known.free_at === null && needs.every(n => n.name in known.ports))
      return known.ports;
    const leases = Object.fromEntries(
      Object.entries(this.state.leases).filter(([, l]) => l.free_at === null || l.free_at > this.now()),
    );
    const taken = new Set(Object.values(leases).flatMap(portsOf));
    const size = this.range.to - this.range.from + 1;
    const ports: EnginePorts = {};
    const counts: Record<string, number> = {};
    let port = this.state.next;
    let run = 0;
    const missing = [...needs];
    for (let tried = 0; tried < size + MAX_RUN && missing.length > 0; tried++, port++) {
      if (port > this.range.to || port < this.range.from) {
        port = this.range.from;
        run = 0;
      }
      run = taken.has(port) || !(await isFree(port)) ? 0 : run + 1;
      const { name, count } = missing[0]!;
      if (run < count) continue;
      missing.shift();
      run = 0;
      ports[name] = port - count + 1;
      if (count > 1) counts[name] = count;
      for (let p = port - count + 1; p <= port; p++) taken.add(p);
    }
    if (missing.length > 0) {
      const wanted = needs.reduce((n, need) => n + need.count, 0);
      const block = Math.max(...needs.map(need => need.count));
      throw new LlmgwError(
        'PORTS_EXHAUSTED',
        `no ${wanted} free ports${block > 1 ? ` (${block} of them in a row)` : ''} in supervisor.ports ${this.range.from}-${this.range.to}: ${taken.size} are held or were used in the last ten minutes`,
      );
    }
    this.write({ next: port, leases: { ...leases, [key]: { ports, counts, free_at: null } } });
    return ports;
  }

  /** The engine is gone: its ports cool down. */
  release(key: string): void {
    const lease = this.state.leases[key];
    if (lease === undefined || lease.free_at !== null) return;
    this.write({
      ...this.state,
      leases: { ...this.state.leases, [key]: { ...lease, free_at: this.now() + COOL_MS } },
    });
  }

  /** Leases of a prepare that never reached its handle. */
  releaseAllBut(keys: Set<string>): void {
    for (const key of Object.keys(this.state.leases)) if (!keys.has(key)) this.release(key);
  }

  private write(state: LeaseFile): void {
    writeAtomic(this.file, `${JSON.stringify(state)}\n`);
    this.state = state;
  }
}
