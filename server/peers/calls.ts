// What one control plane instance asks of another, each call bounded. A peer that doesn't answer is PeerDown with a
// clause that says why; what a peer answers for its agent (an LlmgwError) passes through as it is.
import { type ClientReadableStream, type ServiceError, status } from '@grpc/grpc-js';
import { isErrorCode, LlmgwError } from '../../contracts/errors.js';
import type { Caller } from '../../proto/gen/llmgw/v1/Caller.js';
import type { LiveReply__Output } from '../../proto/gen/llmgw/v1/LiveReply.js';
import type { LiveRequest } from '../../proto/gen/llmgw/v1/LiveRequest.js';
import type { PeerClient } from '../../proto/gen/llmgw/v1/Peer.js';
import type { PeerChunk__Output } from '../../proto/gen/llmgw/v1/PeerChunk.js';
import type { PeerDone__Output } from '../../proto/gen/llmgw/v1/PeerDone.js';
import type { PeerSuperseded } from '../../proto/gen/llmgw/v1/PeerSuperseded.js';
import type { RoutersReply__Output } from '../../proto/gen/llmgw/v1/RoutersReply.js';
import type { RequestOptions } from '../stream/types.js';
import type { PeerChannels } from './channels.js';

/** To an answer of one message, connecting included: an operator waits for it. */
const CALL_WITHIN = 3_000;
/** Asked several times in a drain: a peer that is slow counts as not heard this time. */
const ROUTERS_WITHIN = 1_000;
/** The peer's own sentence about its agent's silence must arrive before ours about the peer's. */
const SLACK = 2_000;
const DEFAULT_TIMEOUT = 10_000;

/** The instance at that address didn't answer; the message is a clause. */
export class PeerDown extends Error {
  override readonly name = 'PeerDown';
}

export interface PeerCallsOptions {
  instance: string;
  peerAddr: string | null;
  channels: PeerChannels;
}

type Unary<Q, A> = (
  request: Q & { caller: Caller },
  options: { deadline: number },
  done: (error: ServiceError | null, answer?: A) => void,
) => unknown;

export class PeerCalls {
  private readonly caller: Caller;

  constructor(private readonly opts: PeerCallsOptions) {
    this.caller = { instance: opts.instance, peer_addr: opts.peerAddr ?? '' };
  }

  live = (addr: string, request: Omit<LiveRequest, 'caller'>): Promise<LiveReply__Output> =>
    this.unary(addr, CALL_WITHIN, client => client.Live.bind(client), request);

  superseded = (addr: string, message: Omit<PeerSuperseded, 'caller'>): Promise<PeerDone__Output> =>
    this.unary(addr, CALL_WITHIN, client => client.Superseded.bind(client), message);

  routers = (addr: string, of: { replica: string; fence: number } | null): Promise<RoutersReply__Output> =>
    this.unary(addr, ROUTERS_WITHIN, client => client.Routers.bind(client), of ?? {});

  /** Chunks of the agent's answer. Ending the iteration early cancels the request at the agent. */
  async *request(
    addr: string,
    nodeId: string,
    kind: string,
    payload: unknown,
    opts: RequestOptions = {},
  ): AsyncGenerator<Buffer, void, void> {
    const timeout = opts.timeout ?? DEFAULT_TIMEOUT;
    const client = this.client(addr);
    await this.connected(addr, client);
    opts.signal?.throwIfAborted();
    const call: ClientReadableStream<PeerChunk__Output> = client.Request({
      caller: this.caller,
      node_id: nodeId,
      kind,
      payload: Buffer.from(JSON.stringify(payload ?? null)),
      timeout_ms: timeout,
    });
    call.on('error', () => {}); // the iteration throws it; after its end nobody listens any more
    const cancel = (): void => call.cancel();
    opts.signal?.addEventListener('abort', cancel, { once: true });
    const chunks = call[Symbol.asyncIterator]() as AsyncIterator<PeerChunk__Output>;
    try {
      for (;;) {
        const next = await within(timeout + SLACK, chunks.next()).catch((err: unknown) => {
          opts.signal?.throwIfAborted();
          throw this.down(addr, client, err);
        });
        if (next.done) throw this.down(addr, client, new Error('it ended the answer half-way'));
        const chunk = next.value;
        if (chunk.data.length > 0) yield chunk.data;
        if (!chunk.end) continue;
        if (chunk.error_code === '') return;
        throw new LlmgwError(isErrorCode(chunk.error_code) ? chunk.error_code : 'INTERNAL', chunk.error);
      }
    } finally {
      opts.signal?.removeEventListener('abort', cancel);
      call.cancel();
    }
  }

  close(): void {
    this.opts.channels.close();
  }

  private async unary<Q, A>(
    addr: string,
    ms: number,
    method: (client: PeerClient) => Unary<Q, A>,
    request: Q,
  ): Promise<A> {
    const client = this.client(addr);
    return await new Promise<A>((resolve, reject) => {
      const options = { deadline: Date.now() + ms };
      method(client)({ ...request, caller: this.caller }, options, (error, answer) =>
        error === null ? resolve(answer as A) : reject(this.down(addr, client, error)),
      );
    });
  }

  private client(addr: string): PeerClient {
    try {
      return this.opts.channels.to(addr);
    } catch (err) {
      throw new PeerDown((err as Error).message, { cause: err });
    }
  }

  private connected(addr: string, client: PeerClient): Promise<void> {
    return new Promise((resolve, reject) => {
      // A refused connection is tried again until then: it may be the instance's restart.
      client.waitForReady(Date.now() + CALL_WITHIN, error =>
        error === undefined || error === null
          ? resolve()
          : reject(this.down(addr, client, new Error(`no connection within ${CALL_WITHIN / 1000} s`))),
      );
    });
  }

  private down(addr: string, client: PeerClient, err: unknown): PeerDown {
    this.opts.channels.drop(addr, client);
    return new PeerDown(clauseOf(err), { cause: err });
  }
}

function clauseOf(err: unknown): string {
  const { code, details, message } = err as Partial<ServiceError>;
  if (code === status.DEADLINE_EXCEEDED) return 'it did not answer in time';
  if (code === status.UNIMPLEMENTED) return 'it is of a release that forwards nothing';
  return details || message || String(err);
}

function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it sent nothing for ${ms / 1000} s`)), ms);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}
