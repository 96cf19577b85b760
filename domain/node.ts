// One node as its `node` workflow sees it: which session holds it, whether it is heard, what it is made of, and the
// numbering of its GPU slots (append-only: a slot never means another GPU). INV-8, INV-11.
import type { EngineReport } from '../contracts/engine.js';
import type { Inventory } from '../contracts/inventory.js';
import type {
  NodeDigest,
  NodeFacts,
  NodeGone,
  NodeHello,
  NodeInventory,
  WelcomeInfo,
} from '../contracts/messages.js';
import { TIMING } from '../contracts/timing.js';
import { JOURNAL_LENGTH } from './ledger/state.js';
import { MAX_SLOTS, maskOf } from './slots.js';

export interface NodeState {
  v: 1;
  node_id: string;
  highest_session: number;
  /** The session that holds the node; null: never connected. */
  session: number | null;
  instance: string | null;
  peer_addr: string | null;
  boot_id: string | null;
  protocol_version: number;
  capabilities: string[];
  proven: boolean;
  state: NodeFacts['state'];
  reason: string;
  since: number;
  /** When it was last heard, as far as this workflow was told (an edge or a digest). */
  heard_at: number;
  heartbeat_interval_ms: number;
  /** Set by `gone`: silent when this passes without a hello. */
  silent_at: number | null;
  inventory: Inventory | null;
  engines: EngineReport[];
  /** Slot → UUID. */
  slots: Record<string, string>;
  /** Of what was last reported to the ledger. */
  seq: number;
  journal: { at: number; text: string }[];
}

export type NodeEvent =
  | { type: 'hello'; hello: NodeHello }
  | { type: 'gone'; gone: NodeGone }
  | { type: 'digest'; digest: NodeDigest }
  | { type: 'inventory'; inv: NodeInventory }
  /** A signal that hasn't its shape. */
  | { type: 'ignored'; what: string; fault: string }
  | { type: 'look' };

export function emptyNode(nodeId: string, now: number): NodeState {
  return {
    v: 1,
    node_id: nodeId,
    highest_session: 0,
    session: null,
    instance: null,
    peer_addr: null,
    boot_id: null,
    protocol_version: 0,
    capabilities: [],
    proven: false,
    state: 'silent',
    reason: 'has not said hello yet',
    since: now,
    heard_at: now,
    heartbeat_interval_ms: TIMING.heartbeatInterval,
    silent_at: null,
    inventory: null,
    engines: [],
    slots: {},
    seq: 0,
    journal: [],
  };
}

/** Changes the state in place; true when the ledger must hear of it. */
export function nodeStep(s: NodeState, ev: NodeEvent, now: number): boolean {
  switch (ev.type) {
    case 'hello': {
      const { hello } = ev;
      // An edge of an older session is ignored: it was overtaken on its way.
      if (hello.session < s.highest_session) return false;
      s.highest_session = hello.session;
      s.session = hello.session;
      s.instance = hello.instance;
      s.peer_addr = hello.peer_addr;
      s.protocol_version = hello.protocol_version;
      s.capabilities = hello.capabilities;
      s.proven = hello.proven;
      s.heartbeat_interval_ms = hello.heartbeat_interval_ms;
      s.engines = hello.engines;
      if (s.boot_id !== null && s.boot_id !== hello.boot_id) log(s, now, 'the host was rebooted');
      s.boot_id = hello.boot_id;
      takeInventory(s, hello.inventory, now);
      if (hello.compatible === false) {
        incompatible(s, now);
        return true;
      }
      heard(s, now, `session ${hello.session} at ${hello.instance}`);
      return true;
    }
    case 'gone':
      if (ev.gone.session !== s.session || s.silent_at !== null || s.state !== 'connected') return false;
      s.silent_at = now + s.heartbeat_interval_ms * TIMING.silentAfterIntervals;
      s.reason = `stream ended: ${ev.gone.reason}`;
      log(s, now, s.reason);
      return true;
    case 'digest': {
      if (ev.digest.session !== s.session) return false;
      s.heard_at = now;
      const back = s.state !== 'connected' && s.state !== 'incompatible';
      if (back) heard(s, now, 'heartbeats are back');
      return back;
    }
    case 'inventory':
      if (ev.inv.session !== s.session) return false;
      takeInventory(s, ev.inv.inventory, now);
      return true;
    case 'ignored':
      log(s, now, `ignored a signal ${ev.what} that has not its shape (${ev.fault})`);
      return false;
    case 'look':
      return look(s, now);
  }
}

function look(s: NodeState, now: number): boolean {
  if (s.state !== 'connected') return false;
  const because =
    s.silent_at !== null && now >= s.silent_at
      ? s.reason
      : now - s.heard_at >= TIMING.nodeLookInterval
        ? 'no control plane has told of a heartbeat'
        : null;
  if (because === null) return false;
  s.state = 'silent';
  s.reason = `no heartbeat for ${TIMING.silentAfterIntervals} intervals: ${because}`;
  s.since = now;
  s.silent_at = null;
  log(s, now, `silent: ${because}`);
  return true;
}

/** ms until the workflow must look by itself. */
export function nextLook(s: NodeState, now: number): number | null {
  if (s.state !== 'connected') return null;
  const at = Math.min(s.silent_at ?? Number.POSITIVE_INFINITY, s.heard_at + TIMING.nodeLookInterval);
  return Math.max(1, at - now);
}

function incompatible(s: NodeState, now: number): void {
  if (s.state !== 'incompatible') s.since = now;
  s.state = 'incompatible';
  s.heard_at = now;
  s.silent_at = null;
  s.reason = `its agent speaks protocol ${s.protocol_version}, older than this control plane serves: update it; its engines are kept`;
  log(s, now, s.reason);
}

function heard(s: NodeState, now: number, why: string): void {
  if (s.state !== 'connected') {
    s.state = 'connected';
    s.since = now;
  }
  s.heard_at = now;
  s.silent_at = null;
  s.reason = 'heartbeats arrive';
  log(s, now, `connected: ${why}`);
}

function takeInventory(s: NodeState, inv: Inventory, now: number): void {
  const known = new Set(Object.values(s.slots));
  for (const gpu of inv.gpus) {
    if (known.has(gpu.uuid)) continue;
    const slot = Object.keys(s.slots).length;
    if (slot >= MAX_SLOTS) {
      log(s, now, `GPU ${gpu.uuid} has no slot: ${MAX_SLOTS} were given out, forget the node to start again`);
      continue;
    }
    s.slots[String(slot)] = gpu.uuid;
    known.add(gpu.uuid);
  }
  s.inventory = inv;
}

export const welcome = (s: NodeState): WelcomeInfo => ({
  highest_session: s.highest_session,
  slots: s.slots,
});

/** What the ledger hears. A GPU that vanished keeps its slot and is not usable. */
export function factsOf(s: NodeState): NodeFacts {
  const inv = s.inventory;
  const slotOf = new Map(Object.entries(s.slots).map(([slot, uuid]) => [uuid, Number(slot)]));
  const gpus = (inv?.gpus ?? []).filter(g => slotOf.has(g.uuid));
  const at = (uuid: string): number => slotOf.get(uuid)!;
  // foreign: over 512 MiB used by others (INV-13).
  const foreign = gpus.filter(g => (g.foreign_mib ?? 0) > 512).map(g => at(g.uuid));
  const memories = gpus.map(g => g.memory_total_mib).filter(m => m !== null);
  return {
    node_id: s.node_id,
    seq: s.seq,
    state: s.state,
    reason: s.reason,
    since: s.since,
    agent_version: inv?.agent_version ?? '',
    labels: inv?.labels ?? {},
    fabrics: (inv?.fabrics ?? []).filter(f => f.usable).map(f => f.name),
    engines: (inv?.engines ?? []).map(e => ({
      name: e.name,
      type: e.type,
      version: e.version,
      launch_mode: e.launch_mode,
      problem: e.problems[0] ?? null,
    })),
    profile: {
      gpu_model: gpus[0]?.name ?? null,
      memory_mib: memories.length === 0 ? null : Math.min(...memories),
      slots: Object.keys(s.slots).length,
      islands: (inv?.nvlink_islands ?? []).map(island => maskOf(island.filter(u => slotOf.has(u)).map(at))),
    },
    usable: maskOf(gpus.filter(g => g.usable).map(g => at(g.uuid))),
    foreign: maskOf(foreign),
    unproven: !s.proven,
    conditions: inv?.conditions ?? [],
  };
}

function log(s: NodeState, now: number, text: string): void {
  s.journal.push({ at: now, text });
  if (s.journal.length > JOURNAL_LENGTH) s.journal.splice(0, s.journal.length - JOURNAL_LENGTH);
}
