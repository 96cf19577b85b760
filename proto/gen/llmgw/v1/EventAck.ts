// Original file: proto/agent.proto

import type { Long } from '@grpc/proto-loader';

/**
 * Sent once Temporal has the event; until then the agent keeps it on disk and sends it again.
 */
export interface EventAck {
  'replica'?: (string);
  'fence'?: (number | string | Long);
  'rank'?: (number);
  'seq'?: (number | string | Long);
}

/**
 * Sent once Temporal has the event; until then the agent keeps it on disk and sends it again.
 */
export interface EventAck__Output {
  'replica': (string);
  'fence': (number);
  'rank': (number);
  'seq': (number);
}
