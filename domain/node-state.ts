// What the `node` workflow keeps of its node, and the events that it decides on. Plain JSON (INV-11).
import type { SilentVerdict } from '../contracts/activities.js';
import type { EngineReport } from '../contracts/engine.js';
import type { Inventory } from '../contracts/inventory.js';
import type {
  NodeDigest,
  NodeFacts,
  NodeForget,
  NodeGone,
  NodeHello,
  NodeHolder,
  NodeInventory,
  NodeNote,
} from '../contracts/messages.js';
import { TIMING } from '../contracts/timing.js';
import { JOURNAL_LENGTH } from './ledger/state.js';

export interface NodeState {
  v: 1;
  node_id: string;
  highest_session: number;
  /** The session that holds the node; null: never connected. */
  session: number | null;
  instance: string | null;
  peer_addr: string | null;
  /** Who held it before this session: may still believe that it does. */
  previous?: NodeHolder | null;
  /** The session that `gone` was told of: it is over, whatever is still on its way from it. */
  ended: number | null;
  /** When the last hello was taken; 0: none yet. */
  hello_at: number;
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
  /** So many intervals without a heartbeat make it silent. */
  missed_heartbeats: number;
  /** Set by `gone`: silent when this passes without a hello. */
  silent_at: number | null;
  /** Watches of its data plane in a row that ended without news, in this state. */
  unchanged: number;
  /** Whose word it was that the machine is gone; null: it counts. */
  forgotten: string | null;
  inventory: Inventory | null;
  /** When that was told; absent: a state of before. */
  inventory_at?: number;
  /** `mgmt_addr` stands in its agent.yaml; absent: a state of before, or not told. */
  mgmt_addr_set?: boolean;
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
  | { type: 'verdict'; of: Watch; verdict: SilentVerdict }
  /** The ledger asks for the facts, although they haven't changed. */
  | { type: 'report' }
  | { type: 'forget'; forget: NodeForget }
  | { type: 'note'; note: NodeNote }
  /** A signal that hasn't its shape. */
  | { type: 'ignored'; what: string; fault: string }
  | { type: 'look' };

/** A watch of a silent node's data plane: what is believed while it runs, and since when. */
export interface Watch {
  believed: 'silent' | 'unsupervised' | 'lost';
  since: number;
  /** How many of them came before it. */
  n: number;
}

export function emptyNode(nodeId: string, now: number): NodeState {
  return {
    v: 1,
    node_id: nodeId,
    highest_session: 0,
    session: null,
    instance: null,
    peer_addr: null,
    previous: null,
    ended: null,
    hello_at: 0,
    boot_id: null,
    protocol_version: 0,
    capabilities: [],
    proven: false,
    state: 'silent',
    reason: 'has not said hello yet',
    since: now,
    heard_at: now,
    heartbeat_interval_ms: TIMING.heartbeatInterval,
    missed_heartbeats: TIMING.silentAfterIntervals,
    silent_at: null,
    unchanged: 0,
    forgotten: null,
    inventory: null,
    engines: [],
    slots: {},
    seq: 0,
    journal: [],
  };
}

/** Since now; what belonged to the state before it is over. */
export function become(s: NodeState, state: NodeState['state'], now: number): void {
  s.state = state;
  s.since = now;
  s.silent_at = null;
  s.unchanged = 0;
}

/** A line of the journal, which keeps the last ones. */
export function log(s: NodeState, now: number, text: string): void {
  s.journal.push({ at: now, text });
  if (s.journal.length > JOURNAL_LENGTH) s.journal.splice(0, s.journal.length - JOURNAL_LENGTH);
}
