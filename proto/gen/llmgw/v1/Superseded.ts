// Original file: proto/agent.proto

import type { Long } from '@grpc/proto-loader';

/**
 * A newer session of this node has taken over; this stream ends.
 */
export interface Superseded {
  'by_session'?: (number | string | Long);
  'instance'?: (string);
}

/**
 * A newer session of this node has taken over; this stream ends.
 */
export interface Superseded__Output {
  'by_session': (number);
  'instance': (string);
}
