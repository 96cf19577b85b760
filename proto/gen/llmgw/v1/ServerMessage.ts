// Original file: proto/agent.proto

import type { Welcome as _llmgw_v1_Welcome, Welcome__Output as _llmgw_v1_Welcome__Output } from '../../llmgw/v1/Welcome.js';
import type { HeartbeatAck as _llmgw_v1_HeartbeatAck, HeartbeatAck__Output as _llmgw_v1_HeartbeatAck__Output } from '../../llmgw/v1/HeartbeatAck.js';
import type { EventAck as _llmgw_v1_EventAck, EventAck__Output as _llmgw_v1_EventAck__Output } from '../../llmgw/v1/EventAck.js';
import type { Request as _llmgw_v1_Request, Request__Output as _llmgw_v1_Request__Output } from '../../llmgw/v1/Request.js';
import type { Grant as _llmgw_v1_Grant, Grant__Output as _llmgw_v1_Grant__Output } from '../../llmgw/v1/Grant.js';
import type { CancelRequest as _llmgw_v1_CancelRequest, CancelRequest__Output as _llmgw_v1_CancelRequest__Output } from '../../llmgw/v1/CancelRequest.js';
import type { Superseded as _llmgw_v1_Superseded, Superseded__Output as _llmgw_v1_Superseded__Output } from '../../llmgw/v1/Superseded.js';
import type { GoAway as _llmgw_v1_GoAway, GoAway__Output as _llmgw_v1_GoAway__Output } from '../../llmgw/v1/GoAway.js';
import type { Notice as _llmgw_v1_Notice, Notice__Output as _llmgw_v1_Notice__Output } from '../../llmgw/v1/Notice.js';
import type { Verdicts as _llmgw_v1_Verdicts, Verdicts__Output as _llmgw_v1_Verdicts__Output } from '../../llmgw/v1/Verdicts.js';
import type { Slots as _llmgw_v1_Slots, Slots__Output as _llmgw_v1_Slots__Output } from '../../llmgw/v1/Slots.js';

export interface ServerMessage {
  'welcome'?: (_llmgw_v1_Welcome | null);
  'heartbeat_ack'?: (_llmgw_v1_HeartbeatAck | null);
  'event_ack'?: (_llmgw_v1_EventAck | null);
  'request'?: (_llmgw_v1_Request | null);
  'grant'?: (_llmgw_v1_Grant | null);
  'cancel_request'?: (_llmgw_v1_CancelRequest | null);
  'superseded'?: (_llmgw_v1_Superseded | null);
  'go_away'?: (_llmgw_v1_GoAway | null);
  'notice'?: (_llmgw_v1_Notice | null);
  'verdicts'?: (_llmgw_v1_Verdicts | null);
  'slots'?: (_llmgw_v1_Slots | null);
  'body'?: "welcome"|"heartbeat_ack"|"event_ack"|"request"|"grant"|"cancel_request"|"superseded"|"go_away"|"notice"|"verdicts"|"slots";
}

export interface ServerMessage__Output {
  'welcome'?: (_llmgw_v1_Welcome__Output | null);
  'heartbeat_ack'?: (_llmgw_v1_HeartbeatAck__Output | null);
  'event_ack'?: (_llmgw_v1_EventAck__Output | null);
  'request'?: (_llmgw_v1_Request__Output | null);
  'grant'?: (_llmgw_v1_Grant__Output | null);
  'cancel_request'?: (_llmgw_v1_CancelRequest__Output | null);
  'superseded'?: (_llmgw_v1_Superseded__Output | null);
  'go_away'?: (_llmgw_v1_GoAway__Output | null);
  'notice'?: (_llmgw_v1_Notice__Output | null);
  'verdicts'?: (_llmgw_v1_Verdicts__Output | null);
  'slots'?: (_llmgw_v1_Slots__Output | null);
  'body'?: "welcome"|"heartbeat_ack"|"event_ack"|"request"|"grant"|"cancel_request"|"superseded"|"go_away"|"notice"|"verdicts"|"slots";
}
