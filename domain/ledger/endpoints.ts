// The route table's part of the ledger: whose message counts, and when the version grows.
import type { Serves } from '../../contracts/engine.js';
import { keyNumber, runOf } from '../../contracts/ids.js';
import type { EndpointMsg } from '../../contracts/messages.js';
import type { Endpoint } from '../../contracts/routes.js';
import { canonicalJson } from '../../contracts/spec.js';
import { TIMING } from '../../contracts/timing.js';
import type { Grant, LedgerState } from './state.js';

/** What routers can dial: a node's word that is no address would make them refuse the whole table. */
const ENGINE_URL = /^http:\/\/(\[[0-9a-f:.]{2,45}\]|[-a-z0-9.]{1,253}):\d{1,5}$/i;
const MODEL_CHARS = 300;
const ALIASES = 32;

export const isRoute = (serves: Serves | null): serves is Serves =>
  serves !== null &&
  ENGINE_URL.test(serves.url) &&
  URL.canParse(serves.url) &&
  serves.aliases.length <= ALIASES &&
  [serves.model, ...serves.aliases].every(name => name.length <= MODEL_CHARS);

/** Signals may arrive out of order: `ready` after its own end would be a route to nowhere, for ever. */
export function isLatestEndpoint(
  state: LedgerState,
  msg: Pick<EndpointMsg, 'key' | 'replica' | 'run_id' | 'fence'>,
): boolean {
  const grant = state.grants[msg.fence];
  if (grant === undefined || grant.replica !== msg.replica) return false;
  const last = grant.endpoint_key;
  const sameRun = last !== undefined && runOf(last) === runOf(msg.key);
  // A run that was reset counts its keys anew.
  if (sameRun && grant.run_id === msg.run_id && keyNumber(last) > keyNumber(msg.key)) return false;
  grant.endpoint_key = msg.key;
  return true;
}

export function dropEndpoint(state: LedgerState, replica: string, fence: number, now: number): void {
  if (state.endpoints[replica]?.fence !== fence) return;
  delete state.endpoints[replica];
  newVersion(state, now);
}

export function setEndpoint(state: LedgerState, grant: Grant, told: Endpoint, now: number): void {
  const { replica } = grant;
  const endpoint = withNodes(told, grant);
  const known = state.endpoints[replica];
  if (known !== undefined && known.fence > endpoint.fence) return;
  if (endpoint.state === 'ready') grant.ready_at ??= now;
  if (known !== undefined && canonicalJson(known) === canonicalJson(endpoint)) return;
  state.endpoints[replica] = endpoint;
  newVersion(state, now);
}

/** By the grant and no other word. Without these, a gang's followers would look as if nothing of them served (INV-5). */
function withNodes({ nodes: _, ...endpoint }: Endpoint, { members }: Grant): Endpoint {
  const nodes = members.map(m => m.node).filter(node => node !== endpoint.node);
  return nodes.length === 0 ? endpoint : { ...endpoint, nodes };
}

/** Of a gang that nobody speaks for members come and end one by one, while it is routed. */
export function membersChanged(state: LedgerState, grant: Grant, now: number): void {
  const shown = state.endpoints[grant.replica];
  if (shown?.fence === grant.fence) setEndpoint(state, grant, shown, now);
}

/**
 * A ledger that begins without a database hears of the engines one node after the other, and half a table would take
 * the rest from the routers, which serve on with the one that they have (INV-5). Once, from the first engine on.
 */
export function holdTable(state: LedgerState, now: number): void {
  if (state.bare && state.held_until === undefined) state.held_until = now + TIMING.tableHold;
}

/** There is no table to show: whoever has one keeps it (INV-5). */
export const isTableHeld = (state: LedgerState): boolean =>
  state.rebuilding !== null || typeof state.held_until === 'number';

export function lookHeld(state: LedgerState, now: number): void {
  if (typeof state.held_until !== 'number' || now < state.held_until) return;
  state.held_until = null;
  newVersion(state, now);
}

/** At least the time, so that the table of a rebuilt ledger is newer than what routers hold of the lost one. */
export function newVersion(state: LedgerState, now: number): void {
  state.version = Math.max(state.version + 1, now);
}
