// Original file: proto/peer.proto

import type { Caller as _llmgw_v1_Caller, Caller__Output as _llmgw_v1_Caller__Output } from '../../llmgw/v1/Caller.js';
import type { Long } from '@grpc/proto-loader';

export interface RoutersRequest {
  'caller'?: (_llmgw_v1_Caller | null);
  /**
   * Of which endpoint `outstanding` is asked; empty: of none.
   */
  'replica'?: (string);
  'fence'?: (number | string | Long);
}

export interface RoutersRequest__Output {
  'caller': (_llmgw_v1_Caller__Output | null);
  /**
   * Of which endpoint `outstanding` is asked; empty: of none.
   */
  'replica': (string);
  'fence': (number);
}
