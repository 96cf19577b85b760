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
      Object.entries(this.state.leases).filter(([, l]) => l.free_at === null || this.cools(l.free_at)),
    );
    const taken = new Set(Object.values(leases).flatMap(portsOf));
    refuseSmall(this.range, needs);
    const ports: EnginePorts = {};
    const counts: Record<string, number> = {};
    // The longest first: a single port taken out of the only long run would leave no room for it.
    for (const { name, count } of needs.toSorted((a, b) => b.count - a.count)) {
      const first = await this.run(count, taken, isFree);
      if (first === null) throw exhausted(this.range, needs, taken.size);
      ports[name] = first;
      if (count > 1) counts[name] = count;
      for (let p = first; p < first + count; p++) taken.add(p);
    }
    const ends = Object.entries(ports).map(([name, first]) => first + (counts[name] ?? 1));
    const next = ends.length === 0 ? this.state.next : Math.max(...ends);
    this.write({ next, leases: { ...leases, [key]: { ports, counts, free_at: null } } });
    return ports;
  }

  /** A clock that was set back would hold ports for as long: more than the whole time left is none of ours. */
  private cools(freeAt: number): boolean {
    const left = freeAt - this.now();
    return left > 0 && left <= COOL_MS;
  }

  /** The first of `count` free ports in a row, none of them over the end of the range; null: there is no such row. */
  private async run(
    count: number,
    taken: Set<number>,
    isFree: (port: number) => Promise<boolean>,
  ): Promise<number | null> {
    const { from, to } = this.range;
    let port = this.state.next;
    // Once around, and on for what began behind the starting point.
    for (let tried = 0, row = 0; tried < to - from + count; tried++, port++) {
      if (port > to || port < from) {
        port = from;
        row = 0;
      }
      row = taken.has(port) || !(await isFree(port)) ? 0 : row + 1;
      if (row === count) return port - count + 1;
    }
    return null;
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

const sizeOf = ({ from, to }: PortRange): number => to - from + 1;
const wantedOf = (needs: PortNeed[]): string => {
  const block = Math.max(...needs.map(need => need.count));
  const all = needs.reduce((n, need) => n + need.count, 0);
  return `${all} ports${block > 1 ? ` (${block} of them in a row)` : ''}`;
};

/** Nothing that ends makes it larger: another sentence than for one that is used up. */
function refuseSmall(range: PortRange, needs: PortNeed[]): void {
  if (needs.reduce((n, need) => n + need.count, 0) <= sizeOf(range)) return;
  throw new LlmgwError(
    'PORTS_EXHAUSTED',
    `supervisor.ports ${range.from}-${range.to} is too small: it has ${sizeOf(range)} ports, and one engine needs ${wantedOf(needs)}`,
  );
}

const exhausted = (range: PortRange, needs: PortNeed[], held: number): LlmgwError =>
  new LlmgwError(
    'PORTS_EXHAUSTED',
    `no ${wantedOf(needs)} are free in supervisor.ports ${range.from}-${range.to}: ${held} are held or were used in the last ten minutes`,
  );
