// What a client is told when no engine's answer can be passed on, and how an answer ends that has begun.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Endpoint } from '../contracts/routes.js';
import { type FaultKind, nearestModels } from '../domain/router.js';
import { headerOf } from './headers.js';
import { errorJson, type OpenAiError } from './openai-error.js';

export function unknownModel(asked: string, known: readonly string[]): OpenAiError {
  const near = nearestModels(asked, known).map(name => JSON.stringify(name));
  const more = known.length > near.length ? ', …' : '';
  const hint = near.length === 0 ? 'None is served now.' : `Known: ${near.join(', ')}${more}.`;
  return {
    status: 404,
    type: 'invalid_request_error',
    code: 'model_not_found',
    param: 'model',
    message: `The model ${JSON.stringify(asked.slice(0, 200))} does not exist here. ${hint}`,
  };
}

export const queueFull = (model: string): OpenAiError => ({
  status: 429,
  type: 'rate_limit_error',
  code: 'queue_full',
  message: `No replica of ${JSON.stringify(model)} can take the request now, and too many wait already. Try again shortly.`,
  retryAfter: 1,
});

/** `waited` in ms; `lastFault`: what became of the last attempt, '' without one. */
export function noReplicaReady(model: string, waited: number, lastFault: string): OpenAiError {
  const why = lastFault === '' ? '' : ` The last attempt: ${lastFault}.`;
  return {
    status: 429,
    type: 'rate_limit_error',
    code: 'no_replica_ready',
    message: `No replica of ${JSON.stringify(model)} became ready within ${waited / 1000} s.${why} Try again later.`,
    retryAfter: 5,
  };
}

/** The last fault is the answer: nothing more may be tried. */
export function upstreamFailed(fault: FaultKind, message: string, at: Endpoint): OpenAiError {
  const error = (status: number, code: string, what: string): OpenAiError => ({
    status,
    type: 'upstream_error',
    code,
    message: `${what} (${at.replica} on ${at.node}): ${message}.`,
  });
  if (fault === 'timeout') return error(504, 'upstream_timeout', 'The engine did not answer in time');
  if (fault === 'auth') return error(502, 'upstream_auth', 'The router has no valid key for the engine');
  if (fault === 'connect') return error(503, 'upstream_unreachable', 'No engine could be reached');
  return error(502, 'upstream_error', 'The engine failed before it answered');
}

/** A client that takes nothing doesn't get its last event. */
const BREAK_FLUSH_MS = 1_000;

/**
 * Ends an answer that the engine broke off, so that it can't look complete: an event stream gets an error event, after
 * a blank line since the break may be inside an event, and the connection ends without the end of the message.
 * `headers`: of the engine's answer, name, value, …
 */
export function breakOff(
  req: IncomingMessage,
  res: ServerResponse,
  headers: readonly string[],
  message: string,
): void {
  const hasLength = headerOf(headers, 'content-length') !== null;
  const events = /^text\/event-stream\b/i.test(headerOf(headers, 'content-type') ?? '');
  if (!events || hasLength || headerOf(headers, 'content-encoding') !== null || res.writableNeedDrain) {
    // Without a length or chunks the end of the connection is the end of the answer: only a reset says otherwise.
    if (hasLength || req.httpVersion === '1.1') res.destroy();
    else res.socket?.resetAndDestroy();
    return;
  }
  const error: OpenAiError = {
    status: 502,
    type: 'upstream_error',
    code: 'upstream_broke_off',
    message: `The engine broke off the answer: ${message}.`,
  };
  const timer = setTimeout(() => res.destroy(), BREAK_FLUSH_MS);
  res.write(`\n\ndata: ${errorJson(error)}\n\n`, () => {
    clearTimeout(timer);
    res.destroy();
  });
}
