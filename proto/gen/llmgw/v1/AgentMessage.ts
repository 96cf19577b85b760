// Original file: proto/agent.proto

import type { Hello as _llmgw_v1_Hello, Hello__Output as _llmgw_v1_Hello__Output } from '../../llmgw/v1/Hello.js';
import type { Heartbeat as _llmgw_v1_Heartbeat, Heartbeat__Output as _llmgw_v1_Heartbeat__Output } from '../../llmgw/v1/Heartbeat.js';
import type { EngineEvent as _llmgw_v1_EngineEvent, EngineEvent__Output as _llmgw_v1_EngineEvent__Output } from '../../llmgw/v1/EngineEvent.js';
import type { InventoryChanged as _llmgw_v1_InventoryChanged, InventoryChanged__Output as _llmgw_v1_InventoryChanged__Output } from '../../llmgw/v1/InventoryChanged.js';
import type { Response as _llmgw_v1_Response, Response__Output as _llmgw_v1_Response__Output } from '../../llmgw/v1/Response.js';

export interface AgentMessage {
  'hello'?: (_llmgw_v1_Hello | null);
  'heartbeat'?: (_llmgw_v1_Heartbeat | null);
  'event'?: (_llmgw_v1_EngineEvent | null);
  'inventory_changed'?: (_llmgw_v1_InventoryChanged | null);
  'response'?: (_llmgw_v1_Response | null);
  'body'?: "hello"|"heartbeat"|"event"|"inventory_changed"|"response";
}

export interface AgentMessage__Output {
  'hello'?: (_llmgw_v1_Hello__Output | null);
  'heartbeat'?: (_llmgw_v1_Heartbeat__Output | null);
  'event'?: (_llmgw_v1_EngineEvent__Output | null);
  'inventory_changed'?: (_llmgw_v1_InventoryChanged__Output | null);
  'response'?: (_llmgw_v1_Response__Output | null);
  'body'?: "hello"|"heartbeat"|"event"|"inventory_changed"|"response";
}
