// Signals out, kept until they are acknowledged: keyed, carried over continue-as-new, sent again with their key. The
// ledger answers a repeated key as it answered the first (INV-1, INV-6).
import { CancellationScope, getExternalWorkflowHandle, sleep } from '@temporalio/workflow';
import { FLEET_ID } from '../contracts/ids.js';
import type { LedgerMsg } from '../contracts/messages.js';
import { TIMING } from '../contracts/timing.js';

export class LedgerOutbox {
  readonly pending: LedgerMsg[];
  private readonly sending = new Set<string>();
  private resend: CancellationScope | null = null;
  /** Resending outlives whatever scope a message was put in: only its own cancellation ends it. */
  private parent: CancellationScope | null = null;

  constructor(carried: LedgerMsg[]) {
    this.pending = carried;
  }

  /** Called once in the driver's non-cancellable scope; sends what was carried over. */
  open(): void {
    this.parent = CancellationScope.current();
    this.flush();
  }

  /** Queues it; the driver calls flush. */
  put(msg: LedgerMsg): void {
    if (msg.kind === 'release' && msg.withdraw !== null) this.drop(msg.withdraw);
    // The latest word of what is held counts: an older one that is sent again would only be a wrong one.
    if (msg.kind === 'assert')
      for (const m of this.pending.filter(p => p.kind === 'assert'))
        this.pending.splice(this.pending.indexOf(m), 1);
    // Asked again while it is under way: the one that is here is sent until it is answered.
    if (!this.pending.some(m => m.key === msg.key)) this.pending.push(msg);
  }

  /** A withdrawn reserve isn't sent again: it could arrive after its withdrawal. A renew is, for the release in it. */
  private drop(key: string): void {
    const at = this.pending.findIndex(m => m.key === key && m.kind === 'reserve');
    if (at >= 0) this.pending.splice(at, 1);
  }

  acked(key: string): void {
    const at = this.pending.findIndex(m => m.key === key);
    if (at >= 0) this.pending.splice(at, 1);
    // Cancelled in the same task as the answer: a timer that fires would cost a task of its own (INV-11).
    if (this.pending.length === 0) this.resend?.cancel();
  }

  /**
   * Sends what isn't under way. Never rejects. The order of arrival isn't promised, and the ledger needs none: a newer
   * reserve of a replica replaces the older, releases and endpoints carry their fence.
   */
  flush(): void {
    if (this.pending.some(needsAnswer)) this.armResend();
    for (const msg of this.pending.filter(m => !this.sending.has(m.key))) {
      this.sending.add(msg.key);
      void getExternalWorkflowHandle(FLEET_ID)
        .signal(msg.kind, msg)
        .then(() => {
          if (!needsAnswer(msg)) this.acked(msg.key);
        })
        // Not found: the control plane starts the ledger again within seconds; resend brings it there.
        .catch(() => this.armResend());
    }
  }

  private armResend(): void {
    if (this.parent === null || this.resend !== null || this.pending.length === 0) return;
    const scope = new CancellationScope({ cancellable: true, parent: this.parent });
    this.resend = scope;
    void scope
      .run(() => sleep(TIMING.outboxResend, { summary: 'send again what the ledger has not answered' }))
      .then(() => this.sending.clear())
      // Cancelled: everything was answered.
      .catch(() => undefined)
      .finally(() => {
        this.resend = null;
        this.flush();
      });
  }
}

/** Where nothing waits for the ledger's answer, delivery is enough: it is in the ledger's history. */
const needsAnswer = (msg: LedgerMsg): boolean => msg.kind !== 'endpoint' || msg.answer;
