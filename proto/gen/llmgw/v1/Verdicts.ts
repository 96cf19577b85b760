// Original file: proto/agent.proto

import type { Verdict as _llmgw_v1_Verdict, Verdict__Output as _llmgw_v1_Verdict__Output } from '../../llmgw/v1/Verdict.js';

export interface Verdicts {
  'verdicts'?: (_llmgw_v1_Verdict)[];
}

export interface Verdicts__Output {
  'verdicts': (_llmgw_v1_Verdict__Output)[];
}
