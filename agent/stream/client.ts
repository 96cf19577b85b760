// Keeps one stream to the control plane for as long as the agent runs: dials, waits longer after each failure, dials
// again. Only `stop`, the agent's own signal, ends it.
import type { Logger } from '../../lib/log.js';
import { loadTlsFiles } from '../../lib/tls/load.js';
import type { Conditions } from '../conditions.js';
import type { SessionCounter } from '../identity.js';
import { Backoff, pause } from './backoff.js';
import { PING_EVERY } from './dial.js';
import { INVENTORY_EVERY } from './inventory.js';
import { type AgentSession, openSession, type SessionEnd } from './session.js';
import type { StreamConfig, StreamSources, Welcomed } from './types.js';

/** Above the control plane's own limit for a Hello (8 s), so that its words arrive. */
const WELCOME_WITHIN = 10_000;

export interface StreamClientOptions {
  config: StreamConfig;
  sources: StreamSources;
  conditions: Conditions;
  counter: SessionCounter;
  log: Logger;
  onWelcome(welcomed: Welcomed): void;
  /** From dialling to Welcome, ms; default 10 s. */
  welcomeWithinMs?: number;
  /** At most one InventoryChanged in this time of what placement doesn't hang on, ms; default 60 s. */
  inventoryEveryMs?: number;
}

export class StreamClient {
  private current: AgentSession | null = null;
  private pingEveryMs = PING_EVERY;
  private known: Welcomed | null = null;

  constructor(private readonly opts: StreamClientOptions) {
    opts.sources.outbox.onEvent(() => this.current?.flushEvents());
    opts.conditions.onChange(() => this.current?.inventoryChanged());
  }

  /** The inventory may have changed: it is sent if so, now or with the next Hello. */
  inventoryChanged(): void {
    this.current?.inventoryChanged();
  }

  /** What the last Welcome told, its slots as of now: they are numbered anew while the stream is up. null: none yet. */
  welcomed(): Welcomed | null {
    return this.known;
  }

  /** Resolves once `stop` has aborted, whatever the stream is doing then; never rejects. */
  async run(stop: AbortSignal): Promise<void> {
    const { config, log } = this.opts;
    const backoff = new Backoff(config.reconnectBaseMs, config.reconnectMaxMs);
    let wasSentAway = false;
    while (!stop.aborted) {
      const end = await this.once(stop);
      if (stop.aborted) return;
      if (end.held) backoff.reset();
      // One free change of instance; a second one in a row would be two instances sending us to and fro.
      const wait = end.reason === 'go_away' && !wasSentAway ? 0 : backoff.next();
      wasSentAway = end.reason === 'go_away';
      this.report(end, wait);
      log.debug({ in_ms: wait }, 'connecting again');
      await pause(wait, stop);
    }
  }

  private async once(stop: AbortSignal): Promise<SessionEnd> {
    try {
      const session = openSession({
        ...this.opts,
        stop,
        pingEveryMs: this.pingEveryMs,
        welcomeWithinMs: this.opts.welcomeWithinMs ?? WELCOME_WITHIN,
        inventoryEveryMs: this.opts.inventoryEveryMs ?? INVENTORY_EVERY,
        onWelcome: welcomed => {
          this.known = welcomed;
          this.opts.onWelcome(welcomed);
        },
        onSlots: slots => {
          if (this.known !== null) this.known = { ...this.known, slots };
        },
      });
      this.current = session;
      return await session.done;
    } catch (error) {
      return {
        reason: 'lost',
        held: false,
        sentence: error instanceof Error ? error.message : String(error),
      };
    } finally {
      this.current = null;
    }
  }

  private report(end: SessionEnd, wait: number): void {
    const { config, conditions, log } = this.opts;
    const fields = { server: `${config.server.host}:${config.server.port}`, in_ms: wait };
    if (end.reason === 'refused') {
      const own = this.ownCertificate();
      const names = own === null ? '' : `certificate "${own.cn}" (until ${own.notAfter}), `;
      log.error(
        {
          ...fields,
          certificate: own?.cn,
          not_after: own?.notAfter,
          claim: config.nodeId,
          server_says: end.sentence,
        },
        `refused by the control plane: ${names}node_id "${config.nodeId}"; it says: ${end.sentence}`,
      );
      return;
    }
    if (end.reason === 'too_many_pings') {
      this.pingEveryMs *= 2;
      conditions.set(
        'pings',
        `The control plane's address refused pings; now one in ${this.pingEveryMs / 1000} s.`,
      );
    }
    const level = end.reason === 'go_away' ? 'info' : 'warn';
    log[level]({ ...fields, reason: end.reason }, `no stream to the control plane: ${end.sentence}`);
  }

  private ownCertificate(): { cn: string; notAfter: string } | null {
    if (this.opts.config.tls === null) return null;
    try {
      const { info } = loadTlsFiles(this.opts.config.tls);
      return { cn: info.cn ?? '', notAfter: info.not_after };
    } catch {
      return null; // the files have gone bad meanwhile: the next attempt says so
    }
  }
}
