import type * as grpc from '@grpc/grpc-js';
import type { MessageTypeDefinition } from '@grpc/proto-loader';

import type { AgentClient as _llmgw_v1_AgentClient, AgentDefinition as _llmgw_v1_AgentDefinition } from './llmgw/v1/Agent.js';
import type { AgentMessage as _llmgw_v1_AgentMessage, AgentMessage__Output as _llmgw_v1_AgentMessage__Output } from './llmgw/v1/AgentMessage.js';
import type { Caller as _llmgw_v1_Caller, Caller__Output as _llmgw_v1_Caller__Output } from './llmgw/v1/Caller.js';
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
import type { LiveReply as _llmgw_v1_LiveReply, LiveReply__Output as _llmgw_v1_LiveReply__Output } from './llmgw/v1/LiveReply.js';
import type { LiveRequest as _llmgw_v1_LiveRequest, LiveRequest__Output as _llmgw_v1_LiveRequest__Output } from './llmgw/v1/LiveRequest.js';
import type { Notice as _llmgw_v1_Notice, Notice__Output as _llmgw_v1_Notice__Output } from './llmgw/v1/Notice.js';
import type { PeerClient as _llmgw_v1_PeerClient, PeerDefinition as _llmgw_v1_PeerDefinition } from './llmgw/v1/Peer.js';
import type { PeerChunk as _llmgw_v1_PeerChunk, PeerChunk__Output as _llmgw_v1_PeerChunk__Output } from './llmgw/v1/PeerChunk.js';
import type { PeerDone as _llmgw_v1_PeerDone, PeerDone__Output as _llmgw_v1_PeerDone__Output } from './llmgw/v1/PeerDone.js';
import type { PeerNode as _llmgw_v1_PeerNode, PeerNode__Output as _llmgw_v1_PeerNode__Output } from './llmgw/v1/PeerNode.js';
import type { PeerRequest as _llmgw_v1_PeerRequest, PeerRequest__Output as _llmgw_v1_PeerRequest__Output } from './llmgw/v1/PeerRequest.js';
import type { PeerSuperseded as _llmgw_v1_PeerSuperseded, PeerSuperseded__Output as _llmgw_v1_PeerSuperseded__Output } from './llmgw/v1/PeerSuperseded.js';
import type { Request as _llmgw_v1_Request, Request__Output as _llmgw_v1_Request__Output } from './llmgw/v1/Request.js';
import type { Response as _llmgw_v1_Response, Response__Output as _llmgw_v1_Response__Output } from './llmgw/v1/Response.js';
import type { RouterSeen as _llmgw_v1_RouterSeen, RouterSeen__Output as _llmgw_v1_RouterSeen__Output } from './llmgw/v1/RouterSeen.js';
import type { RoutersReply as _llmgw_v1_RoutersReply, RoutersReply__Output as _llmgw_v1_RoutersReply__Output } from './llmgw/v1/RoutersReply.js';
import type { RoutersRequest as _llmgw_v1_RoutersRequest, RoutersRequest__Output as _llmgw_v1_RoutersRequest__Output } from './llmgw/v1/RoutersRequest.js';
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
      Caller: MessageTypeDefinition<_llmgw_v1_Caller, _llmgw_v1_Caller__Output>
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
      LiveReply: MessageTypeDefinition<_llmgw_v1_LiveReply, _llmgw_v1_LiveReply__Output>
      LiveRequest: MessageTypeDefinition<_llmgw_v1_LiveRequest, _llmgw_v1_LiveRequest__Output>
      Notice: MessageTypeDefinition<_llmgw_v1_Notice, _llmgw_v1_Notice__Output>
      Peer: SubtypeConstructor<typeof grpc.Client, _llmgw_v1_PeerClient> & { service: _llmgw_v1_PeerDefinition }
      PeerChunk: MessageTypeDefinition<_llmgw_v1_PeerChunk, _llmgw_v1_PeerChunk__Output>
      PeerDone: MessageTypeDefinition<_llmgw_v1_PeerDone, _llmgw_v1_PeerDone__Output>
      PeerNode: MessageTypeDefinition<_llmgw_v1_PeerNode, _llmgw_v1_PeerNode__Output>
      PeerRequest: MessageTypeDefinition<_llmgw_v1_PeerRequest, _llmgw_v1_PeerRequest__Output>
      PeerSuperseded: MessageTypeDefinition<_llmgw_v1_PeerSuperseded, _llmgw_v1_PeerSuperseded__Output>
      Request: MessageTypeDefinition<_llmgw_v1_Request, _llmgw_v1_Request__Output>
      Response: MessageTypeDefinition<_llmgw_v1_Response, _llmgw_v1_Response__Output>
      RouterSeen: MessageTypeDefinition<_llmgw_v1_RouterSeen, _llmgw_v1_RouterSeen__Output>
      RoutersReply: MessageTypeDefinition<_llmgw_v1_RoutersReply, _llmgw_v1_RoutersReply__Output>
      RoutersRequest: MessageTypeDefinition<_llmgw_v1_RoutersRequest, _llmgw_v1_RoutersRequest__Output>
      ServerMessage: MessageTypeDefinition<_llmgw_v1_ServerMessage, _llmgw_v1_ServerMessage__Output>
      Slots: MessageTypeDefinition<_llmgw_v1_Slots, _llmgw_v1_Slots__Output>
      Superseded: MessageTypeDefinition<_llmgw_v1_Superseded, _llmgw_v1_Superseded__Output>
      Verdict: MessageTypeDefinition<_llmgw_v1_Verdict, _llmgw_v1_Verdict__Output>
      Verdicts: MessageTypeDefinition<_llmgw_v1_Verdicts, _llmgw_v1_Verdicts__Output>
      Welcome: MessageTypeDefinition<_llmgw_v1_Welcome, _llmgw_v1_Welcome__Output>
    }
  }
}

