// One stream, from dialling to its end. It is connected when it was welcomed, not when TLS is up: with TLS 1.3 a
// refused client sees its handshake succeed. Ends for one reason, and says which; it never judges whether the agent
// stops: that is `stop`, the agent's own signal, and nothing of a session can set it.
import type { LookupAddress } from 'node:dns';
import type { ClientDuplexStream, StatusObject } from '@grpc/grpc-js';
import { TIMING } from '../../contracts/timing.js';
import type { Logger } from '../../lib/log.js';
import type { TlsFaultKind } from '../../lib/tls/faults.js';
import type { TlsFileFault, TlsFiles } from '../../lib/tls/load.js';
import { encodeEngine, encodeEvent } from '../../proto/codec.js';
import type { AgentMessage } from '../../proto/gen/llmgw/v1/AgentMessage.js';
import type { ServerMessage__Output } from '../../proto/gen/llmgw/v1/ServerMessage.js';
import type { Welcome__Output } from '../../proto/gen/llmgw/v1/Welcome.js';
import { PROTOCOL_VERSION } from '../../proto/version.js';
import type { Conditions } from '../conditions.js';
import type { SessionCounter } from '../identity.js';
import { ClockSkew } from './clock.js';
import { type Dialled, dial, type Pings } from './dial.js';
import { connectFault, type EndReason, isAbsent, readStatus } from './end.js';
import { EventSender } from './events.js';
import { InventorySender } from './inventory.js';
import { RequestServer } from './requests.js';
import type { StreamConfig, StreamSources, Welcomed } from './types.js';

/** A stream has held after this long or this many acknowledged heartbeats. */
const HELD_AFTER = 30_000;
const HELD_HEARTBEATS = 3;
/** Messages that may wait in a stream whose peer doesn't read; heartbeats are left out then. */
const MAX_UNSENT = 256;
/** What this build understands beyond the protocol version. */
const CAPABILITIES = ['requests', 'follow'];
const MAX_HELLO_EVENTS = 256;
/** A connection that drops ends its call within the same turns of the loop; one that got GOAWAY lets it go on. */
const DROPS_WITHIN = 100;
/** How long a stream whose connection got GOAWAY stays, so that the node is never seen as gone: the next one is welcomed
 * by then, or the peer has closed it. */
const LINGER = 10_000;

export interface SessionEnd {
  reason: EndReason;
  /** Was welcomed and has held: the back-off starts anew. */
  held: boolean;
  /** For the log: what ended it, in the control plane's words where it had any. */
  sentence: string;
  /** A matter of certificates, and which. */
  fault: TlsFaultKind | TlsFileFault | null;
  /** The control plane named a condition of its own for it, which is set. */
  told: boolean;
  /** Nothing listens at its address: it is away, not overloaded. */
  absent: boolean;
}

export interface SessionOptions {
  config: StreamConfig;
  sources: StreamSources;
  conditions: Conditions;
  counter: SessionCounter;
  log: Logger;
  /** The agent stops. */
  stop: AbortSignal;
  pings: Pings;
  /** What to present; null: plain. */
  own: TlsFiles | null;
  /** Addresses of the server's name in the order in which they are tried. */
  at?: LookupAddress[];
  /** From dialling to Welcome. */
  welcomeWithinMs: number;
  onWelcome(welcomed: Welcomed): void;
  /** The GPUs were numbered anew; the whole map, as in Welcome. */
  onSlots(slots: Map<number, string>): void;
  /** At most one InventoryChanged in this time, ms, of what placement doesn't hang on. */
  inventoryEveryMs: number;
}

export function openSession(opts: SessionOptions): AgentSession {
  return new AgentSession(opts, dial(opts.config.server, opts.own, opts.pings, opts.at));
}

type Call = ClientDuplexStream<AgentMessage, ServerMessage__Output>;

export class AgentSession {
  readonly done: Promise<SessionEnd>;
  private resolve: (end: SessionEnd) => void = () => {};
  private readonly call: Call;
  private readonly events: EventSender;
  private readonly inventory: InventorySender;
  private readonly clock = new ClockSkew();
  private readonly requests: RequestServer;
  private readonly timers: NodeJS.Timeout[] = [];
  private readonly onStop = () => this.end('stopped', 'the agent stops');
  private ended = false;
  private told = false;
  private session: number;
  private welcomedAt: number | null = null;
  private acks = 0;
  private seq = 0;
  private heardAt = performance.now();
  private lastBeat = performance.now();

  constructor(
    private readonly opts: SessionOptions,
    private readonly dialled: Dialled,
  ) {
    this.done = new Promise(resolve => {
      this.resolve = resolve;
    });
    this.session = opts.counter.next();
    this.events = new EventSender(opts.sources.outbox, m => this.write(m));
    this.inventory = new InventorySender(
      opts.sources.inventory,
      inventory => this.write({ inventory_changed: { inventory } }),
      opts.inventoryEveryMs,
    );
    this.requests = new RequestServer(opts.sources.serve, m => this.writeAndDrain(m));
    this.call = dialled.client.Connect();
    this.call.on('error', () => {}); // 'status' says the same and comes for OK, too
    this.call.on('status', s => this.onStatus(s));
    this.call.on('data', (m: ServerMessage__Output) => this.receive(m));
    this.timers.push(
      setTimeout(() => {
        if (this.welcomedAt === null) this.end('lost', `no Welcome within ${opts.welcomeWithinMs / 1000} s`);
      }, opts.welcomeWithinMs),
    );
    this.hello();
    opts.stop.addEventListener('abort', this.onStop, { once: true });
    if (opts.stop.aborted) this.onStop();
  }

  /** The address at the other end; before there is a connection, something that is none. */
  peer(): string {
    return this.call
      .getPeer()
      .replace(/:\d+$/, '')
      .replace(/^\[(.*)\]$/, '$1');
  }

  /** A new event is in the outbox. */
  flushEvents(): void {
    if (this.welcomedAt !== null && !this.ended) this.events.flush();
  }

  /** The inventory may have changed: it is told if so, at once or when its time has come. */
  inventoryChanged(): void {
    if (this.welcomedAt !== null && !this.ended) this.inventory.changed();
  }

  private hello(): void {
    const { config, sources } = this.opts;
    this.write({
      hello: {
        protocol_version: PROTOCOL_VERSION,
        node_id: config.nodeId,
        session: this.session,
        boot_id: sources.bootId,
        clock_ms: Date.now(),
        capabilities: CAPABILITIES,
        agent_version: sources.agentVersion,
        inventory: this.inventory.hello(),
        engines: sources.engines().map(encodeEngine),
        unacked: sources.outbox.pending().slice(0, MAX_HELLO_EVENTS).map(encodeEvent),
        heartbeat_interval_ms: config.heartbeatIntervalMs,
      },
    });
  }

  private receive(message: ServerMessage__Output): void {
    if (this.ended) return;
    this.heardAt = performance.now();
    if (message.welcome) this.welcome(message.welcome);
    else if (message.heartbeat_ack) {
      this.acks += 1;
      this.compareClocks(message.heartbeat_ack.clock_ms);
    } else if (message.event_ack) this.events.acknowledged(message.event_ack);
    else if (message.request) this.requests.start(message.request);
    else if (message.grant) this.requests.grant(message.grant.id, message.grant.chunks);
    else if (message.cancel_request) this.requests.cancel(message.cancel_request.id);
    else if (message.slots) this.opts.onSlots(slotsOf(message.slots.slots));
    else if (message.notice) this.opts.conditions.set(message.notice.code, message.notice.message);
    else if (message.superseded) {
      const { by_session, instance } = message.superseded;
      this.end(
        'superseded',
        `session ${by_session} at ${instance} has taken over from session ${this.session}`,
      );
    } else if (message.go_away) this.end('go_away', message.go_away.reason);
  }

  private welcome(w: Welcome__Output): void {
    if (this.welcomedAt !== null) return;
    if (!w.accepted) {
      this.opts.log.info(
        { session: this.session, highest: w.highest_session },
        'a higher session was seen: jumping above it',
      );
      this.session = this.opts.counter.next(w.highest_session);
      this.hello();
      return;
    }
    this.welcomedAt = performance.now();
    this.compareClocks(w.clock_ms);
    this.opts.conditions.clear('duplicate_identity');
    this.dialled.onLeaving(() => {
      const sentAway = () => this.end('go_away', 'the peer lets this connection end (GOAWAY)', null, true);
      if (!this.ended) this.timers.push(setTimeout(sentAway, DROPS_WITHIN));
    });
    const { config, log } = this.opts;
    log.info(
      { instance: w.instance, session: this.session, unproven: w.unproven },
      'connected to the control plane',
    );
    const interval = w.heartbeat_interval_ms || config.heartbeatIntervalMs;
    this.lastBeat = performance.now();
    this.timers.push(setInterval(() => this.beat(interval), interval));
    this.opts.onWelcome({
      instance: w.instance,
      session: this.session,
      slots: slotsOf(w.slots),
      peerAddress: w.peer_address,
      temporalNamespace: w.temporal_namespace,
      unproven: w.unproven,
    });
    this.beat(interval);
    this.inventoryChanged();
  }

  /** A heartbeat, what waits in the outbox, and a look at whether the other side is still there. */
  private beat(interval: number): void {
    const now = performance.now();
    // This process slept: the silence is its own, what came meanwhile lies unread.
    if (now - this.lastBeat > 2 * interval) this.heardAt = now;
    this.lastBeat = now;
    const silence = TIMING.silentAfterIntervals * interval;
    if (now - this.heardAt > silence) {
      this.end('lost', `nothing was heard for ${silence / 1000} s`);
      return;
    }
    if (this.call.writableLength >= MAX_UNSENT) return;
    this.seq += 1;
    this.write({
      heartbeat: {
        seq: this.seq,
        clock_ms: Date.now(),
        engines: this.opts.sources.engines().map(encodeEngine),
      },
    });
    this.events.flush();
  }

  private compareClocks(theirs: number): void {
    const skew = this.clock.judge(Date.now() - theirs);
    if (skew === null) this.opts.conditions.clear('clock_skew');
    else this.opts.conditions.set('clock_skew', skew);
  }

  private onStatus(s: StatusObject): void {
    const condition = s.metadata?.get('llmgw-condition')[0];
    if (typeof condition === 'string') {
      this.told = true;
      this.opts.conditions.set(condition, s.details);
    }
    const { reason, words } = readStatus(s);
    const error = this.dialled.error();
    const fault = this.welcomedAt === null ? connectFault(reason, words, error, this.opts) : null;
    this.end(reason, reason === 'lost' && fault !== null ? fault.sentence : words, fault?.kind ?? null);
  }

  private write(message: AgentMessage): void {
    if (!this.ended) this.call.write(message);
  }

  private async writeAndDrain(message: AgentMessage): Promise<void> {
    if (this.ended || this.call.write(message)) return;
    await new Promise<void>(resolve => {
      this.call.once('drain', resolve);
      void this.done.then(() => resolve());
    });
  }

  /** `linger`: the wire is left to its peer for a while, unheard. */
  private end(reason: EndReason, sentence: string, fault: SessionEnd['fault'] = null, linger = false): void {
    if (this.ended) return;
    this.ended = true;
    const { stop } = this.opts;
    stop.removeEventListener('abort', this.onStop);
    for (const timer of this.timers) clearTimeout(timer);
    this.requests.close();
    this.inventory.close();
    const close = () => {
      clearTimeout(lingering);
      stop.removeEventListener('abort', close);
      // A stream spends its life waiting to be read, so cancelling alone may never return: its sockets are closed.
      this.call.cancel();
      this.dialled.destroy();
    };
    const lingering = setTimeout(close, linger ? LINGER : 0);
    if (linger) {
      this.call.once('status', close);
      stop.addEventListener('abort', close, { once: true });
    } else close();
    const held =
      this.welcomedAt !== null &&
      (this.acks >= HELD_HEARTBEATS || performance.now() - this.welcomedAt >= HELD_AFTER);
    const absent = reason === 'lost' && this.welcomedAt === null && isAbsent(this.dialled.error());
    this.resolve({ reason, held, sentence, fault, told: this.told, absent });
  }
}

const slotsOf = (slots: Record<number, string>): Map<number, string> =>
  new Map(Object.entries(slots).map(([slot, uuid]) => [Number(slot), uuid]));
