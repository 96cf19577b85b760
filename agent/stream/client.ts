// Keeps one stream to the control plane for as long as the agent runs: dials, waits longer after each failure, dials
// again. Only `stop`, the agent's own signal, ends it.
import type { LookupAddress } from 'node:dns';
import { isIP } from 'node:net';
import type { Logger } from '../../lib/log.js';
import { Addresses, type Resolve } from '../../lib/resolve.js';
import { datesSentence, TlsKeeper, watchTls } from '../../lib/tls/keeper.js';
import { TlsFileError } from '../../lib/tls/load.js';
import type { Conditions } from '../conditions.js';
import type { SessionCounter } from '../identity.js';
import { Backoff, pause } from './backoff.js';
import { PING_EVERY, PING_TIMEOUT } from './dial.js';
import { INVENTORY_EVERY } from './inventory.js';
import { type AgentSession, openSession, type SessionEnd } from './session.js';
import type { StreamConfig, StreamSources, Welcomed } from './types.js';

/** Above the control plane's own limit for a Hello (8 s), so that its words arrive. */
const WELCOME_WITHIN = 10_000;
/**
 * Longest wait while nothing listens at the address: such a try costs nobody anything, and a control plane that was
 * restarted has its fleet back in seconds. One that answers and can't take us is left alone for up to reconnect_max.
 */
const ABSENT_MAX = 4_000;
/** Seldom enough for any peer (gRPC servers want 5 min at most by default); heartbeats judge its silence besides. */
const PING_MAX = 600_000;

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
  /** Keepalive pings, ms; default 10 s, answered within 5 s. */
  pingEveryMs?: number;
  pingTimeoutMs?: number;
  /** How often the certificate files are looked at, ms; default 2 s. */
  lookEveryMs?: number;
  /** How the server's name is resolved; default: the system's way. */
  resolve?: Resolve;
}

export class StreamClient {
  private current: AgentSession | null = null;
  private pingEveryMs: number;
  private known: Welcomed | null = null;
  private readonly certificate: TlsKeeper | null;
  /** Of the server's name, which may stand for several instances. */
  private readonly addresses: Addresses;
  /** Ends the wait for the next attempt. */
  private wake: () => void = () => {};

  constructor(private readonly opts: StreamClientOptions) {
    const { tls, server } = opts.config;
    this.addresses = new Addresses(server.host, opts.resolve);
    this.pingEveryMs = opts.pingEveryMs ?? PING_EVERY;
    // One that is out of its dates by this clock is shown all the same: the peer judges by its own, and says so.
    this.certificate = tls === null ? null : new TlsKeeper(tls, 'client', { anyDate: true });
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
    const unwatch = this.watchCertificate();
    stop.addEventListener('abort', unwatch, { once: true });
    while (!stop.aborted) {
      const end = await this.once(stop);
      if (stop.aborted) return;
      if (end.held) backoff.reset();
      // One free change of instance; a second one in a row would be two instances sending us to and fro.
      const again = () => backoff.next(end.absent ? ABSENT_MAX : undefined);
      const wait = end.reason === 'go_away' && !wasSentAway ? 0 : again();
      wasSentAway = end.reason === 'go_away';
      this.report(end, wait);
      log.debug({ in_ms: wait }, 'connecting again');
      await pause(wait, stop, wake => {
        this.wake = wake;
      });
    }
  }

  private async once(stop: AbortSignal): Promise<SessionEnd> {
    try {
      const at = await this.resolved(stop);
      const session = openSession({
        ...this.opts,
        stop,
        at,
        own: this.certificate?.current() ?? null,
        pings: { everyMs: this.pingEveryMs, timeoutMs: this.opts.pingTimeoutMs ?? PING_TIMEOUT },
        welcomeWithinMs: this.opts.welcomeWithinMs ?? WELCOME_WITHIN,
        inventoryEveryMs: this.opts.inventoryEveryMs ?? INVENTORY_EVERY,
        onWelcome: welcomed => {
          this.known = welcomed;
          this.opts.conditions.clear('connection');
          this.opts.onWelcome(welcomed);
        },
        onSlots: slots => {
          if (this.known !== null) this.known = { ...this.known, slots };
        },
      });
      this.current = session;
      const end = await session.done;
      const [first] = at;
      if (first !== undefined && end.reason !== 'superseded') {
        const peer = session.peer();
        this.addresses.leave(at.some(a => a.address === peer) ? peer : first.address);
      }
      return end;
    } catch (error) {
      return {
        reason: 'lost',
        held: false,
        sentence: error instanceof Error ? error.message : String(error),
        fault: error instanceof TlsFileError ? error.code : null,
        told: false,
        absent: false,
      };
    } finally {
      this.current = null;
      this.tellCertificate();
    }
  }

  /** None for an address, and for a name that can't be resolved: dialling says what is wrong with it. */
  private async resolved(stop: AbortSignal): Promise<LookupAddress[]> {
    if (isIP(this.opts.config.server.host) !== 0) return [];
    const stopped = new AbortController();
    const found = this.addresses.order().catch(() => []);
    const left = new Promise<[]>(resolve => {
      stop.addEventListener('abort', () => resolve([]), { once: true, signal: stopped.signal });
      if (stop.aborted) resolve([]);
    });
    return await Promise.race([found, left]).finally(() => stopped.abort());
  }

  private report(end: SessionEnd, wait: number): void {
    const { config, conditions, log } = this.opts;
    const fields = {
      server: `${config.server.host}:${config.server.port}`,
      in_ms: wait,
      ...(end.fault === null ? {} : { fault: end.fault }),
    };
    // What doesn't mend itself; a control plane that is away does.
    if (!end.told && (end.reason === 'refused' || end.fault !== null)) {
      conditions.set('connection', `There is no stream to the control plane: ${end.sentence}`);
    } else conditions.clear('connection');
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
      this.pingEveryMs = Math.min(this.pingEveryMs * 2, PING_MAX);
      conditions.set(
        'pings',
        `The control plane's address refused pings; now one in ${this.pingEveryMs / 1000} s.`,
      );
    }
    const level = end.reason === 'go_away' ? 'info' : 'warn';
    log[level]({ ...fields, reason: end.reason }, `no stream to the control plane: ${end.sentence}`);
  }

  private ownCertificate(): { cn: string; notAfter: string } | null {
    const info = this.certificate?.files?.info;
    return info === undefined ? null : { cn: info.cn ?? '', notAfter: info.not_after };
  }

  /** A new pair is for the next connection, which is due at once where there is none. */
  private watchCertificate(): () => void {
    const { certificate, opts } = this;
    if (certificate === null) return () => {};
    const looked = (changed: boolean) => {
      this.tellCertificate();
      if (!changed) return;
      const { cert } = certificate.paths;
      opts.log.info(
        { not_after: this.ownCertificate()?.notAfter },
        `${cert} has changed: the next connection uses it`,
      );
      this.wake();
    };
    return watchTls(certificate, looked, opts.lookEveryMs);
  }

  /** The condition `certificate`: what is wrong with the files, or soon will be. */
  private tellCertificate(): void {
    const { certificate } = this;
    if (certificate === null) return;
    const { conditions } = this.opts;
    const own = this.ownCertificate();
    const { problem } = certificate;
    if (problem !== null) {
      const kept = own === null ? '' : ` The pair of before stays in use; it is good until ${own.notAfter}.`;
      conditions.set('certificate', `${problem.message}${kept}`);
      return;
    }
    const { files } = certificate;
    const dates = files === null ? null : datesSentence(certificate.paths, files);
    if (dates === null) conditions.clear('certificate');
    else conditions.set('certificate', dates);
  }
}
