// Original file: proto/peer.proto

import type { Caller as _llmgw_v1_Caller, Caller__Output as _llmgw_v1_Caller__Output } from '../../llmgw/v1/Caller.js';
import type { Long } from '@grpc/proto-loader';

export interface PeerSuperseded {
  'caller'?: (_llmgw_v1_Caller | null);
  'node_id'?: (string);
  'by_session'?: (number | string | Long);
  /**
   * Set: no change of instance but a second machine under the same name, which the caller has refused; the sentence
   * says so. The called instance's session must jump above by_session.
   */
  'duplicate'?: (string);
}

export interface PeerSuperseded__Output {
  'caller': (_llmgw_v1_Caller__Output | null);
  'node_id': (string);
  'by_session': (number);
  /**
   * Set: no change of instance but a second machine under the same name, which the caller has refused; the sentence
   * says so. The called instance's session must jump above by_session.
   */
  'duplicate': (string);
}
