// Original file: proto/peer.proto

import type { RouterSeen as _llmgw_v1_RouterSeen, RouterSeen__Output as _llmgw_v1_RouterSeen__Output } from '../../llmgw/v1/RouterSeen.js';

export interface RoutersReply {
  'instance'?: (string);
  'routers'?: (_llmgw_v1_RouterSeen)[];
}

export interface RoutersReply__Output {
  'instance': (string);
  'routers': (_llmgw_v1_RouterSeen__Output)[];
}
