// Which engine has which ports, on disk: a repeated prepare gets the same ones, a new generation gets others, and
// none comes back within ten minutes (a socket in TIME_WAIT or a late child of the old engine may still be on it).
import path from 'node:path';
import { z } from 'zod';
import { EnginePorts } from '../../contracts/engine.js';
import { LlmgwError } from '../../contracts/errors.js';
import { makeDir, readText, writeAtomic } from './files.js';

/** Longer than TIME_WAIT (60 s on Linux) and than any stop takes. */
const COOL_MS = 600_000;

const LeaseFile = z.object({
  /** Where the next search starts: the whole range is used before a port comes again. */
  next: z.number().int(),
  leases: z.record(z.string(), z.object({ ports: EnginePorts, free_at: z.number().nullable() })),
});
type LeaseFile = z.infer<typeof LeaseFile>;

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
  async take(key: string, names: string[], isFree: (port: number) => Promise<boolean>): Promise<EnginePorts> {
    const known = this.state.leases[key];
    if (known !== undefined && known.free_at === null && names.every(n => n in known.ports))
      return known.ports;
    const leases = Object.fromEntries(
      Object.entries(this.state.leases).filter(([, l]) => l.free_at === null || l.free_at > this.now()),
    );
    const taken = new Set(Object.values(leases).flatMap(l => Object.values(l.ports)));
    const size = this.range.to - this.range.from + 1;
    const ports: EnginePorts = {};
    let port = this.state.next;
    for (let tried = 0; tried < size && Object.keys(ports).length < names.length; tried++, port++) {
      if (port > this.range.to || port < this.range.from) port = this.range.from;
      if (taken.has(port) || !(await isFree(port))) continue;
      ports[names[Object.keys(ports).length]!] = port;
    }
    if (Object.keys(ports).length < names.length) {
      throw new LlmgwError(
        'PORTS_EXHAUSTED',
        `no ${names.length} free ports in supervisor.ports ${this.range.from}-${this.range.to}: ${taken.size} are held or were used in the last ten minutes`,
      );
    }
    this.write({ next: port, leases: { ...leases, [key]: { ports, free_at: null } } });
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
