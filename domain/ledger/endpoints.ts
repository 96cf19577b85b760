// The route table's part of the ledger: whose message counts, and when the version grows.
import { keyNumber, runOf } from '../../contracts/ids.js';
import type { EndpointMsg } from '../../contracts/messages.js';
import type { Endpoint } from '../../contracts/routes.js';
import type { Grant, LedgerState } from './state.js';

/** Signals may arrive out of order: `ready` after its own end would be a route to nowhere, for ever. */
export function isLatestEndpoint(state: LedgerState, msg: EndpointMsg): boolean {
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

export function setEndpoint(state: LedgerState, grant: Grant, endpoint: Endpoint, now: number): void {
  const { replica } = grant;
  const known = state.endpoints[replica];
  if (known !== undefined && known.fence > endpoint.fence) return;
  if (endpoint.state === 'ready') grant.ready_at ??= now;
  if (
    known !== undefined &&
    known.fence === endpoint.fence &&
    known.state === endpoint.state &&
    known.url === endpoint.url
  )
    return;
  state.endpoints[replica] = endpoint;
  newVersion(state, now);
}

/** At least the time, so that the table of a rebuilt ledger is newer than what routers hold of the lost one. */
export function newVersion(state: LedgerState, now: number): void {
  state.version = Math.max(state.version + 1, now);
}
