// Loads the .proto files with the very options that proto/gen was generated with (PROTO_OPTIONS); others would make the
// types lie: fields in snake_case as in contracts/, 64-bit numbers as numbers (milliseconds and pids fit 2^53).
import { existsSync } from 'node:fs';
import path from 'node:path';
import { type GrpcObject, loadPackageDefinition } from '@grpc/grpc-js';
import { loadSync, type Options } from '@grpc/proto-loader';
import type { ProtoGrpcType } from './gen/agent.js';
import type { ProtoGrpcType as PeerGrpcType } from './gen/peer.js';

export const PROTO_OPTIONS = {
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
} as const satisfies Options;

/** The build leaves .proto files where they are: it is proto/agent.proto of this folder or of one above. */
export function protoFile(): string {
  for (let dir = import.meta.dirname; ; dir = path.dirname(dir)) {
    const file = path.join(dir, 'proto', 'agent.proto');
    if (existsSync(file)) return file;
    if (dir === path.dirname(dir))
      throw new Error(`proto/agent.proto is missing above ${import.meta.dirname}`);
  }
}

let loaded: ProtoGrpcType['llmgw']['v1'] | undefined;
let peer: PeerGrpcType['llmgw']['v1'] | undefined;

/** The Agent service and its client, loaded once. */
export function agentProto(): ProtoGrpcType['llmgw']['v1'] {
  if (loaded === undefined) {
    const definition = loadSync(protoFile(), PROTO_OPTIONS);
    loaded = (loadPackageDefinition(definition) as GrpcObject as unknown as ProtoGrpcType).llmgw.v1;
  }
  return loaded;
}

/** The service between control plane instances and its client, loaded once; an agent never does. */
export function peerProto(): PeerGrpcType['llmgw']['v1'] {
  if (peer === undefined) {
    const definition = loadSync('peer.proto', { ...PROTO_OPTIONS, includeDirs: [path.dirname(protoFile())] });
    peer = (loadPackageDefinition(definition) as GrpcObject as unknown as PeerGrpcType).llmgw.v1;
  }
  return peer;
}
