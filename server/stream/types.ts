// What the stream's hub and the rest of the control plane say to each other.
import type { EngineEvent } from '../../contracts/engine.js';
import type { Inventory } from '../../contracts/inventory.js';
import type { LiveEngine } from '../../proto/codec.js';

/** A node that has said Hello, its identity checked (INV-8). */
export interface HelloNode {
  nodeId: string;
  session: number;
  bootId: string;
  protocolVersion: number;
  /** False: older than what this control plane serves. Engines are kept, nothing new is placed. */
  compatible: boolean;
  capabilities: string[];
  agentVersion: string;
  inventory: Inventory;
  engines: LiveEngine[];
  /** Exits not acknowledged yet; each comes again as an event after Welcome. */
  unacked: EngineEvent[];
  /** The agent's address as seen here, without a port. */
  peerAddress: string;
  heartbeatIntervalMs: number;
  /** Agent's clock minus ours, ms, at the arrival of Hello. */
  clockSkewMs: number;
  /** No certificate: the id is a claim. */
  unproven: boolean;
}

export interface WelcomeInfo {
  /** Highest session of this node seen by any instance, this Hello's own not counted; 0: none. */
  highestSession: number;
  /** Slot number → GPU UUID. */
  slots: Record<number, string>;
  /** Another machine of this name heartbeats at another instance: the sentence that refuses this one. */
  duplicate?: string;
}

export interface HeartbeatInfo {
  seq: number;
  clockSkewMs: number;
  engines: LiveEngine[];
}

/** `refused`: its Hello may have been taken, the stream was not. */
export type GoneReason = 'closed' | 'silent' | 'shutdown' | 'refused';

/** What the control plane does with what agents say. All calls of a session stop after its `gone`. */
export interface StreamHandlers {
  /** Rejecting refuses the stream as unavailable, with the error's message; so does taking over 8 s. */
  hello(node: HelloNode): Promise<WelcomeInfo>;
  /** The session is live from here on: Welcome was sent. */
  welcomed?(node: HelloNode): void;
  heartbeat(nodeId: string, session: number, hb: HeartbeatInfo): void;
  /** Resolve: Temporal has it, the agent is acknowledged and forgets it. Reject: the agent sends it again. */
  event(nodeId: string, event: EngineEvent): Promise<void>;
  /** Resolves with the numbering once the node's workflow has it, which the agent is then told; null: overtaken. */
  inventoryChanged(
    nodeId: string,
    session: number,
    inventory: Inventory,
  ): Promise<WelcomeInfo['slots'] | null>;
  /** A session ended that was live, or whose Hello was handed on, and no newer one took over. */
  gone(nodeId: string, session: number, reason: GoneReason): void;
  /** A live session ended because a newer one is at another instance: nothing is to be told, it holds nothing. */
  superseded?(nodeId: string, session: number): void;
}

/** A live session, for those who show nodes. */
export interface LiveNode {
  nodeId: string;
  session: number;
  bootId: string;
  peerAddress: string;
  agentVersion: string;
  unproven: boolean;
  compatible: boolean;
  /** ms since the epoch. */
  since: number;
  lastHeartbeat: number;
  /** Nothing came for three of its intervals: about to be ended. */
  silent: boolean;
  clockSkewMs: number;
  inventory: Inventory;
  /** As of the last heartbeat. */
  engines: LiveEngine[];
}

export interface RequestOptions {
  /** Longest wait for the next chunk, ms. Default 10 s. */
  timeout?: number;
  signal?: AbortSignal;
}
