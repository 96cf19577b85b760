// Keeps the route table: from disk at once, then from the control plane for as long as the router runs. Losing the
// control plane changes nothing here but a log line (INV-5: missing knowledge stops nothing).
import { setTimeout as sleep } from 'node:timers/promises';
import { RouteTable } from '../contracts/routes.js';
import { acceptTable } from '../domain/router.js';
import type { Logger } from '../lib/log.js';
import type { ControlPlane } from './control-plane.js';
import type { TableStore } from './table-store.js';

export interface TableTimes {
  /** ms without a line after which the watch is given up: three of the server's signs of life. */
  silence: number;
  backoffBase: number;
  backoffMax: number;
  /** The same while there is no table at all: nobody is served until it comes. */
  backoffMaxEmpty: number;
  /** An instance whose table was read from the ledger longer ago than this, ms, can't tell that it went back. */
  lag: number;
}

export const TABLE_TIMES: TableTimes = {
  silence: 15_000,
  backoffBase: 100,
  backoffMax: 5_000,
  backoffMaxEmpty: 250,
  lag: 30_000,
};

export interface TableOptions {
  control: ControlPlane;
  store: TableStore;
  log: Logger;
  onTable: (table: RouteTable) => void;
  /** The control plane is followed (again), perhaps at another instance. */
  onConnected?: () => void;
  times?: Partial<TableTimes>;
}

export class TableWatch {
  private current: RouteTable | null = null;
  private offered: RouteTable | null = null;
  private lowerSince: number | null = null;
  /** The instance has read its table from the ledger of late: only then may a lower version be the ledger's own. */
  private fresh = true;
  private readonly stop = new AbortController();
  private readonly times: TableTimes;
  private loop: Promise<void> = Promise.resolve();
  /** Whether the control plane is being watched right now; null before the first try. */
  connected: boolean | null = null;

  constructor(private readonly options: TableOptions) {
    this.times = { ...TABLE_TIMES, ...options.times };
  }

  get version(): number | null {
    return this.current?.version ?? null;
  }

  /** Takes the stored table, if any, and begins to follow the control plane. */
  start(): void {
    const stored = this.options.store.load();
    if (stored !== null) {
      this.options.log.info(
        { version: stored.version, endpoints: stored.endpoints.length },
        'routes from the last run',
      );
      this.current = stored;
      this.options.onTable(stored);
    }
    this.loop = this.follow();
  }

  async close(): Promise<void> {
    this.stop.abort();
    await this.loop;
    await this.options.store.flushed();
  }

  private async follow(): Promise<void> {
    const { control, log } = this.options;
    const { signal } = this.stop;
    let failures = 0;
    while (!signal.aborted) {
      try {
        await this.ask();
        if (this.connected !== true) log.info({ version: this.version }, 'following the route table');
        this.connected = true;
        this.options.onConnected?.();
        for await (const line of control.watch(signal, this.times.silence)) {
          failures = 0;
          // A lower table that stays the only offer: is it the ledger's, or does this instance lag?
          if (line === '' && this.lowerSince !== null) await this.ask();
          else this.offer(line);
        }
      } catch (e) {
        if (signal.aborted) return;
        // Once a loss, not once a try.
        if (this.connected !== false)
          log.warn(
            { err: (e as Error).message, version: this.version },
            'no route table from the control plane, serving from the last one',
          );
        this.connected = false;
      }
      const { backoffBase, backoffMax, backoffMaxEmpty } = this.times;
      const most = this.current === null ? backoffMaxEmpty : backoffMax;
      const longest = Math.min(most, backoffBase * 2 ** Math.min(failures++, 16));
      await sleep(longest * (0.5 + Math.random() / 2), undefined, { signal }).catch(() => {});
    }
  }

  private async ask(): Promise<void> {
    const { text, ageMs } = await this.options.control.table(this.stop.signal);
    this.fresh = ageMs === null || ageMs <= this.times.lag;
    this.offer(text);
  }

  /** One line: a table, or nothing (a sign of life), which is the moment to look at a lower version again. */
  private offer(line: string): void {
    const { log } = this.options;
    if (line !== '') this.offered = parseTable(line);
    const table = this.offered;
    if (table === null) return;
    const now = Date.now();
    const lower = this.current !== null && table.version < this.current.version;
    if (acceptTable(this.current, table, this.lowerSince, now) === 'keep' || (lower && !this.fresh)) {
      if (this.lowerSince === null) {
        this.lowerSince = now;
        log.warn(
          { offered: table.version, version: this.version },
          'the control plane offers an older route table, kept the newer one',
        );
      }
      return;
    }
    this.lowerSince = null;
    this.offered = null;
    const same = this.current !== null && JSON.stringify(this.current) === JSON.stringify(table);
    if (same) return;
    this.current = table;
    log.info({ version: table.version, endpoints: table.endpoints.length }, 'routes changed');
    this.options.onTable(table);
    this.options.store.save(table);
  }
}

/** Throws when it isn't a table: the connection is given up then, and the table in use stays. */
function parseTable(line: string): RouteTable {
  let parsed: unknown;
  try {
    parsed = JSON.parse(line);
  } catch {
    throw new Error('the control plane sent a line that is not JSON');
  }
  const table = RouteTable.safeParse(parsed);
  if (!table.success)
    throw new Error(
      `the control plane sent a table that cannot be read: ${table.error.issues[0]?.path.join('.')}`,
    );
  return table.data;
}
