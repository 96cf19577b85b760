// Tells the control plane every 2 s what the router has and does; at once when a new table is in use or a draining
// endpoint is idle, since a drain waits for exactly that.
import type { RouterReport } from '../contracts/routes.js';
import type { Logger } from '../lib/log.js';
import type { ControlPlane } from './control-plane.js';

const INTERVAL_MS = 2_000;

export class Reports {
  private readonly stop = new AbortController();
  private readonly timer: NodeJS.Timeout;
  private sending: Promise<void> | null = null;
  private sendingTo = new AbortController();
  private again = false;
  private failing = false;

  constructor(
    private readonly control: ControlPlane,
    private readonly id: string,
    /** Null: there is no table yet, so nothing to acknowledge. */
    private readonly make: () => RouterReport | null,
    private readonly log: Logger,
    interval: number = INTERVAL_MS,
  ) {
    this.timer = setInterval(() => this.now(), interval);
  }

  /** One is under way at a time; what changes meanwhile goes out right after it. */
  now(): void {
    if (this.stop.signal.aborted) return;
    if (this.sending !== null) {
      this.again = true;
      return;
    }
    const report = this.make();
    if (report === null) return;
    this.sending = this.send(report).finally(() => {
      this.sending = null;
      if (!this.again) return;
      this.again = false;
      this.now();
    });
  }

  /** The control plane is another instance now: what is under way to the old one may hang there. */
  moved(): void {
    this.sendingTo.abort();
    this.now();
  }

  async close(): Promise<void> {
    clearInterval(this.timer);
    this.stop.abort();
    await this.sending;
  }

  private async send(report: RouterReport): Promise<void> {
    this.sendingTo = new AbortController();
    const signal = AbortSignal.any([this.stop.signal, this.sendingTo.signal]);
    try {
      await this.control.report(this.id, report, signal);
      this.failing = false;
    } catch (e) {
      // The loss of the control plane is said once, by the table watch.
      if (!this.failing && !this.stop.signal.aborted)
        this.log.debug({ err: (e as Error).message }, 'report not delivered');
      this.failing = true;
    }
  }
}
