// Original file: proto/peer.proto

import type { PeerNode as _llmgw_v1_PeerNode, PeerNode__Output as _llmgw_v1_PeerNode__Output } from '../../llmgw/v1/PeerNode.js';

/**
 * Nodes that are not named here have no stream to the called instance.
 */
export interface LiveReply {
  'instance'?: (string);
  'nodes'?: (_llmgw_v1_PeerNode)[];
}

/**
 * Nodes that are not named here have no stream to the called instance.
 */
export interface LiveReply__Output {
  'instance': (string);
  'nodes': (_llmgw_v1_PeerNode__Output)[];
}
