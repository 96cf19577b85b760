// Original file: proto/agent.proto

import type * as grpc from '@grpc/grpc-js'
import type { MethodDefinition } from '@grpc/proto-loader'
import type { AgentMessage as _llmgw_v1_AgentMessage, AgentMessage__Output as _llmgw_v1_AgentMessage__Output } from '../../llmgw/v1/AgentMessage.js';
import type { ServerMessage as _llmgw_v1_ServerMessage, ServerMessage__Output as _llmgw_v1_ServerMessage__Output } from '../../llmgw/v1/ServerMessage.js';

export interface AgentClient extends grpc.Client {
  /**
   * The first message must be Hello; nothing else is looked at before it is accepted.
   */
  Connect(metadata: grpc.Metadata, options?: grpc.CallOptions): grpc.ClientDuplexStream<_llmgw_v1_AgentMessage, _llmgw_v1_ServerMessage__Output>;
  Connect(options?: grpc.CallOptions): grpc.ClientDuplexStream<_llmgw_v1_AgentMessage, _llmgw_v1_ServerMessage__Output>;
  /**
   * The first message must be Hello; nothing else is looked at before it is accepted.
   */
  connect(metadata: grpc.Metadata, options?: grpc.CallOptions): grpc.ClientDuplexStream<_llmgw_v1_AgentMessage, _llmgw_v1_ServerMessage__Output>;
  connect(options?: grpc.CallOptions): grpc.ClientDuplexStream<_llmgw_v1_AgentMessage, _llmgw_v1_ServerMessage__Output>;
  
}

export interface AgentHandlers extends grpc.UntypedServiceImplementation {
  /**
   * The first message must be Hello; nothing else is looked at before it is accepted.
   */
  Connect: grpc.handleBidiStreamingCall<_llmgw_v1_AgentMessage__Output, _llmgw_v1_ServerMessage>;
  
}

export interface AgentDefinition extends grpc.ServiceDefinition {
  Connect: MethodDefinition<_llmgw_v1_AgentMessage, _llmgw_v1_ServerMessage, _llmgw_v1_AgentMessage__Output, _llmgw_v1_ServerMessage__Output>
}
