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
  /**
   * Members of its gang; 0: not told, or one.
   */
  'nodes'?: (number);
  /**
   * That the gang was granted on; empty: none.
   */
  'fabric'?: (string);
  /**
   * What the stage has still to go, ms; absent: not known.
   */
  'eta_ms'?: (number | string);
  '_pid'?: "pid";
  '_stage'?: "stage";
  '_percent'?: "percent";
  '_eta_ms'?: "eta_ms";
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
  /**
   * Members of its gang; 0: not told, or one.
   */
  'nodes': (number);
  /**
   * That the gang was granted on; empty: none.
   */
  'fabric': (string);
  /**
   * What the stage has still to go, ms; absent: not known.
   */
  'eta_ms'?: (number);
  '_pid'?: "pid";
  '_stage'?: "stage";
  '_percent'?: "percent";
  '_eta_ms'?: "eta_ms";
}
