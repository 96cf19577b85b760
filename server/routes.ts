// The route table as this instance has it, the routers that watch it, and what they report back.
import { EventEmitter } from 'node:events';
import type { ControlPorts } from '../activities/control/index.js';
import type { ControlActivities } from '../contracts/activities.js';
import type { RouterReport, RouteTable } from '../contracts/routes.js';
import { TIMING } from '../contracts/timing.js';
import type { Logger } from '../lib/log.js';

/** A router that reports every 2 s and hasn't for this long holds drains up no more: it is gone, not slow. */
const ROUTER_FORGOTTEN_MS = 60_000;
/** Before this, a fresh instance may not have heard of its routers yet: it counts nothing as drained. */
const SETTLED_MS = 10_000;
const ENGINE_ASK_MS = 1_000;

interface KnownRouter {
  report: RouterReport;
  at: number;
}

export interface RouteHubOptions {
  /** The ledger's table, by query. */
  pull: () => Promise<RouteTable>;
  log: Logger;
  now?: () => number;
}

export class RouteHub {
  private current: RouteTable | null = null;
  private readonly routers = new Map<string, KnownRouter>();
  private readonly events = new EventEmitter().setMaxListeners(0);
  private readonly startedAt: number;
  private readonly now: () => number;
  private pulling: Promise<void> | null = null;
  private timer: NodeJS.Timeout | null = null;

  constructor(private readonly options: RouteHubOptions) {
    this.now = options.now ?? Date.now;
    this.startedAt = this.now();
  }

  start(): void {
    this.timer = setInterval(() => void this.refresh(), TIMING.routesPull);
    this.timer.unref();
  }

  stop(): void {
    if (this.timer !== null) clearInterval(this.timer);
    this.events.emit('stop');
  }

  table(): RouteTable | null {
    return this.current;
  }

  knownRouters(): { id: string; version: number; at: number }[] {
    return [...this.routers].map(([id, r]) => ({ id, version: r.report.version, at: r.at }));
  }

  /** Pulls the table and tells the watchers. A failure is logged: routers keep what they have (INV-5). */
  async refresh(): Promise<void> {
    // A pull under way may have read the table before the change that we are told of: one more follows it.
    if (this.pulling !== null) await this.pulling;
    this.pulling ??= this.pullOnce().finally(() => {
      this.pulling = null;
    });
    return this.pulling;
  }

  private async pullOnce(): Promise<void> {
    try {
      const next = await this.options.pull();
      if (this.current !== null && this.current.version === next.version) return;
      this.current = next;
      this.events.emit('table', next);
    } catch (err) {
      this.options.log.warn(
        { err: err instanceof Error ? err.message : String(err) },
        'the route table could not be read',
      );
    }
  }

  /** Calls back with the table now (if there is one) and at each change; returns the end of it. */
  watch(onTable: (table: RouteTable) => void, onStop: () => void): () => void {
    if (this.current !== null) onTable(this.current);
    this.events.on('table', onTable);
    this.events.on('stop', onStop);
    return () => {
      this.events.off('table', onTable);
      this.events.off('stop', onStop);
    };
  }

  report(id: string, report: RouterReport): void {
    this.routers.set(id, { report, at: this.now() });
    this.events.emit('report');
  }

  /** Rejects when `signal` aborts: this instance stops, and another one counts on. */
  awaitDrained: ControlPorts['awaitDrained'] = async (input, signal) => {
    const end = this.now() + input.timeout_ms;
    for (;;) {
      signal.throwIfAborted();
      const left = end - this.now();
      const outstanding = await this.outstanding(input);
      if (outstanding === 0) return { drained: true, outstanding: 0 };
      if (left <= 0) return { drained: false, outstanding: outstanding ?? 0 };
      await this.change(Math.min(left, 500), signal);
    }
  };

  /** Requests still running on the engine; null: not known yet (a router hasn't acknowledged, or we are too young). */
  private async outstanding(
    input: Parameters<ControlActivities['await_drained']>[0],
  ): Promise<number | null> {
    const now = this.now();
    for (const [id, r] of this.routers) if (now - r.at > ROUTER_FORGOTTEN_MS) this.routers.delete(id);
    if (this.routers.size === 0 && now - this.startedAt < SETTLED_MS) return null;
    let count = 0;
    for (const r of this.routers.values()) {
      if (r.report.version < input.version) return null;
      count += r.report.endpoints
        .filter(e => e.replica === input.replica && e.fence === input.fence)
        .reduce((n, e) => n + e.outstanding, 0);
    }
    // Clients that reach the engine past our routers count too.
    return count > 0 ? count : await runningOn(input.url);
  }

  private change(within: number, signal: AbortSignal): Promise<void> {
    return new Promise(resolve => {
      const done = (): void => {
        clearTimeout(timer);
        this.events.off('report', done);
        signal.removeEventListener('abort', done);
        resolve();
      };
      const timer = setTimeout(done, within);
      this.events.on('report', done);
      signal.addEventListener('abort', done);
    });
  }
}

/** The engine's own running count; 0 when it doesn't answer: then it serves nobody. */
async function runningOn(url: string): Promise<number> {
  try {
    const res = await fetch(`${url}/metrics`, { signal: AbortSignal.timeout(ENGINE_ASK_MS) });
    const text = await res.text();
    const counts = [
      ...text.matchAll(/^(?:vllm:num_requests_running|sglang:num_running_reqs)\S*\s+([\d.eE+]+)/gm),
    ];
    return counts.reduce((n, m) => n + Number(m[1]), 0);
  } catch {
    return 0;
  }
}
