// One request of a client, from its whole body to the last byte of the answer: choose an endpoint, send, and either
// pass the answer on as it comes or, before its first byte went to the client, try again. The rules of "again" are
// domain/router.ts's.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { afterAttempt, type Choice, type FaultKind, type Tries } from '../domain/router.js';
import type { Logger } from '../lib/log.js';
import type { Endpoints, LiveEndpoint } from './endpoints.js';
import { engineTarget, requestHead, responseHeaders } from './headers.js';
import type { ResponseHead } from './http1.js';
import type { Metrics } from './metrics.js';
import { type OpenAiError, sendError } from './openai-error.js';
import type { Ticket, WaitQueue } from './queue.js';
import { breakOff, noReplicaReady, queueFull, unknownModel, upstreamFailed } from './refusals.js';
import type { Exchange, UpstreamFault } from './upstream.js';

export interface ForwardDeps {
  endpoints: Endpoints;
  queue: WaitQueue;
  metrics: Metrics;
  log: Logger;
  /** ms a request may wait for a replica that is restarting. */
  queueTimeout: number;
  /** The router is stopping: answers tell clients to leave the connection. */
  stopping: () => boolean;
}

export interface ClientRequest {
  req: IncomingMessage;
  res: ServerResponse;
  body: Buffer;
  model: string;
  requestId: string;
  /** Headers that every answer to this client carries (CORS): name, value, … */
  extraHeaders: string[];
  /** ms since the epoch at which the request came in. */
  startedAt: number;
}

type Outcome =
  | { kind: 'passed' }
  | { kind: 'client_left' }
  /** Nothing has gone to the client. */
  | { kind: 'fault'; fault: FaultKind; message: string; status?: number }
  /** The answer had begun. */
  | { kind: 'broken'; message: string };
type Fault = Extract<Outcome, { kind: 'fault' }>;

/** The status of a request whose client left (nginx's convention), for metrics and logs: nobody gets it. */
export const CLIENT_LEFT = 499;

/** An engine's exit is in the table well within this time. */
const EXIT_NOTICE_MS = 5_000;

/** Serves the request; returns the status that counts for it. Never throws. */
export async function forward(deps: ForwardDeps, client: ClientRequest): Promise<number> {
  const run = new Forwarding(deps, client);
  const onClose = () => run.clientLeft();
  if (client.res.destroyed) return CLIENT_LEFT;
  client.res.once('close', onClose);
  try {
    return await run.serve();
  } finally {
    client.res.off('close', onClose);
  }
}

class Forwarding {
  private readonly tries: Tries = { reached: 0, staleRetried: false, sends: 0 };
  private readonly tried = new Set<string>();
  private ticket: Ticket | null = null;
  private exchange: Exchange | null = null;
  private endAttempt: ((outcome: Outcome) => void) | null = null;
  private answer: ResponseHead | null = null;
  private left = false;
  private lastFault = '';
  /** Where an engine was lost with this request at work in it. */
  private lostAt: { endpoint: LiveEndpoint; time: number } | null = null;

  constructor(
    private readonly deps: ForwardDeps,
    private readonly client: ClientRequest,
  ) {}

  /** The client's connection is gone: the engine is told at once, and a place in the queue is given up. */
  clientLeft(): void {
    if (this.client.res.writableFinished) return;
    this.left = true;
    this.exchange?.abort();
    this.ticket?.cancel();
    this.endAttempt?.({ kind: 'client_left' });
  }

  async serve(): Promise<number> {
    try {
      return await this.loop();
    } finally {
      this.ticket?.leave();
    }
  }

  private async loop(): Promise<number> {
    const { endpoints, metrics, queueTimeout } = this.deps;
    const { model, startedAt } = this.client;
    let again: LiveEndpoint | null = null;
    for (;;) {
      if (this.left) return CLIENT_LEFT;
      let endpoint: LiveEndpoint | null = again;
      let probe = false;
      if (endpoint === null) {
        const choice: Choice<LiveEndpoint> | null = endpoints.choose(model, this.tried);
        if (choice === null)
          return this.fail(
            unknownModel(
              model,
              endpoints.models().map(m => m.id),
            ),
          );
        if (choice.kind === 'wait') {
          const refused = await this.wait(choice.until, startedAt + queueTimeout);
          if (refused !== null) return this.fail(refused);
          continue;
        }
        ({ endpoint, probe } = choice);
        this.ticket?.leave();
        this.ticket = null;
      }
      const outcome = await this.attempt(endpoint, probe, again !== null);
      again = null;
      if (outcome.kind === 'passed') return this.client.res.statusCode;
      if (outcome.kind === 'client_left') return CLIENT_LEFT;
      if (outcome.kind === 'broken') {
        breakOff(this.client.req, this.client.res, this.answer?.headers ?? [], outcome.message);
        return 502;
      }
      const next = this.afterFault(endpoint, outcome);
      if (next === 'give_up') return this.fail(upstreamFailed(outcome.fault, outcome.message, endpoint.spec));
      metrics.retry(outcome.fault);
      if (next === 'again') again = endpoint;
    }
  }

  /** Null: look again. */
  private async wait(until: number | null, deadline: number): Promise<OpenAiError | null> {
    const { queue, queueTimeout } = this.deps;
    const { model, body } = this.client;
    this.ticket ??= queue.enter(model, body.length);
    if (this.ticket === null) return queueFull(model);
    // The engine that dropped the request is still in the table: either the table is about to change, or it lives and
    // nothing will come in its place.
    const lost = this.lostAt !== null && !this.lostAt.endpoint.draining ? this.lostAt : null;
    const notice = lost === null ? Number.POSITIVE_INFINITY : lost.time + EXIT_NOTICE_MS;
    if ((await this.ticket.wait(until, Math.min(deadline, notice))) !== 'deadline') return null;
    if (lost !== null && notice < deadline) {
      if (lost.endpoint.draining) return null;
      return upstreamFailed('reset', this.lastFault, lost.endpoint.spec);
    }
    return noReplicaReady(model, queueTimeout, this.lastFault);
  }

  private afterFault(endpoint: LiveEndpoint, outcome: Fault): 'again' | 'elsewhere' | 'give_up' {
    const { endpoints, log } = this.deps;
    const { fault, message } = outcome;
    this.lastFault = message;
    if (fault === 'reset' || fault === 'protocol') {
      this.tries.reached++;
      this.lostAt = { endpoint, time: Date.now() };
    }
    const next = afterAttempt(fault, this.tries, this.hasAlternative(endpoint), outcome.status);
    if (fault === 'stale_connection' && next === 'again') this.tries.staleRetried = true;
    else if (fault === 'reset' || fault === 'protocol' || fault === 'status') this.tried.add(endpoint.key);
    // A fixed backend with a wrong key stays wrong: nobody sends a new table.
    const wrongKey = fault === 'auth' && endpoint.fixed && !this.hasAlternative(endpoint);
    log.debug(
      { request: this.client.requestId, replica: endpoint.spec.replica, fault, message, next },
      'attempt failed',
    );
    if (fault === 'auth') endpoint.auth.refused();
    endpoints.fault(endpoint, fault, message);
    return wrongKey ? 'give_up' : next;
  }

  private hasAlternative(but: LiveEndpoint): boolean {
    const choice = this.deps.endpoints.choose(this.client.model, new Set([...this.tried, but.key]));
    return choice?.kind === 'take' && choice.endpoint !== but;
  }

  /** Sends the request to one endpoint, once, and passes the answer on. */
  private attempt(endpoint: LiveEndpoint, probe: boolean, fresh: boolean): Promise<Outcome> {
    const { endpoints } = this.deps;
    const { req, body, requestId } = this.client;
    const authorization = endpoint.auth.header();
    if (authorization === undefined) {
      const message = `no master secret here has the id ${endpoint.spec.key_id ?? '(none)'}, see master_secret_file`;
      return Promise.resolve({ kind: 'fault', fault: 'auth', message });
    }
    const target = engineTarget(endpoint.upstream.url.pathname, req.url!)!;
    const head = requestHead(req.method!, target, req.rawHeaders, {
      host: endpoint.upstream.url.host,
      contentLength: body.length,
      requestId,
      clientAddress: req.socket.remoteAddress ?? null,
      authorization,
      forwardAuth: endpoint.auth.forward,
    });
    this.tries.sends++;
    endpoints.begin(endpoint, probe);
    return new Promise(resolve => {
      let passing = false;
      const end = (outcome: Outcome) => {
        if (this.endAttempt === null) return;
        this.endAttempt = null;
        this.exchange = null;
        endpoints.finish(endpoint, probe);
        resolve(outcome);
      };
      this.endAttempt = end;
      this.exchange = endpoint.upstream.send(head, body, fresh, {
        onConnect: () => endpoints.connected(endpoint),
        onHead: answer => {
          const refusal = this.judge(endpoint, answer);
          if (refusal === null) {
            passing = true;
            this.begin(answer);
            return;
          }
          this.exchange?.abort();
          end(refusal);
        },
        onData: part => {
          endpoint.alive = true;
          return this.client.res.write(part) || this.pauseUntilDrained();
        },
        onEnd: () => {
          if (this.client.res.statusCode < 500) endpoint.ok++;
          this.client.res.end();
          end({ kind: 'passed' });
        },
        onFault: fault => end(this.outcomeOf(endpoint, fault, passing)),
      });
    });
  }

  /** Null: this answer goes to the client. */
  private judge(endpoint: LiveEndpoint, answer: ResponseHead): Outcome | null {
    const { endpoints } = this.deps;
    const { status } = answer;
    if ((status === 401 || status === 403) && !endpoint.auth.forward)
      return { kind: 'fault', fault: 'auth', message: `the engine refused the router's key with ${status}` };
    if (status < 500) {
      endpoints.answered(endpoint);
      return null;
    }
    this.tries.reached++;
    if (afterAttempt('status', this.tries, this.hasAlternative(endpoint), status) === 'elsewhere')
      return { kind: 'fault', fault: 'status', status, message: `the engine answered ${status}` };
    endpoints.fault(endpoint, 'status', `the engine answered ${status}`);
    return null;
  }

  private begin(answer: ResponseHead): void {
    this.answer = answer;
    const { metrics, stopping } = this.deps;
    const { res, model, requestId, extraHeaders, startedAt } = this.client;
    metrics.firstByte(model, (Date.now() - startedAt) / 1000);
    const headers = [...responseHeaders(answer.headers, requestId), ...extraHeaders];
    if (stopping()) headers.push('Connection', 'close');
    res.writeHead(answer.status, answer.reason, headers);
    // The head of a stream goes out before its first event; where a body came along, one packet is enough.
    process.nextTick(() => {
      if (!res.writableEnded && !res.destroyed) res.flushHeaders();
    });
  }

  private pauseUntilDrained(): false {
    this.client.res.once('drain', () => this.exchange?.resume());
    return false;
  }

  private outcomeOf(endpoint: LiveEndpoint, fault: UpstreamFault, passing: boolean): Outcome {
    if (fault.kind === 'client_stalled') {
      this.client.res.destroy();
      return { kind: 'client_left' };
    }
    if (!passing) return { kind: 'fault', fault: fault.kind, message: fault.message };
    this.deps.endpoints.fault(endpoint, fault.kind, fault.message);
    const { replica, node } = endpoint.spec;
    this.deps.log.warn(
      { request: this.client.requestId, replica, node, fault: fault.kind, err: fault.message },
      'an engine broke off its answer',
    );
    return { kind: 'broken', message: fault.message };
  }

  private fail(error: OpenAiError): number {
    if (this.left) return CLIENT_LEFT;
    const close = this.deps.stopping() ? ['Connection', 'close'] : [];
    const { requestId, extraHeaders } = this.client;
    sendError(this.client.res, { ...error, headers: ['X-Request-Id', requestId, ...extraHeaders, ...close] });
    return error.status;
  }
}
