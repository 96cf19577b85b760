// The router's decisions, pure: which endpoint takes a request, what a fault does to an endpoint's health, whether a
// request may be sent again, and whether a table that was offered is taken. router/* only drives them.
import { nearest } from '../contracts/nearest.js';
import type { Endpoint, RouteTable } from '../contracts/routes.js';

/** Why an attempt failed before any byte of an answer was passed on. */
export type FaultKind =
  /** No connection was made: the engine never saw the request. */
  | 'connect'
  /** A kept connection died before the first byte of the answer: most likely the engine's idle timeout. */
  | 'stale_connection'
  /** A fresh connection died before the answer was complete: the engine was at work on it. */
  | 'reset'
  /** The engine answered something that isn't HTTP, or ambiguous HTTP. */
  | 'protocol'
  /** No byte of an answer, or none further, in the time allowed. */
  | 'timeout'
  /** 5xx. */
  | 'status'
  /** 401 or 403 to the router's own key: the route is stale, another engine lives there. */
  | 'auth';

/** What the router thinks of one endpoint. Plain data: times in ms of the caller's clock. */
export interface Health {
  /** Faults in a row. */
  failures: number;
  /** Takes nothing before this time; 0: not ejected. */
  ejectedUntil: number;
  /** Ejected by a fault that says the engine isn't there, as opposed to one that answers with 5xx. */
  hard: boolean;
  /** After an ejection one request at a time finds out whether the engine is back. */
  probing: boolean;
}

export const HEALTHY: Health = Object.freeze({ failures: 0, ejectedUntil: 0, hard: false, probing: false });

const EJECT_BASE_MS = 250;
/** An engine that is back is found within this time, whatever it did before. */
const EJECT_MAX_MS = 5_000;
/** A stale route ends with the next table; without one the key may have been rotated, so it is tried again. */
const EJECT_AUTH_MS = 30_000;
/** One bad request may fetch a 5xx; this many in a row are the engine's fault. */
const SOFT_FAULTS = 3;

/** The health after a fault. Faults of requests that were under way when it was ejected don't lengthen the ejection. */
export function afterFault(health: Health, kind: FaultKind, now: number): Health {
  if (kind === 'stale_connection') return { ...health, probing: false };
  const hard = kind === 'connect' || kind === 'reset' || kind === 'protocol' || kind === 'auth';
  if (health.ejectedUntil > now && (health.hard || !hard)) return health;
  const failures = health.failures + 1;
  if (kind === 'auth') return { failures, ejectedUntil: now + EJECT_AUTH_MS, hard: true, probing: false };
  const doublings = hard ? failures - 1 : failures - SOFT_FAULTS;
  if (doublings < 0) return { ...health, failures, probing: false };
  const pause = Math.min(EJECT_MAX_MS, EJECT_BASE_MS * 2 ** Math.min(doublings, 10));
  return { failures, ejectedUntil: now + pause, hard, probing: false };
}

/** An answer below 500 came. */
export function afterSuccess(health: Health): Health {
  return health.failures === 0 && health.ejectedUntil === 0 ? health : HEALTHY;
}

/** A connection stands: others needn't wait for the answer, but a fault now still counts as one more in a row. */
export function afterConnect(health: Health): Health {
  return health.probing ? { ...health, ejectedUntil: 0, probing: false } : health;
}

/** What `choose` looks at; `router/endpoints.ts` holds it. */
export interface Candidate {
  readonly key: string;
  readonly draining: boolean;
  /** From `backends`, without a fence: the engine behind it changes, its key doesn't. */
  readonly fixed: boolean;
  readonly outstanding: number;
  readonly health: Health;
}

export type Choice<C> =
  | { kind: 'take'; endpoint: C; probe: boolean }
  /** None can take it now; `until`: when an ejection ends, or null when only a new table or a probe helps. */
  | { kind: 'wait'; until: number | null };

/**
 * The endpoint with the least outstanding requests; `cursor` turns among equals. `tried` are the keys that this request
 * has reached already: it goes to them again only where nothing else can ever come in their place.
 */
export function choose<C extends Candidate>(
  candidates: readonly C[],
  tried: ReadonlySet<string>,
  cursor: number,
  now: number,
): Choice<C> {
  let best: C | null = null;
  let panic: C | null = null;
  let until: number | null = null;
  for (let i = 0; i < candidates.length; i++) {
    const candidate = candidates[(i + cursor) % candidates.length]!;
    if (candidate.draining) continue;
    if (tried.has(candidate.key) && !(candidate.fixed && candidates.length === 1)) continue;
    const { health } = candidate;
    if (health.ejectedUntil > now) {
      until = until === null ? health.ejectedUntil : Math.min(until, health.ejectedUntil);
      // All that is left answers 5xx: better the engine's own error than an outage made by the router.
      if (!health.hard && (panic === null || candidate.outstanding < panic.outstanding)) panic = candidate;
      continue;
    }
    if (health.probing) continue;
    if (best === null || candidate.outstanding < best.outstanding) best = candidate;
  }
  if (best !== null) return { kind: 'take', endpoint: best, probe: best.health.ejectedUntil > 0 };
  if (panic !== null) return { kind: 'take', endpoint: panic, probe: false };
  return { kind: 'wait', until };
}

/** What a request has been through. */
export interface Tries {
  /** How often an engine may have worked on it. */
  reached: number;
  /** The one free try on a fresh connection was used. */
  staleRetried: boolean;
  /** All sends, refused connections included. */
  sends: number;
}

/** A request that kills engines (a bad kernel, an out of memory) must not walk through the fleet: two engines at most. */
const MAX_REACHED = 2;
/** Refused connections and stale routes cost nothing, but a table full of them mustn't spin. */
const MAX_SENDS = 32;

/**
 * What to do after a fault, before any byte went to the client: `again` on a fresh connection to the same endpoint,
 * `elsewhere` (waiting for another endpoint where there is none), or `give_up` (pass on what there is).
 * `alternatives`: whether another endpoint could take it right now; `status`: of the answer, where there is one.
 */
export function afterAttempt(
  kind: FaultKind,
  tries: Tries,
  alternatives: boolean,
  status: number | null = null,
): 'again' | 'elsewhere' | 'give_up' {
  if (tries.sends >= MAX_SENDS) return 'give_up';
  switch (kind) {
    case 'connect':
    case 'auth':
      return 'elsewhere';
    case 'stale_connection':
      return tries.staleRetried ? 'elsewhere' : 'again';
    case 'reset':
    case 'protocol':
      return tries.reached < MAX_REACHED ? 'elsewhere' : 'give_up';
    // The engine may still be generating: sending it again would double the load that made it slow.
    case 'timeout':
      return 'give_up';
    // 501, 504 and the like are the engine's word on this request; these may be its own trouble.
    case 'status': {
      const own = status === 500 || status === 502 || status === 503;
      return own && alternatives && tries.reached < MAX_REACHED ? 'elsewhere' : 'give_up';
    }
  }
}

/** A table below ours is taken after it has been the only offer for this long: longer than an instance lags (10 s). */
export const LOWER_VERSION_PATIENCE_MS = 15_000;

/**
 * Whether a table replaces the one in use. Versions only go up: with several control plane instances one of them may
 * lag behind. A lower version that stays is a ledger that was rebuilt, and is taken in the end, unless it is empty:
 * missing knowledge stops nothing (INV-5), and a wrong route is refused by the engine's key (INV-6).
 * `lowerSince`: when the first lower offer came with none at or above ours since, or null.
 */
export function acceptTable(
  current: RouteTable | null,
  offered: RouteTable,
  lowerSince: number | null,
  now: number,
): 'take' | 'keep' {
  if (current === null || offered.version >= current.version) return 'take';
  if (offered.endpoints.length === 0) return 'keep';
  return lowerSince !== null && now - lowerSince >= LOWER_VERSION_PATIENCE_MS ? 'take' : 'keep';
}

/** One endpoint of one generation (INV-6). */
export const endpointKey = (e: Pick<Endpoint, 'replica' | 'fence'>): string => `${e.replica}/${e.fence}`;

/** Every name that an endpoint answers to. */
export const namesOf = (e: Pick<Endpoint, 'model' | 'aliases'>): string[] => [
  ...new Set([e.model, ...e.aliases]),
];

/** Up to three known models, the one that was likely meant first. */
export function nearestModels(asked: string, known: readonly string[]): string[] {
  const near = nearest(asked, known);
  const rest = known.filter(name => name !== near).toSorted();
  return [...(near === null ? [] : [near]), ...rest].slice(0, 3);
}
