// Original file: proto/peer.proto

import type { Caller as _llmgw_v1_Caller, Caller__Output as _llmgw_v1_Caller__Output } from '../../llmgw/v1/Caller.js';

export interface LiveRequest {
  'caller'?: (_llmgw_v1_Caller | null);
  'node_ids'?: (string)[];
  /**
   * Besides: nodes that have an engine of this replica.
   */
  'replica'?: (string);
  'with_inventory'?: (boolean);
}

export interface LiveRequest__Output {
  'caller': (_llmgw_v1_Caller__Output | null);
  'node_ids': (string)[];
  /**
   * Besides: nodes that have an engine of this replica.
   */
  'replica': (string);
  'with_inventory': (boolean);
}
