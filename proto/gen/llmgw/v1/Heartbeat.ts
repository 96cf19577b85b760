// Original file: proto/agent.proto

import type { EngineReport as _llmgw_v1_EngineReport, EngineReport__Output as _llmgw_v1_EngineReport__Output } from '../../llmgw/v1/EngineReport.js';
import type { Long } from '@grpc/proto-loader';

export interface Heartbeat {
  'seq'?: (number | string | Long);
  'clock_ms'?: (number | string | Long);
  'engines'?: (_llmgw_v1_EngineReport)[];
}

export interface Heartbeat__Output {
  'seq': (number);
  'clock_ms': (number);
  'engines': (_llmgw_v1_EngineReport__Output)[];
}
