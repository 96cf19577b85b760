// A stand-in for Temporal's frontend: answers every method of WorkflowService with what the test set, on raw bytes,
// and remembers what came.

import * as grpc from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';

const SERVICE = 'temporal.api.workflowservice.v1.WorkflowService';
const raw = (bytes: Buffer): Buffer => bytes;

export interface UpstreamCall {
  method: string;
  request: Buffer;
  metadata: Record<string, unknown>;
  /** Milliseconds left when it came; Infinity without a deadline. */
  deadlineMs: number;
  cancelled: Promise<void>;
  /** Answers a call that was left to hang. */
  answer: (answer: Buffer | Partial<grpc.StatusObject>) => void;
  /** The connection it came over. */
  peer: string;
}

export interface FakeUpstream {
  address: string;
  calls: UpstreamCall[];
  /** The answer by method: bytes, a failure, or 'hang'. Default: an empty message. */
  answers: Map<string, Buffer | Partial<grpc.StatusObject> | 'hang'>;
  close(): void;
}

/** `at`: a host:port to take again after a stop; default: any free port. Takes 100 streams a connection, as proxies do. */
export async function startFakeUpstream(at = '127.0.0.1:0'): Promise<FakeUpstream> {
  const calls: UpstreamCall[] = [];
  const answers: FakeUpstream['answers'] = new Map();
  const { methods } = temporalProto.temporal.api.workflowservice.v1.WorkflowService as unknown as {
    methods: Record<string, unknown>;
  };
  const definition: Record<string, grpc.MethodDefinition<Buffer, Buffer>> = {};
  const implementation: grpc.UntypedServiceImplementation = {};
  for (const method of Object.keys(methods)) {
    definition[method] = {
      path: `/${SERVICE}/${method}`,
      requestStream: false,
      responseStream: false,
      requestSerialize: raw,
      requestDeserialize: raw,
      responseSerialize: raw,
      responseDeserialize: raw,
    };
    implementation[method] = (
      call: grpc.ServerUnaryCall<Buffer, Buffer>,
      callback: grpc.sendUnaryData<Buffer>,
    ) => {
      const cancelled = new Promise<void>(resolve => call.on('cancelled', () => resolve()));
      const deadlineMs = Number(call.getDeadline()) - Date.now();
      const reply = (answer: Buffer | Partial<grpc.StatusObject>): void => {
        if (Buffer.isBuffer(answer)) callback(null, answer);
        else callback(answer);
      };
      calls.push({
        method,
        request: call.request,
        metadata: call.metadata.getMap(),
        deadlineMs,
        cancelled,
        answer: reply,
        peer: call.getPeer(),
      });
      const answer = answers.get(method) ?? Buffer.alloc(0);
      if (answer !== 'hang') reply(answer);
    };
  }
  const server = new grpc.Server({
    'grpc.max_receive_message_length': -1,
    'grpc.max_send_message_length': -1,
  });
  server.addService(definition, implementation);
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync(at, grpc.ServerCredentials.createInsecure(), (error, bound) =>
      error === null ? resolve(bound) : reject(error),
    ),
  );
  return { address: `127.0.0.1:${port}`, calls, answers, close: () => server.forceShutdown() };
}
