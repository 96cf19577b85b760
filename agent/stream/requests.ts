// Requests of the control plane, answered in chunks within the credit that each carries: a slow reader at the far end
// costs no memory here or there.
import { LlmgwError } from '../../contracts/errors.js';
import type { AgentMessage } from '../../proto/gen/llmgw/v1/AgentMessage.js';
import type { Request__Output } from '../../proto/gen/llmgw/v1/Request.js';
import type { ServeRequest } from './types.js';

const CHUNK = 64 * 1024;
/** More at a time is a control plane gone mad; the rest is refused. */
const MAX_OPEN = 64;

interface Open {
  credit: number;
  wake: () => void;
  abort: AbortController;
}

export class RequestServer {
  private readonly open = new Map<number, Open>();

  /** `write` resolves when the message may be followed by another one. */
  constructor(
    private readonly serve: ServeRequest,
    private readonly write: (message: AgentMessage) => Promise<void>,
  ) {}

  start(request: Request__Output): void {
    if (this.open.has(request.id)) return;
    const entry: Open = { credit: request.credit, wake: () => {}, abort: new AbortController() };
    this.open.set(request.id, entry);
    void this.answer(request, entry).finally(() => this.open.delete(request.id));
  }

  grant(id: number, chunks: number): void {
    const entry = this.open.get(id);
    if (entry === undefined) return;
    entry.credit += chunks;
    entry.wake();
  }

  cancel(id: number): void {
    const entry = this.open.get(id);
    entry?.abort.abort();
    entry?.wake();
  }

  /** The stream is gone. */
  close(): void {
    for (const id of this.open.keys()) this.cancel(id);
  }

  private async answer(request: Request__Output, entry: Open): Promise<void> {
    const { id } = request;
    const { signal } = entry.abort;
    try {
      if (this.open.size > MAX_OPEN)
        throw new LlmgwError('UNAVAILABLE', `${MAX_OPEN} requests are open already.`);
      const payload: unknown = JSON.parse(request.payload.toString('utf8') || 'null');
      for await (const part of this.serve(request.kind, payload, signal)) {
        for (let at = 0; at < part.length; at += CHUNK) {
          while (entry.credit <= 0 && !signal.aborted) {
            await new Promise<void>(resolve => {
              entry.wake = resolve;
            });
          }
          if (signal.aborted) return;
          entry.credit -= 1;
          await this.write({ response: { id, data: part.subarray(at, at + CHUNK) } });
        }
        if (signal.aborted) return;
      }
      await this.write({ response: { id, end: true } });
    } catch (error) {
      if (signal.aborted) return;
      const code = error instanceof LlmgwError ? error.code : 'INTERNAL';
      const text = error instanceof Error ? error.message : String(error);
      await this.write({ response: { id, end: true, error_code: code, error: text } });
    }
  }
}
