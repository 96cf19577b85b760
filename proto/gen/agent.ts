import type * as grpc from '@grpc/grpc-js';
import type { MessageTypeDefinition } from '@grpc/proto-loader';

import type { AgentClient as _llmgw_v1_AgentClient, AgentDefinition as _llmgw_v1_AgentDefinition } from './llmgw/v1/Agent.js';
import type { AgentMessage as _llmgw_v1_AgentMessage, AgentMessage__Output as _llmgw_v1_AgentMessage__Output } from './llmgw/v1/AgentMessage.js';
import type { CancelRequest as _llmgw_v1_CancelRequest, CancelRequest__Output as _llmgw_v1_CancelRequest__Output } from './llmgw/v1/CancelRequest.js';
import type { EngineEvent as _llmgw_v1_EngineEvent, EngineEvent__Output as _llmgw_v1_EngineEvent__Output } from './llmgw/v1/EngineEvent.js';
import type { EngineReport as _llmgw_v1_EngineReport, EngineReport__Output as _llmgw_v1_EngineReport__Output } from './llmgw/v1/EngineReport.js';
import type { EventAck as _llmgw_v1_EventAck, EventAck__Output as _llmgw_v1_EventAck__Output } from './llmgw/v1/EventAck.js';
import type { GoAway as _llmgw_v1_GoAway, GoAway__Output as _llmgw_v1_GoAway__Output } from './llmgw/v1/GoAway.js';
import type { Grant as _llmgw_v1_Grant, Grant__Output as _llmgw_v1_Grant__Output } from './llmgw/v1/Grant.js';
import type { Heartbeat as _llmgw_v1_Heartbeat, Heartbeat__Output as _llmgw_v1_Heartbeat__Output } from './llmgw/v1/Heartbeat.js';
import type { HeartbeatAck as _llmgw_v1_HeartbeatAck, HeartbeatAck__Output as _llmgw_v1_HeartbeatAck__Output } from './llmgw/v1/HeartbeatAck.js';
import type { Hello as _llmgw_v1_Hello, Hello__Output as _llmgw_v1_Hello__Output } from './llmgw/v1/Hello.js';
import type { InventoryChanged as _llmgw_v1_InventoryChanged, InventoryChanged__Output as _llmgw_v1_InventoryChanged__Output } from './llmgw/v1/InventoryChanged.js';
import type { Notice as _llmgw_v1_Notice, Notice__Output as _llmgw_v1_Notice__Output } from './llmgw/v1/Notice.js';
import type { Request as _llmgw_v1_Request, Request__Output as _llmgw_v1_Request__Output } from './llmgw/v1/Request.js';
import type { Response as _llmgw_v1_Response, Response__Output as _llmgw_v1_Response__Output } from './llmgw/v1/Response.js';
import type { ServerMessage as _llmgw_v1_ServerMessage, ServerMessage__Output as _llmgw_v1_ServerMessage__Output } from './llmgw/v1/ServerMessage.js';
import type { Slots as _llmgw_v1_Slots, Slots__Output as _llmgw_v1_Slots__Output } from './llmgw/v1/Slots.js';
import type { Superseded as _llmgw_v1_Superseded, Superseded__Output as _llmgw_v1_Superseded__Output } from './llmgw/v1/Superseded.js';
import type { Verdict as _llmgw_v1_Verdict, Verdict__Output as _llmgw_v1_Verdict__Output } from './llmgw/v1/Verdict.js';
import type { Verdicts as _llmgw_v1_Verdicts, Verdicts__Output as _llmgw_v1_Verdicts__Output } from './llmgw/v1/Verdicts.js';
import type { Welcome as _llmgw_v1_Welcome, Welcome__Output as _llmgw_v1_Welcome__Output } from './llmgw/v1/Welcome.js';

type SubtypeConstructor<Constructor extends new (...args: any) => any, Subtype> = {
  new(...args: ConstructorParameters<Constructor>): Subtype;
};

export interface ProtoGrpcType {
  llmgw: {
    v1: {
      Agent: SubtypeConstructor<typeof grpc.Client, _llmgw_v1_AgentClient> & { service: _llmgw_v1_AgentDefinition }
      AgentMessage: MessageTypeDefinition<_llmgw_v1_AgentMessage, _llmgw_v1_AgentMessage__Output>
      CancelRequest: MessageTypeDefinition<_llmgw_v1_CancelRequest, _llmgw_v1_CancelRequest__Output>
      EngineEvent: MessageTypeDefinition<_llmgw_v1_EngineEvent, _llmgw_v1_EngineEvent__Output>
      EngineReport: MessageTypeDefinition<_llmgw_v1_EngineReport, _llmgw_v1_EngineReport__Output>
      EventAck: MessageTypeDefinition<_llmgw_v1_EventAck, _llmgw_v1_EventAck__Output>
      GoAway: MessageTypeDefinition<_llmgw_v1_GoAway, _llmgw_v1_GoAway__Output>
      Grant: MessageTypeDefinition<_llmgw_v1_Grant, _llmgw_v1_Grant__Output>
      Heartbeat: MessageTypeDefinition<_llmgw_v1_Heartbeat, _llmgw_v1_Heartbeat__Output>
      HeartbeatAck: MessageTypeDefinition<_llmgw_v1_HeartbeatAck, _llmgw_v1_HeartbeatAck__Output>
      Hello: MessageTypeDefinition<_llmgw_v1_Hello, _llmgw_v1_Hello__Output>
      InventoryChanged: MessageTypeDefinition<_llmgw_v1_InventoryChanged, _llmgw_v1_InventoryChanged__Output>
      Notice: MessageTypeDefinition<_llmgw_v1_Notice, _llmgw_v1_Notice__Output>
      Request: MessageTypeDefinition<_llmgw_v1_Request, _llmgw_v1_Request__Output>
      Response: MessageTypeDefinition<_llmgw_v1_Response, _llmgw_v1_Response__Output>
      ServerMessage: MessageTypeDefinition<_llmgw_v1_ServerMessage, _llmgw_v1_ServerMessage__Output>
      Slots: MessageTypeDefinition<_llmgw_v1_Slots, _llmgw_v1_Slots__Output>
      Superseded: MessageTypeDefinition<_llmgw_v1_Superseded, _llmgw_v1_Superseded__Output>
      Verdict: MessageTypeDefinition<_llmgw_v1_Verdict, _llmgw_v1_Verdict__Output>
      Verdicts: MessageTypeDefinition<_llmgw_v1_Verdicts, _llmgw_v1_Verdicts__Output>
      Welcome: MessageTypeDefinition<_llmgw_v1_Welcome, _llmgw_v1_Welcome__Output>
    }
  }
}

