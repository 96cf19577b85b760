// Original file: proto/agent.proto

import type { EngineReport as _llmgw_v1_EngineReport, EngineReport__Output as _llmgw_v1_EngineReport__Output } from '../../llmgw/v1/EngineReport.js';
import type { EngineEvent as _llmgw_v1_EngineEvent, EngineEvent__Output as _llmgw_v1_EngineEvent__Output } from '../../llmgw/v1/EngineEvent.js';
import type { Long } from '@grpc/proto-loader';

export interface Hello {
  'protocol_version'?: (number);
  'node_id'?: (string);
  /**
   * max(last + 1, wall clock ms): of two connections of a node the one with the higher number is the newer.
   */
  'session'?: (number | string | Long);
  'boot_id'?: (string);
  /**
   * The agent's wall clock, ms since the epoch.
   */
  'clock_ms'?: (number | string | Long);
  'capabilities'?: (string)[];
  'agent_version'?: (string);
  /**
   * JSON of contracts Inventory.
   */
  'inventory'?: (Buffer | Uint8Array | string);
  'engines'?: (_llmgw_v1_EngineReport)[];
  /**
   * Exits not yet acknowledged, so that whoever reconciles the engines knows why one is missing. They follow as
   * EngineEvent after Welcome, and are acknowledged there only.
   */
  'unacked'?: (_llmgw_v1_EngineEvent)[];
  'heartbeat_interval_ms'?: (number);
}

export interface Hello__Output {
  'protocol_version': (number);
  'node_id': (string);
  /**
   * max(last + 1, wall clock ms): of two connections of a node the one with the higher number is the newer.
   */
  'session': (number);
  'boot_id': (string);
  /**
   * The agent's wall clock, ms since the epoch.
   */
  'clock_ms': (number);
  'capabilities': (string)[];
  'agent_version': (string);
  /**
   * JSON of contracts Inventory.
   */
  'inventory': (Buffer);
  'engines': (_llmgw_v1_EngineReport__Output)[];
  /**
   * Exits not yet acknowledged, so that whoever reconciles the engines knows why one is missing. They follow as
   * EngineEvent after Welcome, and are acknowledged there only.
   */
  'unacked': (_llmgw_v1_EngineEvent__Output)[];
  'heartbeat_interval_ms': (number);
}
