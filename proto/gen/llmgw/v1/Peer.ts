// Original file: proto/peer.proto

import type * as grpc from '@grpc/grpc-js'
import type { MethodDefinition } from '@grpc/proto-loader'
import type { LiveReply as _llmgw_v1_LiveReply, LiveReply__Output as _llmgw_v1_LiveReply__Output } from '../../llmgw/v1/LiveReply.js';
import type { LiveRequest as _llmgw_v1_LiveRequest, LiveRequest__Output as _llmgw_v1_LiveRequest__Output } from '../../llmgw/v1/LiveRequest.js';
import type { PeerChunk as _llmgw_v1_PeerChunk, PeerChunk__Output as _llmgw_v1_PeerChunk__Output } from '../../llmgw/v1/PeerChunk.js';
import type { PeerDone as _llmgw_v1_PeerDone, PeerDone__Output as _llmgw_v1_PeerDone__Output } from '../../llmgw/v1/PeerDone.js';
import type { PeerRequest as _llmgw_v1_PeerRequest, PeerRequest__Output as _llmgw_v1_PeerRequest__Output } from '../../llmgw/v1/PeerRequest.js';
import type { PeerSuperseded as _llmgw_v1_PeerSuperseded, PeerSuperseded__Output as _llmgw_v1_PeerSuperseded__Output } from '../../llmgw/v1/PeerSuperseded.js';
import type { RoutersReply as _llmgw_v1_RoutersReply, RoutersReply__Output as _llmgw_v1_RoutersReply__Output } from '../../llmgw/v1/RoutersReply.js';
import type { RoutersRequest as _llmgw_v1_RoutersRequest, RoutersRequest__Output as _llmgw_v1_RoutersRequest__Output } from '../../llmgw/v1/RoutersRequest.js';

export interface PeerClient extends grpc.Client {
  /**
   * What the called instance's streams have heard of nodes a moment ago.
   */
  Live(argument: _llmgw_v1_LiveRequest, metadata: grpc.Metadata, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  Live(argument: _llmgw_v1_LiveRequest, metadata: grpc.Metadata, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  Live(argument: _llmgw_v1_LiveRequest, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  Live(argument: _llmgw_v1_LiveRequest, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  /**
   * What the called instance's streams have heard of nodes a moment ago.
   */
  live(argument: _llmgw_v1_LiveRequest, metadata: grpc.Metadata, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  live(argument: _llmgw_v1_LiveRequest, metadata: grpc.Metadata, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  live(argument: _llmgw_v1_LiveRequest, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  live(argument: _llmgw_v1_LiveRequest, callback: grpc.requestCallback<_llmgw_v1_LiveReply__Output>): grpc.ClientUnaryCall;
  
  /**
   * A request to an agent whose stream the called instance holds.
   */
  Request(argument: _llmgw_v1_PeerRequest, metadata: grpc.Metadata, options?: grpc.CallOptions): grpc.ClientReadableStream<_llmgw_v1_PeerChunk__Output>;
  Request(argument: _llmgw_v1_PeerRequest, options?: grpc.CallOptions): grpc.ClientReadableStream<_llmgw_v1_PeerChunk__Output>;
  /**
   * A request to an agent whose stream the called instance holds.
   */
  request(argument: _llmgw_v1_PeerRequest, metadata: grpc.Metadata, options?: grpc.CallOptions): grpc.ClientReadableStream<_llmgw_v1_PeerChunk__Output>;
  request(argument: _llmgw_v1_PeerRequest, options?: grpc.CallOptions): grpc.ClientReadableStream<_llmgw_v1_PeerChunk__Output>;
  
  /**
   * The routers that report to the called instance.
   */
  Routers(argument: _llmgw_v1_RoutersRequest, metadata: grpc.Metadata, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  Routers(argument: _llmgw_v1_RoutersRequest, metadata: grpc.Metadata, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  Routers(argument: _llmgw_v1_RoutersRequest, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  Routers(argument: _llmgw_v1_RoutersRequest, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  /**
   * The routers that report to the called instance.
   */
  routers(argument: _llmgw_v1_RoutersRequest, metadata: grpc.Metadata, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  routers(argument: _llmgw_v1_RoutersRequest, metadata: grpc.Metadata, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  routers(argument: _llmgw_v1_RoutersRequest, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  routers(argument: _llmgw_v1_RoutersRequest, callback: grpc.requestCallback<_llmgw_v1_RoutersReply__Output>): grpc.ClientUnaryCall;
  
  /**
   * A newer session of a node is at the caller.
   */
  Superseded(argument: _llmgw_v1_PeerSuperseded, metadata: grpc.Metadata, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  Superseded(argument: _llmgw_v1_PeerSuperseded, metadata: grpc.Metadata, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  Superseded(argument: _llmgw_v1_PeerSuperseded, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  Superseded(argument: _llmgw_v1_PeerSuperseded, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  /**
   * A newer session of a node is at the caller.
   */
  superseded(argument: _llmgw_v1_PeerSuperseded, metadata: grpc.Metadata, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  superseded(argument: _llmgw_v1_PeerSuperseded, metadata: grpc.Metadata, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  superseded(argument: _llmgw_v1_PeerSuperseded, options: grpc.CallOptions, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  superseded(argument: _llmgw_v1_PeerSuperseded, callback: grpc.requestCallback<_llmgw_v1_PeerDone__Output>): grpc.ClientUnaryCall;
  
}

export interface PeerHandlers extends grpc.UntypedServiceImplementation {
  /**
   * What the called instance's streams have heard of nodes a moment ago.
   */
  Live: grpc.handleUnaryCall<_llmgw_v1_LiveRequest__Output, _llmgw_v1_LiveReply>;
  
  /**
   * A request to an agent whose stream the called instance holds.
   */
  Request: grpc.handleServerStreamingCall<_llmgw_v1_PeerRequest__Output, _llmgw_v1_PeerChunk>;
  
  /**
   * The routers that report to the called instance.
   */
  Routers: grpc.handleUnaryCall<_llmgw_v1_RoutersRequest__Output, _llmgw_v1_RoutersReply>;
  
  /**
   * A newer session of a node is at the caller.
   */
  Superseded: grpc.handleUnaryCall<_llmgw_v1_PeerSuperseded__Output, _llmgw_v1_PeerDone>;
  
}

export interface PeerDefinition extends grpc.ServiceDefinition {
  Live: MethodDefinition<_llmgw_v1_LiveRequest, _llmgw_v1_LiveReply, _llmgw_v1_LiveRequest__Output, _llmgw_v1_LiveReply__Output>
  Request: MethodDefinition<_llmgw_v1_PeerRequest, _llmgw_v1_PeerChunk, _llmgw_v1_PeerRequest__Output, _llmgw_v1_PeerChunk__Output>
  Routers: MethodDefinition<_llmgw_v1_RoutersRequest, _llmgw_v1_RoutersReply, _llmgw_v1_RoutersRequest__Output, _llmgw_v1_RoutersReply__Output>
  Superseded: MethodDefinition<_llmgw_v1_PeerSuperseded, _llmgw_v1_PeerDone, _llmgw_v1_PeerSuperseded__Output, _llmgw_v1_PeerDone__Output>
}
