// Every agent's stream of this instance: who may speak for a node, which of two sessions holds it, who has gone
// silent. Of one node at most one session is live; the newer one wins (session numbers), except against another
// machine that still heartbeats under the same name.
import { status, type UntypedServiceImplementation } from '@grpc/grpc-js';
import { LlmgwError } from '../../contracts/errors.js';
import { TIMING } from '../../contracts/timing.js';
import type { Logger } from '../../lib/log.js';
import { decodeEngines, decodeEvent, decodeInventory } from '../../proto/codec.js';
import type { AgentDefinition } from '../../proto/gen/llmgw/v1/Agent.js';
import type { Hello__Output } from '../../proto/gen/llmgw/v1/Hello.js';
import { agentProto } from '../../proto/load.js';
import { OLDEST_AGENT_PROTOCOL, PROTOCOL_VERSION } from '../../proto/version.js';
import { identify, peerAddress } from './identify.js';
import { type AgentCall, AgentSession, type SessionOwner } from './session.js';
import type {
  GoneReason,
  HelloNode,
  LiveNode,
  RequestOptions,
  StreamHandlers,
  WelcomeInfo,
} from './types.js';

/** Below the agent's own limit for Welcome (10 s), so that it is told why. */
const GREET_WITHIN = 8_000;
const TICK = 1_000;
/** A longer gap between ticks means that this process slept: nobody else's silence is concluded from it. */
const SLEPT = 3_000;
/** Bounds of what an agent may say its heartbeat_interval is (agent.yaml: from 100 ms). */
const MIN_INTERVAL = 100;
const MAX_INTERVAL = 300_000;
const TWO_MACHINES = 'another machine said Hello under the same name';

export interface HubOptions {
  /** Id of this control plane instance. */
  instance: string;
  /** Temporal namespace for the nodes' workers. */
  namespace: string;
  /** The endpoint takes certificates only. False: node ids are claims (unproven). */
  tls: boolean;
  handlers: StreamHandlers;
  log: Logger;
  /** Heartbeat intervals in which nothing is heard of a node that is gone. Default: TIMING.silentAfterIntervals. */
  missedHeartbeats?: number;
}

export interface Hub {
  /** For startAgentEndpoint. */
  service: { service: AgentDefinition; implementation: UntypedServiceImplementation };
  /** Chunks of the agent's answer. Throws LlmgwError NODE_UNREACHABLE without a live session or on a timeout. */
  request(
    nodeId: string,
    kind: string,
    payload: unknown,
    opts?: RequestOptions,
  ): AsyncGenerator<Buffer, void, void>;
  nodes(): LiveNode[];
  node(nodeId: string): LiveNode | null;
  /** Another instance holds a newer session of this node: ends ours. */
  supersede(nodeId: string, bySession: number, instance: string): void;
  /** Tells the session, if it is still live, how the slots of its GPUs are numbered now. */
  tellSlots(nodeId: string, session: number, slots: Record<number, string>): void;
  /** Another machine under the same name was refused elsewhere, and the workflow counts by its number: ours jumps above. */
  challenge(nodeId: string, sentence: string): void;
  /** Tells every agent to connect elsewhere, then ends the streams. */
  goAway(reason: string): void;
  /** goAway, and nobody is taken any more. */
  close(): void;
}

export function createHub(opts: HubOptions): Hub {
  return new StreamHub(opts);
}

class StreamHub implements Hub, SessionOwner {
  readonly service: Hub['service'];
  readonly handlers: StreamHandlers;
  readonly log: Logger;
  private readonly live = new Map<string, AgentSession>();
  private readonly all = new Set<AgentSession>();
  private readonly ticker: NodeJS.Timeout;
  private lastTick = performance.now();
  private closed = false;
  private readonly missed: number;

  constructor(private readonly opts: HubOptions) {
    this.missed = opts.missedHeartbeats ?? TIMING.silentAfterIntervals;
    this.handlers = opts.handlers;
    this.log = opts.log;
    const connect = (call: AgentCall) => this.connect(call);
    this.service = { service: agentProto().Agent.service, implementation: { Connect: connect } };
    this.ticker = setInterval(() => this.tick(), TICK);
    this.ticker.unref();
  }

  async *request(
    nodeId: string,
    kind: string,
    payload: unknown,
    opts?: RequestOptions,
  ): AsyncGenerator<Buffer, void, void> {
    const session = this.live.get(nodeId);
    if (session === undefined)
      throw new LlmgwError('NODE_UNREACHABLE', `${nodeId} has no stream to this control plane.`);
    yield* session.requests.request(kind, payload, opts);
  }

  nodes(): LiveNode[] {
    return [...this.live.values()].map(session => this.view(session));
  }

  node(nodeId: string): LiveNode | null {
    const session = this.live.get(nodeId);
    return session === undefined ? null : this.view(session);
  }

  supersede(nodeId: string, bySession: number, instance: string): void {
    const session = this.live.get(nodeId);
    if (!session?.node || session.node.session >= bySession) return;
    const { node } = session;
    this.log.info({ node: nodeId, session: node.session, bySession, instance }, 'node connected elsewhere');
    this.replace(session, bySession, instance);
    this.handlers.superseded?.(nodeId, node.session);
  }

  tellSlots(nodeId: string, session: number, slots: Record<number, string>): void {
    const live = this.live.get(nodeId);
    if (live?.node?.session === session) live.send({ slots: { slots } });
  }

  challenge(nodeId: string, sentence: string): void {
    const present = this.live.get(nodeId);
    if (present === undefined) return;
    this.log.warn({ node: nodeId, condition: 'duplicate_identity' }, sentence);
    present.send({ notice: { code: 'duplicate_identity', message: sentence } });
    present.send({ go_away: { reason: TWO_MACHINES } });
  }

  goAway(reason: string): void {
    for (const session of [...this.all]) {
      session.send({ go_away: { reason } });
      this.leave(session, 'shutdown');
      session.end();
    }
  }

  close(): void {
    this.closed = true;
    clearInterval(this.ticker);
    this.goAway('this control plane instance stops');
  }

  async greet(session: AgentSession, hello: Hello__Output): Promise<void> {
    const who = identify(session.call, hello.node_id, this.opts.tls);
    if (!who.ok) {
      this.log.warn(
        { claim: hello.node_id, peer: session.call.getPeer() },
        `refused a stream: ${who.sentence}`,
      );
      return session.refuse(who.code, who.sentence);
    }
    const node = this.readHello(session, hello, who);
    if (node === null) return;
    if (this.refusedAsDuplicate(session, node)) return;
    let info: WelcomeInfo;
    const taking = this.handlers.hello(node);
    try {
      info = await within(GREET_WITHIN, taking);
    } catch (error) {
      // The workflow may have the session all the same, or be given it yet: it must hear that nobody holds it.
      const untake = () => this.handlers.gone(node.nodeId, node.session, 'refused');
      void taking.then(untake, untake);
      this.log.warn({ node: node.nodeId, err: messageOf(error) }, 'a Hello was not taken');
      return session.refuse(
        status.UNAVAILABLE,
        `The control plane can't take the node now: ${messageOf(error)}`,
      );
    }
    // All below is synchronous: of two Hellos of one node, the second one finds the first one live.
    if (session.closed || this.closed) {
      this.handlers.gone(node.nodeId, node.session, this.closed ? 'shutdown' : 'closed');
      return;
    }
    const present = this.live.get(node.nodeId);
    const highest = Math.max(info.highestSession, present?.node?.session ?? 0);
    const welcome = this.welcome(node, info, highest);
    if (highest >= node.session) {
      session.send({ welcome: { ...welcome, accepted: false } });
      return;
    }
    if (this.refusedAsDuplicate(session, node)) {
      this.handlers.gone(node.nodeId, node.session, 'refused');
      // The workflow now counts by the refused one's number: the one that heartbeats must jump above it.
      present?.send({ go_away: { reason: TWO_MACHINES } });
      return;
    }
    if (info.duplicate !== undefined) {
      this.handlers.gone(node.nodeId, node.session, 'refused');
      this.log.warn({ node: node.nodeId, condition: 'duplicate_identity' }, info.duplicate);
      session.refuse(status.ALREADY_EXISTS, info.duplicate, 'duplicate_identity');
      return;
    }
    if (present !== undefined) this.replace(present, node.session, this.opts.instance);
    session.accept(node);
    this.live.set(node.nodeId, session);
    session.send({ welcome: { ...welcome, accepted: true } });
    this.log.info(
      { node: node.nodeId, session: node.session, peer: node.peerAddress, unproven: node.unproven },
      'node connected',
    );
    this.handlers.welcomed?.(node);
  }

  ended(session: AgentSession): void {
    this.all.delete(session);
    this.leave(session, 'closed');
  }

  private connect(call: AgentCall): void {
    const session = new AgentSession(call, this);
    this.all.add(session);
    if (this.closed) session.refuse(status.UNAVAILABLE, 'This control plane instance stops.');
  }

  private readHello(
    session: AgentSession,
    hello: Hello__Output,
    who: { nodeId: string; unproven: boolean },
  ): HelloNode | null {
    const bad = (what: string): null => {
      this.log.warn({ node: who.nodeId, peer: session.call.getPeer() }, `refused a Hello: ${what}`);
      session.refuse(status.INVALID_ARGUMENT, `Hello of "${who.nodeId}": ${what}.`);
      return null;
    };
    if (!Number.isSafeInteger(hello.session) || hello.session <= 0)
      return bad(`session ${hello.session} is no positive number`);
    if (hello.boot_id === '') return bad('boot_id is empty');
    const inventory = decodeInventory(hello.inventory);
    if (!inventory.ok) return bad(`the inventory can't be read, ${inventory.problem}`);
    if (inventory.value.node_id !== who.nodeId)
      return bad(`the inventory is of "${inventory.value.node_id}"`);
    return {
      nodeId: who.nodeId,
      session: hello.session,
      bootId: hello.boot_id,
      protocolVersion: hello.protocol_version,
      compatible: hello.protocol_version >= OLDEST_AGENT_PROTOCOL,
      capabilities: hello.capabilities,
      agentVersion: hello.agent_version,
      inventory: inventory.value,
      engines: decodeEngines(hello.engines),
      unacked: hello.unacked.map(decodeEvent).filter(e => e !== null),
      peerAddress: peerAddress(session.call.getPeer()),
      heartbeatIntervalMs: clampInterval(hello.heartbeat_interval_ms),
      clockSkewMs: hello.clock_ms - Date.now(),
      unproven: who.unproven,
    };
  }

  /** Another boot under the same name while the present one heartbeats: two machines, and neither may flap. */
  private refusedAsDuplicate(session: AgentSession, node: HelloNode): boolean {
    const present = this.live.get(node.nodeId);
    if (!present?.node || present.node.bootId === node.bootId || this.isSilent(present)) return false;
    const sentence =
      `"${node.nodeId}" is already connected from ${present.node.peerAddress} (boot ${present.node.bootId}) and heartbeats; ` +
      `this agent at ${node.peerAddress} has boot ${node.bootId}: two machines have the same node_id.`;
    this.log.warn({ node: node.nodeId, condition: 'duplicate_identity' }, sentence);
    present.send({ notice: { code: 'duplicate_identity', message: sentence } });
    session.refuse(status.ALREADY_EXISTS, sentence, 'duplicate_identity');
    return true;
  }

  private replace(old: AgentSession, bySession: number, instance: string): void {
    const nodeId = old.node?.nodeId;
    if (nodeId !== undefined && this.live.get(nodeId) === old) this.live.delete(nodeId);
    old.send({ superseded: { by_session: bySession, instance } });
    old.end();
  }

  private welcome(node: HelloNode, info: WelcomeInfo, highest: number) {
    return {
      protocol_version: PROTOCOL_VERSION,
      instance: this.opts.instance,
      highest_session: highest,
      heartbeat_interval_ms: node.heartbeatIntervalMs,
      slots: info.slots,
      peer_address: node.peerAddress,
      temporal_namespace: this.opts.namespace,
      clock_ms: Date.now(),
      capabilities: [],
      unproven: node.unproven,
    };
  }

  /** Tells the handlers once, and only when this session held the node. */
  private leave(session: AgentSession, reason: GoneReason): void {
    const node = session.node;
    if (node === null || this.live.get(node.nodeId) !== session) return;
    this.live.delete(node.nodeId);
    this.log.info({ node: node.nodeId, session: node.session, reason }, 'node disconnected');
    this.handlers.gone(node.nodeId, node.session, reason);
  }

  private view(session: AgentSession): LiveNode {
    return liveNode(session, this.isSilent(session));
  }

  private isSilent(session: AgentSession): boolean {
    const interval = session.node?.heartbeatIntervalMs ?? TIMING.heartbeatInterval;
    return performance.now() - session.heardAt > this.missed * interval;
  }

  private tick(): void {
    const now = performance.now();
    const slept = now - this.lastTick > SLEPT;
    this.lastTick = now;
    for (const session of [...this.live.values()]) {
      if (slept) session.heardAt = now;
      if (!this.isSilent(session)) continue;
      this.leave(session, 'silent');
      session.refuse(status.DEADLINE_EXCEEDED, `Nothing was heard for ${this.missed} heartbeat intervals.`);
    }
  }
}

function liveNode(session: AgentSession, silent: boolean): LiveNode {
  const node = session.node as HelloNode;
  return {
    silent,
    nodeId: node.nodeId,
    session: node.session,
    bootId: node.bootId,
    peerAddress: node.peerAddress,
    agentVersion: node.agentVersion,
    unproven: node.unproven,
    compatible: node.compatible,
    since: session.since,
    lastHeartbeat: session.lastHeartbeat,
    clockSkewMs: session.clockSkewMs,
    inventory: node.inventory,
    engines: session.engines,
  };
}

const clampInterval = (ms: number): number =>
  ms === 0 ? TIMING.heartbeatInterval : Math.min(MAX_INTERVAL, Math.max(MIN_INTERVAL, ms));

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer from Temporal within ${ms / 1000} s`)), ms);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}
