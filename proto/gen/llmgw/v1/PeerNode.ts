// Original file: proto/peer.proto

import type { EngineReport as _llmgw_v1_EngineReport, EngineReport__Output as _llmgw_v1_EngineReport__Output } from '../../llmgw/v1/EngineReport.js';
import type { Long } from '@grpc/proto-loader';

export interface PeerNode {
  'node_id'?: (string);
  'session'?: (number | string | Long);
  'boot_id'?: (string);
  'address'?: (string);
  /**
   * Since its last heartbeat; a span, because clocks differ.
   */
  'heard_ago_ms'?: (number | string | Long);
  /**
   * Three heartbeat intervals have passed without one.
   */
  'silent'?: (boolean);
  'engines'?: (_llmgw_v1_EngineReport)[];
  /**
   * JSON of contracts Inventory, where it was asked for.
   */
  'inventory'?: (Buffer | Uint8Array | string);
}

export interface PeerNode__Output {
  'node_id': (string);
  'session': (number);
  'boot_id': (string);
  'address': (string);
  /**
   * Since its last heartbeat; a span, because clocks differ.
   */
  'heard_ago_ms': (number);
  /**
   * Three heartbeat intervals have passed without one.
   */
  'silent': (boolean);
  'engines': (_llmgw_v1_EngineReport__Output)[];
  /**
   * JSON of contracts Inventory, where it was asked for.
   */
  'inventory': (Buffer);
}
