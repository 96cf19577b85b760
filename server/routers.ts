// The routers, by what they report: here, and at the other instances. A router reports to one of them at a time, and
// which one changes: its latest report counts, wherever it went.
import type { RouterReport } from '../contracts/routes.js';

/** A router that reports every 2 s and hasn't for this long holds drains up no more: it is gone, not slow. */
const ROUTER_FORGOTTEN_MS = 60_000;

interface KnownRouter {
  report: RouterReport;
  at: number;
}

/** One endpoint of one generation. */
export interface DrainedEndpoint {
  replica: string;
  fence: number;
}

/** A router as the instance knows it that it reports to. */
export interface RouterSeen {
  id: string;
  version: number;
  /** Of the endpoint that was asked about; null: of none. */
  outstanding: number | null;
  /** Since its last report; a span, because the clocks of two instances differ. */
  agoMs: number;
}

export interface PeerAnswer {
  instance: string;
  about: DrainedEndpoint | null;
  routers: RouterSeen[];
}

type Seen = Pick<RouterSeen, 'version' | 'outstanding'> & { at: number };

export class Routers {
  private readonly here = new Map<string, KnownRouter>();
  /** Instance → its routers as it last told. One that has died tells nothing more, and its routers are on their way. */
  private readonly elsewhere = new Map<string, Map<string, { version: number; at: number }>>();

  constructor(private readonly now: () => number) {}

  report(id: string, report: RouterReport): void {
    this.here.set(id, { report, at: this.now() });
  }

  /** Those that report here. */
  own(of: DrainedEndpoint | null): RouterSeen[] {
    this.forget();
    const now = this.now();
    return [...this.here].map(([id, r]) => ({
      id,
      version: r.report.version,
      outstanding: of === null ? null : outstandingOn(r.report, of),
      agoMs: now - r.at,
    }));
  }

  /** What each router that reports here told last of its successes with an engine, by its own clock. */
  lastSuccess(of: DrainedEndpoint): Map<string, string | null> {
    const told = new Map<string, string | null>();
    for (const [id, { report }] of this.here) {
      const engine = report.endpoints.find(e => e.replica === of.replica && e.fence === of.fence);
      if (engine !== undefined) told.set(id, engine.last_success);
    }
    return told;
  }

  /** Requests that those that report here have failed since they began, or wait for. */
  unanswered(of: DrainedEndpoint): number {
    const told = [...this.here.values()].flatMap(({ report }) =>
      report.endpoints.filter(e => e.replica === of.replica && e.fence === of.fence),
    );
    return told.reduce((n, e) => n + e.outstanding + e.failed, 0);
  }

  /** What another instance says of its routers. */
  heard({ instance, routers }: PeerAnswer): void {
    const now = this.now();
    const seen = routers.map(r => [r.id, { version: r.version, at: now - r.agoMs }] as const);
    this.elsewhere.set(instance, new Map(seen));
  }

  /** Every router that any instance has heard in the last minute; `answers`: what the others have just said. */
  everywhere(of: DrainedEndpoint, answers: PeerAnswer[]): Seen[] {
    for (const answer of answers) this.heard(answer);
    const latest = new Map<string, Seen>();
    const note = (id: string, r: Seen): void => {
      const known = latest.get(id);
      if (known === undefined || r.at > known.at) latest.set(id, r);
    };
    const now = this.now();
    for (const r of this.own(of)) note(r.id, { ...r, at: now - r.agoMs });
    const fresh = new Map(answers.map(a => [a.instance, a.routers]));
    for (const [instance, routers] of this.elsewhere) {
      const told = fresh.get(instance);
      for (const [id, r] of routers)
        note(id, { ...r, outstanding: told?.find(t => t.id === id)?.outstanding ?? null });
    }
    return [...latest.values()];
  }

  private forget(): void {
    const before = this.now() - ROUTER_FORGOTTEN_MS;
    for (const [id, r] of this.here) if (r.at < before) this.here.delete(id);
    for (const [instance, routers] of this.elsewhere) {
      for (const [id, r] of routers) if (r.at < before) routers.delete(id);
      if (routers.size === 0) this.elsewhere.delete(instance);
    }
  }
}

const outstandingOn = (report: RouterReport, of: DrainedEndpoint): number =>
  report.endpoints
    .filter(e => e.replica === of.replica && e.fence === of.fence)
    .reduce((n, e) => n + e.outstanding, 0);
