// What the stream takes from the rest of the agent, and what it tells it.
import type { EngineEvent } from '../../contracts/engine.js';
import type { Inventory } from '../../contracts/inventory.js';
import type { ServerUrl } from '../../lib/address.js';
import type { TlsPaths } from '../../lib/tls/load.js';
import type { EventRef, LiveEngine } from '../../proto/codec.js';

export interface StreamConfig {
  nodeId: string;
  server: ServerUrl;
  /** null: plain. */
  tls: TlsPaths | null;
  heartbeatIntervalMs: number;
  reconnectBaseMs: number;
  reconnectMaxMs: number;
}

/** Exits on disk that Temporal doesn't have yet. */
export interface Outbox {
  /** Oldest first. */
  pending(): EngineEvent[];
  ack(ref: EventRef): void;
  /** Calls back for each new event; the stream sends it at once. */
  onEvent(listener: () => void): void;
}

/** Answers a request of the control plane in chunks; throws LlmgwError. Ends when `signal` aborts. */
export type ServeRequest = (kind: string, payload: unknown, signal: AbortSignal) => AsyncIterable<Buffer>;

export interface StreamSources {
  bootId: string;
  agentVersion: string;
  inventory(): Inventory;
  engines(): LiveEngine[];
  outbox: Outbox;
  serve: ServeRequest;
}

/** What Welcome told. */
export interface Welcomed {
  instance: string;
  session: number;
  slots: Map<number, string>;
  /** This node's address as the control plane sees it. */
  peerAddress: string;
  temporalNamespace: string;
  unproven: boolean;
}
