// Original file: proto/agent.proto

import type { Long } from '@grpc/proto-loader';

export interface Verdict {
  'replica'?: (string);
  'fence'?: (number | string | Long);
  'rank'?: (number);
  /**
   * keep, stop.
   */
  'verdict'?: (string);
  'reason'?: (string);
}

export interface Verdict__Output {
  'replica': (string);
  'fence': (number);
  'rank': (number);
  /**
   * keep, stop.
   */
  'verdict': (string);
  'reason': (string);
}
