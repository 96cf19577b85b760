// One agent's stream, from its first message to its end: what is wire here, what is decided is the hub's.
// A peer is bounded in all it may do: time to Hello, unread messages, events in flight.
import { Metadata, type ServerDuplexStream, status } from '@grpc/grpc-js';
import type { Logger } from '../../lib/log.js';
import {
  decodeEngines,
  decodeEvent,
  decodeInventory,
  eventKeyOf,
  type LiveEngine,
} from '../../proto/codec.js';
import type { AgentMessage__Output } from '../../proto/gen/llmgw/v1/AgentMessage.js';
import type { EngineEvent__Output } from '../../proto/gen/llmgw/v1/EngineEvent.js';
import type { Heartbeat__Output } from '../../proto/gen/llmgw/v1/Heartbeat.js';
import type { Hello__Output } from '../../proto/gen/llmgw/v1/Hello.js';
import type { ServerMessage } from '../../proto/gen/llmgw/v1/ServerMessage.js';
import { RequestTable } from './requests.js';
import type { HelloNode, StreamHandlers } from './types.js';

export type AgentCall = ServerDuplexStream<AgentMessage__Output, ServerMessage>;

/** Messages that may wait for a peer that doesn't read; then its stream is ended. */
const MAX_UNSENT = 1_024;
/** Events being handed to Temporal at a time; the agent sends again what is left out. */
const MAX_EVENTS = 256;
const HELLO_WITHIN = 10_000;

export interface SessionOwner {
  handlers: StreamHandlers;
  log: Logger;
  /** Decides on a Hello; called for one at a time. */
  greet(session: AgentSession, hello: Hello__Output): Promise<void>;
  ended(session: AgentSession): void;
}

export class AgentSession {
  /** Set once the hub has accepted its Hello. */
  node: HelloNode | null = null;
  readonly since = Date.now();
  lastHeartbeat = Date.now();
  /** Monotonic ms of the last message. */
  heardAt = performance.now();
  clockSkewMs = 0;
  engines: LiveEngine[] = [];
  requests: RequestTable;

  private over = false;
  private greeting = false;
  private readonly inFlight = new Set<string>();
  private readonly helloTimer: NodeJS.Timeout;

  constructor(
    readonly call: AgentCall,
    private readonly owner: SessionOwner,
  ) {
    this.requests = new RequestTable(call.getPeer(), m => this.send(m));
    this.helloTimer = setTimeout(
      () => this.refuse(status.DEADLINE_EXCEEDED, 'No Hello came within 10 s.'),
      HELLO_WITHIN,
    );
    call.on('data', (m: AgentMessage__Output) => this.receive(m));
    call.on('end', () => this.end());
    call.on('cancelled', () => this.finish());
    call.on('close', () => this.finish());
    call.on('error', () => this.finish());
  }

  get live(): boolean {
    return this.node !== null && !this.over;
  }

  get closed(): boolean {
    return this.over;
  }

  accept(node: HelloNode): void {
    clearTimeout(this.helloTimer);
    this.node = node;
    this.engines = node.engines;
    this.clockSkewMs = node.clockSkewMs;
    this.lastHeartbeat = Date.now();
    this.requests = new RequestTable(node.nodeId, m => this.send(m));
  }

  send(message: ServerMessage): void {
    if (this.over) return;
    if (this.call.writableLength > MAX_UNSENT) {
      this.owner.log.warn(
        { node: this.node?.nodeId, peer: this.call.getPeer() },
        'the agent does not read its stream',
      );
      this.refuse(status.ABORTED, 'The agent does not read its stream.');
      return;
    }
    this.call.write(message);
  }

  /** Ends the stream with a status; `condition` names the node condition that the agent should show. */
  refuse(code: status, details: string, condition?: string): void {
    if (this.over) return;
    const metadata = new Metadata();
    if (condition !== undefined) metadata.set('llmgw-condition', condition);
    // grpc-js turns this into the call's status; `finish` first, so that its own error listener finds it over.
    this.finish();
    this.call.emit('error', { code, details, metadata });
  }

  /** Ends the stream with OK, after what was sent. */
  end(): void {
    if (!this.over) this.finish();
    if (!this.call.writableEnded) this.call.end();
  }

  private finish(): void {
    if (this.over) return;
    this.over = true;
    clearTimeout(this.helloTimer);
    this.requests.close(`The stream of ${this.node?.nodeId ?? 'the agent'} has ended.`);
    this.owner.ended(this);
  }

  private receive(message: AgentMessage__Output): void {
    if (this.over) return;
    this.heardAt = performance.now();
    if (message.hello) this.hello(message.hello);
    else if (this.node === null) return;
    else if (message.heartbeat) this.heartbeat(this.node, message.heartbeat);
    else if (message.event) this.event(this.node, message.event);
    else if (message.inventory_changed) this.inventory(this.node, message.inventory_changed.inventory);
    else if (message.response) this.requests.receive(message.response);
  }

  private hello(hello: Hello__Output): void {
    // A second Hello is for one that wasn't accepted; while one is looked at, or after it, there is none to come.
    if (this.greeting || this.node !== null) return;
    this.greeting = true;
    this.owner.greet(this, hello).then(
      () => {
        this.greeting = false;
      },
      error => {
        this.owner.log.error({ err: error }, 'a Hello could not be handled');
        this.refuse(status.INTERNAL, 'The control plane could not handle the Hello; its log says why.');
      },
    );
  }

  private heartbeat(node: HelloNode, hb: Heartbeat__Output): void {
    this.lastHeartbeat = Date.now();
    this.clockSkewMs = hb.clock_ms - this.lastHeartbeat;
    this.engines = decodeEngines(hb.engines);
    this.send({ heartbeat_ack: { seq: hb.seq, clock_ms: this.lastHeartbeat } });
    this.owner.handlers.heartbeat(node.nodeId, node.session, {
      seq: hb.seq,
      clockSkewMs: this.clockSkewMs,
      engines: this.engines,
    });
  }

  private event(node: HelloNode, wire: EngineEvent__Output): void {
    const key = eventKeyOf(wire);
    if (this.inFlight.has(key) || this.inFlight.size >= MAX_EVENTS) return;
    const event = decodeEvent(wire);
    if (event === null) {
      // Not acknowledged: a newer control plane may understand it.
      this.owner.log.warn({ node: node.nodeId, event: key }, 'an engine event is not understood');
      return;
    }
    this.inFlight.add(key);
    const { replica, fence, rank, seq } = event;
    this.owner.handlers
      .event(node.nodeId, event)
      .then(() => this.send({ event_ack: { replica, fence, rank, seq } }))
      .catch(error =>
        this.owner.log.warn({ node: node.nodeId, event: key, err: error }, 'an engine event waits'),
      )
      .finally(() => this.inFlight.delete(key));
  }

  private inventory(node: HelloNode, bytes: Buffer): void {
    const inventory = decodeInventory(bytes);
    if (!inventory.ok) {
      this.owner.log.warn(
        { node: node.nodeId, problem: inventory.problem },
        'an inventory is not understood',
      );
      return;
    }
    node.inventory = inventory.value;
    this.owner.handlers
      .inventoryChanged(node.nodeId, node.session, inventory.value)
      .then(slots => slots !== null && this.send({ slots: { slots } }))
      .catch(error => this.owner.log.warn({ node: node.nodeId, err: error }, 'an inventory was not taken'));
  }
}
