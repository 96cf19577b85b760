// Original file: proto/peer.proto

import type { Caller as _llmgw_v1_Caller, Caller__Output as _llmgw_v1_Caller__Output } from '../../llmgw/v1/Caller.js';

export interface PeerRequest {
  'caller'?: (_llmgw_v1_Caller | null);
  'node_id'?: (string);
  /**
   * As Request in agent.proto.
   */
  'kind'?: (string);
  'payload'?: (Buffer | Uint8Array | string);
  /**
   * Longest wait for the agent's next chunk.
   */
  'timeout_ms'?: (number);
}

export interface PeerRequest__Output {
  'caller': (_llmgw_v1_Caller__Output | null);
  'node_id': (string);
  /**
   * As Request in agent.proto.
   */
  'kind': (string);
  'payload': (Buffer);
  /**
   * Longest wait for the agent's next chunk.
   */
  'timeout_ms': (number);
}
