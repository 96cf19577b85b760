// Original file: proto/agent.proto

import type { Verdicts as _llmgw_v1_Verdicts, Verdicts__Output as _llmgw_v1_Verdicts__Output } from '../../llmgw/v1/Verdicts.js';
import type { Long } from '@grpc/proto-loader';

export interface Welcome {
  'protocol_version'?: (number);
  /**
   * Id of the control plane instance.
   */
  'instance'?: (string);
  /**
   * False: `highest_session` isn't below the Hello's; jump above it and say Hello again on this stream.
   */
  'accepted'?: (boolean);
  'highest_session'?: (number | string | Long);
  /**
   * 0: the agent's own.
   */
  'heartbeat_interval_ms'?: (number);
  /**
   * Slot number → GPU UUID, as numbered by the node's workflow.
   */
  'slots'?: ({[key: number]: string});
  /**
   * The agent's address as this instance sees it.
   */
  'peer_address'?: (string);
  /**
   * Temporal namespace that the node's worker uses.
   */
  'temporal_namespace'?: (string);
  /**
   * The control plane's wall clock, ms since the epoch.
   */
  'clock_ms'?: (number | string | Long);
  'capabilities'?: (string)[];
  /**
   * The node id was claimed without a certificate.
   */
  'unproven'?: (boolean);
  /**
   * Verdicts on the engines of Hello; empty where the control plane gives none.
   */
  'verdicts'?: (_llmgw_v1_Verdicts | null);
}

export interface Welcome__Output {
  'protocol_version': (number);
  /**
   * Id of the control plane instance.
   */
  'instance': (string);
  /**
   * False: `highest_session` isn't below the Hello's; jump above it and say Hello again on this stream.
   */
  'accepted': (boolean);
  'highest_session': (number);
  /**
   * 0: the agent's own.
   */
  'heartbeat_interval_ms': (number);
  /**
   * Slot number → GPU UUID, as numbered by the node's workflow.
   */
  'slots': ({[key: number]: string});
  /**
   * The agent's address as this instance sees it.
   */
  'peer_address': (string);
  /**
   * Temporal namespace that the node's worker uses.
   */
  'temporal_namespace': (string);
  /**
   * The control plane's wall clock, ms since the epoch.
   */
  'clock_ms': (number);
  'capabilities': (string)[];
  /**
   * The node id was claimed without a certificate.
   */
  'unproven': (boolean);
  /**
   * Verdicts on the engines of Hello; empty where the control plane gives none.
   */
  'verdicts': (_llmgw_v1_Verdicts__Output | null);
}
