// Signals out, kept until they are acknowledged: keyed, carried over continue-as-new, sent again with their key. The
// ledger answers a repeated key as it answered the first (INV-1, INV-6).
import { getExternalWorkflowHandle, sleep } from '@temporalio/workflow';
import { FLEET_ID } from '../contracts/ids.js';
import type { LedgerMsg } from '../contracts/messages.js';
import { TIMING } from '../contracts/timing.js';

export class LedgerOutbox {
  readonly pending: LedgerMsg[];
  private readonly sending = new Set<string>();
  private waiting = false;

  constructor(carried: LedgerMsg[]) {
    this.pending = carried;
  }

  /** Queues it; the driver calls flush. */
  put(msg: LedgerMsg): void {
    this.pending.push(msg);
  }

  acked(key: string): void {
    const at = this.pending.findIndex(m => m.key === key);
    if (at >= 0) this.pending.splice(at, 1);
  }

  /** Sends what isn't under way, in order. Throws nothing: a ledger that isn't there is tried again later. */
  async flush(): Promise<void> {
    for (const msg of this.pending.filter(m => !this.sending.has(m.key))) {
      this.sending.add(msg.key);
      try {
        await getExternalWorkflowHandle(FLEET_ID).signal(msg.kind, msg);
      } catch {
        // Not found: the control plane starts the ledger again within seconds; resend brings it there.
      }
    }
    this.armResend();
  }

  private armResend(): void {
    if (this.waiting || this.pending.length === 0) return;
    this.waiting = true;
    void sleep(TIMING.outboxResend).then(() => {
      this.waiting = false;
      this.sending.clear();
      return this.flush();
    });
  }
}
