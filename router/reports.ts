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

  async close(): Promise<void> {
    clearInterval(this.timer);
    this.stop.abort();
    await this.sending;
  }

  private async send(report: RouterReport): Promise<void> {
    try {
      await this.control.report(this.id, report, this.stop.signal);
      this.failing = false;
    } catch (e) {
      // The loss of the control plane is said once, by the table watch.
      if (!this.failing && !this.stop.signal.aborted)
        this.log.debug({ err: (e as Error).message }, 'report not delivered');
      this.failing = true;
    }
  }
}
