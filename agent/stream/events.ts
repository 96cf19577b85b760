// The outbox over one stream: all pending events after Welcome, each new one at once, each again until it is
// acknowledged. Nothing is forgotten here: what is pending is the supervisor's business, on disk.
import { type EventRef, encodeEvent, eventKeyOf } from '../../proto/codec.js';
import type { AgentMessage } from '../../proto/gen/llmgw/v1/AgentMessage.js';
import type { Outbox } from './types.js';

/** An unreachable Temporal costs one attempt an event in this time. */
export const RESEND_AFTER = 2_000;
/** Events on their way at a time: the control plane takes 256. */
const WINDOW = 128;

export class EventSender {
  private readonly sentAt = new Map<string, number>();

  constructor(
    private readonly outbox: Outbox,
    private readonly write: (message: AgentMessage) => void,
  ) {}

  /** Sends what is pending and wasn't sent lately. */
  flush(): void {
    const now = performance.now();
    const pending = this.outbox.pending();
    const keys = new Set(pending.map(eventKeyOf));
    for (const key of this.sentAt.keys()) if (!keys.has(key)) this.sentAt.delete(key);
    let onTheWay = [...this.sentAt.values()].filter(at => now - at < RESEND_AFTER).length;
    for (const event of pending) {
      if (onTheWay >= WINDOW) return;
      const key = eventKeyOf(event);
      const at = this.sentAt.get(key);
      if (at !== undefined && now - at < RESEND_AFTER) continue;
      this.sentAt.set(key, now);
      onTheWay += 1;
      this.write({ event: encodeEvent(event) });
    }
  }

  acknowledged(ref: EventRef): void {
    this.sentAt.delete(eventKeyOf(ref));
    this.outbox.ack(ref);
    // The window may have kept some back.
    this.flush();
  }
}
