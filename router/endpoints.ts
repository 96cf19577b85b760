// The endpoints that the router knows, with what it has seen of each: outstanding requests, health, counts for the
// reports. Who takes a request is decided in domain/router.ts.
import type { Endpoint, RouterReport } from '../contracts/routes.js';
import {
  afterConnect,
  afterFault,
  afterSuccess,
  type Candidate,
  type Choice,
  choose,
  endpointKey,
  type FaultKind,
  HEALTHY,
  type Health,
  namesOf,
} from '../domain/router.js';
import { Upstream, type UpstreamTimeouts } from './upstream.js';

/** How the router presents itself to an engine. */
export interface EndpointAuth {
  /** The Authorization header's value; null: none. Undefined: there should be a key and it can't be derived. */
  header(): string | null | undefined;
  /** The client's own credentials go to the engine, and its 401 back to the client. */
  forward: boolean;
  /** The engine refused the key: read the files again. */
  refused(): void;
}

export interface LiveEndpoint extends Candidate {
  spec: Endpoint;
  draining: boolean;
  outstanding: number;
  health: Health;
  readonly upstream: Upstream;
  readonly auth: EndpointAuth;
  ok: number;
  failed: number;
  /** ms since the epoch. */
  lastSuccess: number | null;
  /** Bytes of an answer came since the last report. */
  alive: boolean;
  /** No longer in the table; kept until nothing is outstanding. */
  gone: boolean;
}

export interface EndpointsOptions {
  timeouts: UpstreamTimeouts;
  auth: (spec: Endpoint) => EndpointAuth;
  /** From `backends`: no fence, no table. */
  fixed?: boolean;
  /** Something may be possible now that wasn't: requests for these names look again. */
  onRoom: (names: readonly string[]) => void;
  /** Nothing is outstanding any more on an endpoint that drains or has left. */
  onDrained: () => void;
  onEjected: (endpoint: LiveEndpoint, kind: FaultKind, message: string) => void;
}

/** A model whose last endpoint vanished (a crash: the next generation is on its way) is asked to wait this long. */
const MEMORY_MS = 10 * 60_000;
/** The same after a drain: a planned restart, or the end of it. */
const DRAINED_MEMORY_MS = 60_000;

export class Endpoints {
  private readonly byKey = new Map<string, LiveEndpoint>();
  private byModel = new Map<string, LiveEndpoint[]>();
  private readonly remembered = new Map<string, number>();
  private cursor = 0;
  private hasTable = false;

  constructor(private readonly options: EndpointsOptions) {}

  /** Takes a whole table. */
  apply(specs: readonly Endpoint[]): void {
    this.hasTable = true;
    const before = this.byModel;
    const wasDraining = new Set([...this.byKey.values()].filter(e => e.draining).map(e => e.key));
    const seen = new Set<string>();
    for (const spec of specs) {
      // A node's word that is no address: the others are served all the same.
      if (!URL.canParse(spec.url)) continue;
      const key = endpointKey(spec);
      seen.add(key);
      const known = this.byKey.get(key);
      if (known !== undefined && known.spec.url === spec.url) {
        known.spec = spec;
        known.draining = spec.state === 'draining';
        known.gone = false;
      } else {
        if (known !== undefined) this.retire(known);
        this.byKey.set(key, this.create(key, spec));
      }
    }
    for (const endpoint of this.byKey.values()) {
      if (seen.has(endpoint.key)) continue;
      this.retire(endpoint);
      if (endpoint.outstanding === 0) this.byKey.delete(endpoint.key);
    }
    this.index();
    this.remember(before, wasDraining);
    this.options.onRoom([...this.byModel.keys()]);
  }

  /** Null: nobody here serves it. Before the first table nobody can say that, so requests wait. */
  choose(model: string, tried: ReadonlySet<string>): Choice<LiveEndpoint> | null {
    const candidates = this.byModel.get(model);
    if (candidates === undefined) {
      return this.isRemembered(model) || !this.hasTable ? { kind: 'wait', until: null } : null;
    }
    this.cursor = (this.cursor + 1) % 1_000_003;
    return choose(candidates, tried, this.cursor, Date.now());
  }

  /** A request goes to it. */
  begin(endpoint: LiveEndpoint, probe: boolean): void {
    endpoint.outstanding++;
    if (probe) endpoint.health = { ...endpoint.health, probing: true };
  }

  /** The request has left it, however it ended. */
  finish(endpoint: LiveEndpoint, probe: boolean): void {
    endpoint.outstanding--;
    // A client that left in the middle of a probe has proved nothing: the next one may try.
    if (probe && endpoint.health.probing) {
      endpoint.health = { ...endpoint.health, probing: false };
      this.options.onRoom(namesOf(endpoint.spec));
    }
    if (endpoint.outstanding > 0 || !endpoint.draining) return;
    if (endpoint.gone && this.byKey.get(endpoint.key) === endpoint) this.byKey.delete(endpoint.key);
    this.options.onDrained();
  }

  connected(endpoint: LiveEndpoint): void {
    const before = endpoint.health;
    endpoint.health = afterConnect(before);
    if (before !== endpoint.health) this.options.onRoom(namesOf(endpoint.spec));
  }

  /** The engine answered this request with a status below 500. */
  answered(endpoint: LiveEndpoint): void {
    endpoint.lastSuccess = Date.now();
    const before = endpoint.health;
    endpoint.health = afterSuccess(before);
    if (before !== endpoint.health) this.options.onRoom(namesOf(endpoint.spec));
  }

  fault(endpoint: LiveEndpoint, kind: FaultKind, message: string): void {
    // A kept connection that the engine closed is its right.
    if (kind !== 'stale_connection') endpoint.failed++;
    const before = endpoint.health;
    endpoint.health = afterFault(before, kind, Date.now());
    if (endpoint.health.ejectedUntil > before.ejectedUntil) {
      endpoint.upstream.close();
      this.options.onEjected(endpoint, kind, message);
    }
  }

  /** Served names of the table, in its order, with the moment-independent facts that /v1/models shows. */
  models(): { id: string; root: string }[] {
    return [...this.byModel].map(([id, [first]]) => ({ id, root: first!.fixed ? id : first!.spec.model }));
  }

  knows(model: string): boolean {
    return this.byModel.has(model) || this.isRemembered(model);
  }

  all(): LiveEndpoint[] {
    return [...this.byKey.values()];
  }

  /** The body of a report, without what is queued. */
  report(version: number): Omit<RouterReport, 'queued'> {
    const endpoints = this.all().map(e => {
      if (e.alive) e.lastSuccess = Date.now();
      e.alive = false;
      return {
        replica: e.spec.replica,
        fence: e.spec.fence,
        outstanding: e.outstanding,
        ok: e.ok,
        failed: e.failed,
        last_success: e.lastSuccess === null ? null : new Date(e.lastSuccess).toISOString(),
      };
    });
    return { version, endpoints };
  }

  /** Closes every connection at once. */
  destroy(): void {
    for (const endpoint of this.byKey.values()) endpoint.upstream.destroy();
  }

  private retire(endpoint: LiveEndpoint): void {
    endpoint.gone = true;
    endpoint.draining = true;
    endpoint.upstream.close();
  }

  private create(key: string, spec: Endpoint): LiveEndpoint {
    return {
      key,
      spec,
      fixed: this.options.fixed ?? false,
      draining: spec.state === 'draining',
      outstanding: 0,
      health: HEALTHY,
      upstream: new Upstream(spec.url, this.options.timeouts),
      auth: this.options.auth(spec),
      ok: 0,
      failed: 0,
      lastSuccess: null,
      alive: false,
      gone: false,
    };
  }

  private index(): void {
    this.byModel = new Map();
    for (const endpoint of this.byKey.values()) {
      if (endpoint.gone) continue;
      for (const name of namesOf(endpoint.spec)) {
        const list = this.byModel.get(name);
        if (list === undefined) this.byModel.set(name, [endpoint]);
        else list.push(endpoint);
      }
    }
  }

  private remember(before: ReadonlyMap<string, LiveEndpoint[]>, wasDraining: ReadonlySet<string>): void {
    const now = Date.now();
    for (const [name, endpoints] of before) {
      if (this.byModel.has(name)) continue;
      const planned = endpoints.every(e => wasDraining.has(e.key));
      this.remembered.set(name, now + (planned ? DRAINED_MEMORY_MS : MEMORY_MS));
    }
    for (const [name, until] of this.remembered) {
      if (until < now || this.byModel.has(name)) this.remembered.delete(name);
    }
  }

  private isRemembered(model: string): boolean {
    return (this.remembered.get(model) ?? 0) > Date.now();
  }
}
