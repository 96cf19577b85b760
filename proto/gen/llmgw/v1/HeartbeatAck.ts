// Original file: proto/agent.proto

import type { Long } from '@grpc/proto-loader';

export interface HeartbeatAck {
  'seq'?: (number | string | Long);
  'clock_ms'?: (number | string | Long);
}

export interface HeartbeatAck__Output {
  'seq': (number);
  'clock_ms': (number);
}
