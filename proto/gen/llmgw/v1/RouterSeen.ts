// Original file: proto/peer.proto

import type { Long } from '@grpc/proto-loader';

export interface RouterSeen {
  'id'?: (string);
  'version'?: (number | string | Long);
  'outstanding'?: (number | string | Long);
  'heard_ago_ms'?: (number | string | Long);
}

export interface RouterSeen__Output {
  'id': (string);
  'version': (number);
  'outstanding': (number);
  'heard_ago_ms': (number);
}
