// Requests to one agent over its stream, each answered in chunks. Credit bounds what lies here for a slow reader:
// the agent sends at most `credit` chunks ahead, and a reader's progress grants more.
import { isErrorCode, LlmgwError } from '../../contracts/errors.js';
import type { Response__Output } from '../../proto/gen/llmgw/v1/Response.js';
import type { ServerMessage } from '../../proto/gen/llmgw/v1/ServerMessage.js';
import type { RequestOptions } from './types.js';

/** Chunks ahead of the reader; agents cut chunks at 64 KiB, so at most 1 MiB lies here for one request. */
const CREDIT = 16;
/** Requests in flight on one stream; more are refused rather than queued. */
const MAX_OPEN = 64;
const DEFAULT_TIMEOUT = 10_000;

interface Open {
  chunks: Buffer[];
  ended: boolean;
  error: Error | null;
  wake: () => void;
}

export class RequestTable {
  private readonly open = new Map<number, Open>();
  private nextId = 1;
  private closed: Error | null = null;

  constructor(
    private readonly nodeId: string,
    private readonly send: (message: ServerMessage) => void,
  ) {}

  /** Yields the chunks. Ending the iteration early cancels the request at the agent. */
  async *request(
    kind: string,
    payload: unknown,
    opts: RequestOptions = {},
  ): AsyncGenerator<Buffer, void, void> {
    if (this.closed !== null) throw this.closed;
    if (this.open.size >= MAX_OPEN) {
      throw new LlmgwError('UNAVAILABLE', `${this.nodeId} has ${MAX_OPEN} requests open already; try again.`);
    }
    opts.signal?.throwIfAborted();
    const id = this.nextId++;
    const entry: Open = { chunks: [], ended: false, error: null, wake: () => {} };
    this.open.set(id, entry);
    const onAbort = () => this.fail(entry, opts.signal?.reason ?? new Error('aborted'));
    opts.signal?.addEventListener('abort', onAbort, { once: true });
    try {
      this.send({
        request: { id, kind, payload: Buffer.from(JSON.stringify(payload ?? null)), credit: CREDIT },
      });
      let taken = 0;
      for (;;) {
        const chunk = entry.chunks.shift();
        if (chunk !== undefined) {
          yield chunk;
          taken += 1;
          // Half the credit at a time: fewer messages than one grant a chunk, and the agent never runs dry.
          if (taken >= CREDIT / 2 && !entry.ended) {
            this.send({ grant: { id, chunks: taken } });
            taken = 0;
          }
          continue;
        }
        if (entry.error !== null) throw entry.error;
        if (entry.ended) return;
        await this.wait(entry, kind, opts.timeout ?? DEFAULT_TIMEOUT);
      }
    } finally {
      opts.signal?.removeEventListener('abort', onAbort);
      this.open.delete(id);
      if (!entry.ended && this.closed === null) this.send({ cancel_request: { id } });
    }
  }

  /** A chunk from the agent; one for a request that is over is dropped. */
  receive(response: Response__Output): void {
    const entry = this.open.get(response.id);
    if (entry === undefined || entry.ended || entry.error !== null) return;
    if (response.data.length > 0) entry.chunks.push(response.data);
    if (entry.chunks.length > CREDIT) {
      this.fail(entry, new LlmgwError('INTERNAL', `${this.nodeId} sent more than it was granted.`));
      return;
    }
    entry.ended = response.end;
    if (response.end && response.error_code !== '') {
      const code = isErrorCode(response.error_code) ? response.error_code : 'INTERNAL';
      entry.error = new LlmgwError(code, response.error);
    }
    entry.wake();
  }

  /** The stream is gone: every open request fails with the reason. */
  close(reason: string): void {
    this.closed = new LlmgwError('NODE_UNREACHABLE', reason);
    for (const entry of this.open.values()) this.fail(entry, this.closed);
  }

  private fail(entry: Open, error: Error): void {
    entry.error ??= error;
    entry.wake();
  }

  private wait(entry: Open, kind: string, timeout: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        const what = `${this.nodeId} did not answer the request for ${kind} within ${timeout / 1000} s.`;
        reject(new LlmgwError('NODE_UNREACHABLE', what));
      }, timeout);
      entry.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
