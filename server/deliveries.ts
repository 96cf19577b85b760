// What must reach a node's workflow although Temporal is away just then. Of each node and kind the newest message is
// kept and tried again until it is accepted, or until a newer one or a newer session takes its place: without this a
// node whose stream ended in that moment would be shown as connected for half an hour.
import type { Logger } from '../lib/log.js';

const RETRY_MS = 250;
const RETRY_MAX_MS = 10_000;

export interface Delivery<T> {
  nodeId: string;
  /** Of one kind only the newest is kept. */
  kind: 'gone' | 'inventory';
  /** The session that it is about; `supersede` drops what is older. */
  session: number;
  /** Rejecting: it is tried again. Calls of one node and kind never overlap. */
  send(): Promise<T>;
}

interface Entry {
  session: number;
  send(): Promise<unknown>;
  settle(answer: unknown): void;
}

interface Lane {
  nodeId: string;
  kind: string;
  newest: Entry | null;
}

export class Deliveries {
  private readonly lanes = new Map<string, Lane>();
  private readonly waits = new Map<NodeJS.Timeout, () => void>();
  private closed = false;

  constructor(
    private readonly log: Logger,
    private readonly retryMs = RETRY_MS,
  ) {}

  /** Resolves with the answer; null when something newer took its place. Never rejects. */
  post<T>({ nodeId, kind, session, send }: Delivery<T>): Promise<T | null> {
    const key = `${nodeId}/${kind}`;
    const lane = this.lanes.get(key);
    if (this.closed || (lane?.newest && lane.newest.session > session)) return Promise.resolve(null);
    return new Promise(resolve => {
      const entry: Entry = { session, send, settle: answer => resolve(answer as T | null) };
      if (lane !== undefined) {
        lane.newest?.settle(null);
        lane.newest = entry;
        return;
      }
      const fresh: Lane = { nodeId, kind, newest: entry };
      this.lanes.set(key, fresh);
      void this.run(key, fresh);
    });
  }

  /** A newer session holds the node: what older ones had to say is of no use any more. */
  supersede(nodeId: string, session: number): void {
    for (const lane of this.lanes.values())
      if (lane.nodeId === nodeId && lane.newest !== null && lane.newest.session < session) drop(lane);
  }

  close(): void {
    this.closed = true;
    for (const lane of this.lanes.values()) drop(lane);
    for (const [timer, resolve] of this.waits) {
      clearTimeout(timer);
      resolve();
    }
  }

  private async run(key: string, lane: Lane): Promise<void> {
    let wait = this.retryMs;
    while (lane.newest !== null) {
      const entry = lane.newest;
      try {
        const answer = await entry.send();
        if (lane.newest === entry) lane.newest = null;
        entry.settle(answer);
      } catch (err) {
        if (lane.newest !== entry) continue;
        this.log[wait === this.retryMs ? 'warn' : 'debug'](
          {
            node: lane.nodeId,
            kind: lane.kind,
            in_ms: wait,
            err: err instanceof Error ? err.message : String(err),
          },
          "Temporal did not take a node's message: it is kept and sent again",
        );
        await this.pause(wait);
        wait = Math.min(wait * 2, RETRY_MAX_MS);
      }
    }
    this.lanes.delete(key);
  }

  private pause(ms: number): Promise<void> {
    return new Promise(resolve => {
      const done = () => {
        this.waits.delete(timer);
        resolve();
      };
      const timer = setTimeout(done, ms);
      timer.unref();
      this.waits.set(timer, done);
    });
  }
}

function drop(lane: Lane): void {
  lane.newest?.settle(null);
  lane.newest = null;
}
