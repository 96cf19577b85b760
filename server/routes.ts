// The route table as this instance has it, those who watch it, and when a drain is over.
import { EventEmitter } from 'node:events';
import type { ControlPorts } from '../activities/control/index.js';
import type { ControlActivities } from '../contracts/activities.js';
import type { RouterReport, RouteTable } from '../contracts/routes.js';
import { TIMING } from '../contracts/timing.js';
import type { Logger } from '../lib/log.js';
import { type DrainedEndpoint, type PeerAnswer, type RouterSeen, Routers } from './routers.js';

/** Before this, a fresh instance may not have heard of its routers yet: it counts nothing as drained. */
const SETTLED_MS = 10_000;
const ENGINE_ASK_MS = 1_000;
/** While the ledger is rebuilt, it is asked this often for its table. */
const REBUILT_MS = 250;

export interface RouteHubOptions {
  /** The ledger's table, by query; null: it is rebuilt, and what routers have stays (INV-5). */
  pull: () => Promise<RouteTable | null>;
  /** The routers of the other instances that answer. */
  peers?: (of: DrainedEndpoint) => Promise<PeerAnswer[]>;
  log: Logger;
  now?: () => number;
}

export class RouteHub {
  private current: RouteTable | null = null;
  private readonly routers: Routers;
  private readAt: number | null = null;
  private readonly events = new EventEmitter().setMaxListeners(0);
  private readonly startedAt: number;
  private readonly now: () => number;
  private pulling: Promise<void> | null = null;
  private timer: NodeJS.Timeout | null = null;
  private soon: NodeJS.Timeout | null = null;

  constructor(private readonly options: RouteHubOptions) {
    this.now = options.now ?? Date.now;
    this.routers = new Routers(this.now);
    this.startedAt = this.now();
  }

  start(): void {
    this.timer = setInterval(() => void this.refresh(), TIMING.routesPull);
    this.timer.unref();
  }

  stop(): void {
    if (this.timer !== null) clearInterval(this.timer);
    if (this.soon !== null) clearTimeout(this.soon);
    this.events.emit('stop');
  }

  table(): RouteTable | null {
    return this.current;
  }

  /** Of all engines that a node has a member of. null: the table was never read. */
  endpointsOf(node: string): RouteTable['endpoints'] | null {
    return this.current?.endpoints.filter(e => e.node === node || e.nodes?.includes(node)) ?? null;
  }

  /** What each router that reports here told last of its successes with an engine, by its own clock. */
  lastSuccess = (replica: string, fence: number): Map<string, string | null> =>
    this.routers.lastSuccess({ replica, fence });

  /** Requests to an engine that the routers which report here have failed, or wait for. */
  unanswered = (replica: string, fence: number): number => this.routers.unanswered({ replica, fence });

  /** Since the table was last read from the ledger, ms; null: never. */
  tableAge(): number | null {
    return this.readAt === null ? null : this.now() - this.readAt;
  }

  /** Those that report here. */
  ownRouters = (of: DrainedEndpoint | null): RouterSeen[] => this.routers.own(of);

  /** What another instance says of its routers. */
  heard = (answer: PeerAnswer): void => this.routers.heard(answer);

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
      if (next === null) return this.pullSoon();
      this.readAt = this.now();
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

  /** A rebuilt ledger is whole in seconds, and pushes nothing when its table is as it was. */
  private pullSoon(): void {
    this.soon ??= setTimeout(() => {
      this.soon = null;
      void this.refresh();
    }, REBUILT_MS);
    this.soon.unref();
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
    this.routers.report(id, report);
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
    // Routers that were with an instance which has died, or with us before a restart, are on their way here.
    if (this.now() - this.startedAt < SETTLED_MS) return null;
    let count = 0;
    const answers = (await this.options.peers?.(input)) ?? [];
    for (const r of this.routers.everywhere(input, answers)) {
      if (r.version < input.version || r.outstanding === null) return null;
      count += r.outstanding;
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
