// What agents say, handed to the workflows: edges at once, heartbeats as a digest in ten minutes, progress on a change
// of stage (INV-9, INV-11). Exits are acknowledged only when Temporal has them.
import { WorkflowNotFoundError } from '@temporalio/client';
import type { EngineEvent } from '../contracts/engine.js';
import type { NodeHello, NodeHolder } from '../contracts/messages.js';
import { TIMING } from '../contracts/timing.js';
import type { Logger } from '../lib/log.js';
import type { LiveEngine } from '../proto/codec.js';
import { Deliveries } from './deliveries.js';
import type { FleetClient } from './fleet.js';
import type { PeerCalls } from './peers/calls.js';
import type { GoneReason, HelloNode, StreamHandlers } from './stream/types.js';

export interface AgentsOptions {
  fleet: FleetClient;
  instance: string;
  peerAddr: string | null;
  /** The other instances. */
  peers?: Pick<PeerCalls, 'live' | 'superseded'>;
  /** Whether there are any. */
  others?: () => boolean;
  /** The numbering of its GPUs as of a hello that was said again, for the agent. */
  tellSlots?: (nodeId: string, session: number, slots: Record<number, string>) => void;
  /** Of server.yaml's liveness; default: TIMING's. */
  missedHeartbeats?: number;
  log: Logger;
  /** First wait before what Temporal didn't take is sent again, ms. */
  retryMs?: number;
}

/** Sessions of a node whose end isn't told yet: its agent comes back twice a minute while Temporal is away. */
const MAX_UNTOLD = 32;

/** What the streams' handlers can do besides, for a ledger or a node workflow that has lost what it was told. */
export interface AgentHandlers extends StreamHandlers {
  /** Nodes whose live session is here. */
  nodes(): string[];
  /** A node that is heard here counts as silent: the workflow hears of its heartbeats now, and not in ten minutes. */
  tellHeard(nodeId: string): Promise<void>;
  /** Says the node's hello once more, as of its last heartbeat; nothing for a node that isn't here any more. */
  helloAgain(nodeId: string): Promise<void>;
  close(): void;
}

interface Heard {
  session: number;
  /** Its Hello, with what heartbeats and changed inventories told since. */
  node: HelloNode;
  heartbeats: number;
  digestAt: number;
}

export function agentHandlers({
  fleet,
  instance,
  peerAddr,
  peers,
  others,
  tellSlots,
  log,
  retryMs,
  missedHeartbeats,
}: AgentsOptions): AgentHandlers {
  const said = {
    instance,
    peer_addr: peerAddr,
    ...(missedHeartbeats === undefined ? {} : { missed_heartbeats: missedHeartbeats }),
  };
  const heard = new Map<string, Heard>();
  const deliveries = new Deliveries(log, retryMs);
  /** Node → session → why it ended; any of them may be the one that the workflow counts by. */
  const untold = new Map<string, Map<number, GoneReason>>();
  /** engine → what its workflow was told last. */
  const told = new Map<string, { stage: string; at: number }>();

  const quietly = (what: string, promise: Promise<unknown>): void => {
    void promise.catch(err =>
      log.warn({ err: err instanceof Error ? err.message : String(err) }, `${what} was not delivered`),
    );
  };

  // One timer for all nodes; each has its own phase, so that a thousand digests don't come in one second.
  const timer = setInterval(() => {
    const now = Date.now();
    for (const [nodeId, h] of heard) {
      if (now < h.digestAt) continue;
      quietly('a digest', fleet.digest(nodeId, { session: h.session, instance, heartbeats: h.heartbeats }));
      h.heartbeats = 0;
      h.digestAt = now + TIMING.nodeDigestInterval;
    }
  }, 5_000);
  timer.unref();

  return {
    async hello(node) {
      // Before its hello is told: the ledger would believe a clone that the other machine's engines are gone.
      const clone = await alreadyElsewhere(node);
      if (clone !== null) return { highestSession: 0, slots: {}, duplicate: clone };
      const info = await fleet.hello(node.nodeId, helloOf(node, said));
      const highestSession = info.highest_session > node.session ? info.highest_session : 0;
      const duplicate = highestSession === 0 ? await tellPrevious(node, info.previous ?? null) : null;
      return { highestSession, slots: slotsOf(info), ...(duplicate === null ? {} : { duplicate }) };
    },
    welcomed(node) {
      deliveries.supersede(node.nodeId, node.session);
      untold.delete(node.nodeId);
      const phase = Math.random() * 0.3 + 0.7;
      heard.set(node.nodeId, {
        session: node.session,
        node: { ...node },
        heartbeats: 0,
        digestAt: Date.now() + TIMING.nodeDigestInterval * phase,
      });
      log.info({ node: node.nodeId, session: node.session, engines: node.engines.length }, 'agent connected');
    },
    heartbeat(nodeId, session, hb) {
      const h = heard.get(nodeId);
      if (h === undefined || h.session !== session) return;
      h.heartbeats++;
      h.node.engines = hb.engines;
      h.node.clockSkewMs = hb.clockSkewMs;
      for (const engine of hb.engines) progress(nodeId, engine);
    },
    async event(nodeId, event: EngineEvent) {
      const where = await fleet.engineEvent(nodeId, event);
      log.info(
        { node: nodeId, replica: event.replica, fence: event.fence, seq: event.seq, where },
        'engine exit recorded',
      );
    },
    inventoryChanged(nodeId, session, inventory) {
      const h = heard.get(nodeId);
      if (h?.session === session) h.node.inventory = inventory;
      let taken = false;
      return deliveries.post({
        nodeId,
        kind: 'inventory',
        session,
        send: async () => {
          if (!taken) await unlessNone(fleet.inventory(nodeId, { session, inventory }));
          taken = true;
          const info = await unlessNone(fleet.welcome(nodeId));
          return info === null ? null : slotsOf(info);
        },
      });
    },
    gone(nodeId, session, reason) {
      // One that was refused doesn't speak for the one that is live.
      if (heard.get(nodeId)?.session === session) heard.delete(nodeId);
      log.info({ node: nodeId, session, reason }, 'agent gone');
      const sessions = untold.get(nodeId) ?? new Map<number, GoneReason>();
      untold.set(nodeId, sessions);
      sessions.set(session, reason);
      // The first is the one that was live: it stays.
      if (sessions.size > MAX_UNTOLD) sessions.delete([...sessions.keys()][1]!);
      void deliveries.post({ nodeId, kind: 'gone', session, send: () => tellEnds(nodeId, sessions) });
    },
    superseded(nodeId, session) {
      if (heard.get(nodeId)?.session === session) heard.delete(nodeId);
    },
    nodes: () => [...heard.keys()],
    async helloAgain(nodeId) {
      const h = heard.get(nodeId);
      if (h === undefined) return;
      const info = await fleet.hello(nodeId, helloOf(h.node, said));
      // A node workflow that began anew has numbered the GPUs anew.
      if (heard.get(nodeId)?.session === h.session) tellSlots?.(nodeId, h.session, slotsOf(info));
    },
    async tellHeard(nodeId) {
      const h = heard.get(nodeId);
      if (h === undefined) return;
      await fleet.digest(nodeId, { session: h.session, instance, heartbeats: h.heartbeats });
      h.heartbeats = 0;
    },
    close() {
      clearInterval(timer);
      deliveries.close();
    },
  };

  /** The sentence that refuses a second machine under a name that heartbeats at another instance; null: take it. */
  async function alreadyElsewhere(node: HelloNode): Promise<string | null> {
    if (peers === undefined || others?.() !== true) return null;
    // A node without a workflow, or a ledger that doesn't answer, keeps nobody out.
    const held = await fleet.node(node.nodeId).catch(() => null);
    if (held === null || held.peer_addr === null || held.instance === instance) return null;
    if (held.boot_id === null || held.boot_id === node.bootId) return null;
    return twoMachines(node, { instance: held.instance ?? '', addr: held.peer_addr });
  }

  async function twoMachines(
    node: HelloNode,
    at: { instance: string; addr: string },
  ): Promise<string | null> {
    const live = await peers?.live(at.addr, { node_ids: [node.nodeId] }).catch(() => null);
    const present = live?.nodes.find(n => n.node_id === node.nodeId && !n.silent);
    if (present === undefined || present.boot_id === node.bootId) return null;
    const duplicate =
      `"${node.nodeId}" is already connected from ${present.address} (boot ${present.boot_id}) to the instance ${at.instance} and heartbeats; ` +
      `this agent at ${node.peerAddress} has boot ${node.bootId}: two machines have the same node_id.`;
    const over = { node_id: node.nodeId, by_session: node.session, duplicate };
    quietly('a second machine under one name', peers!.superseded(at.addr, over));
    return duplicate;
  }

  /**
   * The instance that held the node until now may have a half-open stream of it and hears that it is over. Another boot
   * is another machine where the old one still heartbeats there: then neither may flap, and the sentence that refuses
   * this one comes back. An instance that doesn't answer keeps nobody out.
   */
  async function tellPrevious(node: HelloNode, previous: NodeHolder | null): Promise<string | null> {
    const addr = previous?.peer_addr ?? null;
    if (peers === undefined || previous === null || addr === null || previous.instance === instance)
      return null;
    const over = { node_id: node.nodeId, by_session: node.session };
    if (previous.boot_id !== null && previous.boot_id !== node.bootId) {
      const duplicate = await twoMachines(node, { instance: previous.instance, addr });
      if (duplicate !== null) return duplicate;
    }
    void peers
      .superseded(addr, over)
      .catch(err =>
        log.debug(
          { node: node.nodeId, instance: previous.instance, err: err.message },
          'the previous holder was not told',
        ),
      );
    return null;
  }

  async function tellEnds(nodeId: string, sessions: Map<number, GoneReason>): Promise<void> {
    for (const [session, reason] of sessions) {
      await unlessNone(fleet.gone(nodeId, { session, instance, reason: goneText(reason, instance) }));
      sessions.delete(session);
    }
    if (untold.get(nodeId) === sessions) untold.delete(nodeId);
  }

  function progress(nodeId: string, e: LiveEngine): void {
    const key = `${nodeId}/${e.replica}/${e.fence}/${e.rank}`;
    if (e.state !== 'loading') {
      told.delete(key);
      return;
    }
    if (e.stage === null) return;
    const now = Date.now();
    const last = told.get(key);
    if (last !== undefined && (last.stage === e.stage || now - last.at < TIMING.progressSignal)) return;
    told.set(key, { stage: e.stage, at: now });
    quietly(
      'progress',
      fleet.progress(e.replica, {
        node: nodeId,
        fence: e.fence,
        stage: e.stage,
        percent: e.percent,
        ...(e.eta_ms === undefined ? {} : { eta_ms: e.eta_ms }),
      }),
    );
  }
}

const goneText = (reason: string, instance: string): string =>
  reason === 'silent'
    ? 'no heartbeat arrived'
    : reason === 'shutdown'
      ? `${instance} stopped`
      : reason === 'refused'
        ? 'its Hello could not be answered'
        : 'the connection closed';

const slotsOf = (info: { slots: Record<string, string> }): Record<number, string> =>
  Object.fromEntries(Object.entries(info.slots).map(([slot, uuid]) => [Number(slot), uuid]));

/** null: the node has no workflow (any more), and its next Hello starts one that knows all of it. */
async function unlessNone<T>(call: Promise<T>): Promise<T | null> {
  try {
    return await call;
  } catch (err) {
    if (err instanceof WorkflowNotFoundError) return null;
    throw err;
  }
}

function helloOf(
  node: HelloNode,
  said: Pick<NodeHello, 'instance' | 'peer_addr' | 'missed_heartbeats'>,
): NodeHello {
  return {
    session: node.session,
    ...said,
    boot_id: node.bootId,
    protocol_version: node.protocolVersion,
    agent_version: node.agentVersion,
    capabilities: node.capabilities,
    proven: !node.unproven,
    compatible: node.compatible,
    clock_offset_ms: node.clockSkewMs,
    heartbeat_interval_ms: node.heartbeatIntervalMs,
    inventory: { ...node.inventory, mgmt_addr: node.inventory.mgmt_addr ?? node.peerAddress },
    mgmt_addr_set: node.inventory.mgmt_addr !== null,
    engines: node.engines.map(({ percent: _, eta_ms: __, ...engine }) => engine),
  };
}
