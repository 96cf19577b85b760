// Original file: proto/agent.proto

import type { Long } from '@grpc/proto-loader';

export interface EngineReport {
  'replica'?: (string);
  'fence'?: (number | string | Long);
  'rank'?: (number);
  /**
   * spawning, loading, ready, stopping, exited.
   */
  'state'?: (string);
  'pid'?: (number | string | Long);
  'gpus'?: (string)[];
  'ports'?: ({[key: string]: number});
  'stage'?: (string);
  'percent'?: (number | string);
  /**
   * JSON of contracts Serves; empty: not told.
   */
  'serves'?: (Buffer | Uint8Array | string);
  '_pid'?: "pid";
  '_stage'?: "stage";
  '_percent'?: "percent";
}

export interface EngineReport__Output {
  'replica': (string);
  'fence': (number);
  'rank': (number);
  /**
   * spawning, loading, ready, stopping, exited.
   */
  'state': (string);
  'pid'?: (number);
  'gpus': (string)[];
  'ports': ({[key: string]: number});
  'stage'?: (string);
  'percent'?: (number);
  /**
   * JSON of contracts Serves; empty: not told.
   */
  'serves': (Buffer);
  '_pid'?: "pid";
  '_stage'?: "stage";
  '_percent'?: "percent";
}
