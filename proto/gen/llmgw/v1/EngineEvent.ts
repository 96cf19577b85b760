// Original file: proto/agent.proto

import type { Long } from '@grpc/proto-loader';

export interface EngineEvent {
  'replica'?: (string);
  'fence'?: (number | string | Long);
  'rank'?: (number);
  /**
   * Per engine, from 1.
   */
  'seq'?: (number | string | Long);
  'kind'?: (string);
  /**
   * RFC 3339.
   */
  'at'?: (string);
  'requested'?: (boolean);
  /**
   * JSON of contracts FailureDigest.
   */
  'failure'?: (Buffer | Uint8Array | string);
}

export interface EngineEvent__Output {
  'replica': (string);
  'fence': (number);
  'rank': (number);
  /**
   * Per engine, from 1.
   */
  'seq': (number);
  'kind': (string);
  /**
   * RFC 3339.
   */
  'at': (string);
  'requested': (boolean);
  /**
   * JSON of contracts FailureDigest.
   */
  'failure': (Buffer);
}
