// Temporal's WorkflowService as the control plane offers it to nodes, on the same address as the agents' stream:
// every method is registered, so that a refusal is ours and names method and node; the few of an activity worker
// are handed on as raw bytes, with deadline and cancellation.

import * as grpc from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import type { Logger } from 'pino';
import { type InsecureIdentity, identifyNode } from './caller.js';
import { dropField, MalformedMessage, replaceField, singleAt } from './raw-message.js';
import { judge, RULES } from './rules.js';
import { bindToken } from './task-token.js';
import { connectUpstream, MAX_MESSAGE_BYTES, type UpstreamOptions } from './upstream.js';

export interface TemporalProxyOptions {
  upstream: UpstreamOptions;
  /** The one namespace that nodes may name. */
  namespace: string;
  /** 64 hex digits each: the current key binds, all of them are accepted back. */
  tokenKeys: readonly [string, ...string[]];
  log: Pick<Logger, 'info' | 'warn'>;
  /** Only where the server has no TLS; default: a certificate is required. */
  insecureIdentity?: InsecureIdentity;
}

export interface TemporalProxy {
  service: grpc.ServiceDefinition;
  implementation: grpc.UntypedServiceImplementation;
  /** Ends the calls in flight (the agents see UNAVAILABLE and come again) and the connections to Temporal. */
  close(): void;
}

/** What the grpc server that carries the proxy must be created with. */
export const PROXY_SERVER_OPTIONS: grpc.ServerOptions = {
  'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
  'grpc.max_send_message_length': MAX_MESSAGE_BYTES,
};

const SERVICE = 'temporal.api.workflowservice.v1.WorkflowService';
/** The only request metadata that goes upstream: what Temporal reads to know the SDK's abilities. */
const METADATA_UP = ['client-name', 'client-version', 'supported-server-versions', 'supported-features'];
/** The details of a failure (failure type, retry hints), which the SDK acts on. */
const METADATA_DOWN = ['grpc-status-details-bin'];

const identity = (bytes: Buffer): Buffer => bytes;

export function temporalProxyService(options: TemporalProxyOptions): TemporalProxy {
  const upstream = connectUpstream(options.upstream);
  const inFlight = new Set<{ cancel: () => void; refuse: () => void }>();
  const [currentKey] = options.tokenKeys;

  function handle(method: string, call: Call, callback: grpc.sendUnaryData<Buffer>): void {
    const refuse = (code: keyof typeof grpc.status, reason: string): void => {
      options.log.warn({ method, peer: call.getPeer(), code }, reason);
      callback({ code: grpc.status[code], details: reason });
    };
    const caller = identifyNode(call, options.insecureIdentity ?? false);
    if (!caller.ok) {
      refuse(caller.code, `${method}: ${caller.reason}`);
      return;
    }
    const { nodeId } = caller;
    const { namespace, tokenKeys } = options;
    const verdict = judge(method, call.request, { nodeId, namespace, tokenKeys });
    if (verdict.ok) handOn(method, nodeId, verdict.request, call, callback);
    else refuse(verdict.code, verdict.reason);
  }

  function handOn(
    method: string,
    nodeId: string,
    request: Buffer,
    call: Call,
    callback: grpc.sendUnaryData<Buffer>,
  ): void {
    const metadata = only(METADATA_UP, call.metadata);
    metadata.set('temporal-namespace', options.namespace);
    const running = upstream.call(
      `/${SERVICE}/${method}`,
      request,
      metadata,
      call.getDeadline(),
      (error, answer) => {
        if (!inFlight.delete(entry)) return; // answered by close()
        if (error !== null || answer === undefined) callback(passedOn(error));
        else answerNode(method, nodeId, answer, callback);
      },
    );
    const entry = {
      cancel: () => running.cancel(),
      refuse: () => callback({ code: grpc.status.UNAVAILABLE, details: 'this control plane instance stops' }),
    };
    inFlight.add(entry);
    // A poll left open upstream would be handed a task that nobody is there to run.
    call.on('cancelled', entry.cancel);
    if (call.cancelled) entry.cancel();
  }

  function answerNode(
    method: string,
    nodeId: string,
    answer: Buffer,
    callback: grpc.sendUnaryData<Buffer>,
  ): void {
    let rewritten: Buffer;
    try {
      rewritten = rewriteAnswer(method, nodeId, answer);
    } catch (error) {
      if (!(error instanceof MalformedMessage)) throw error;
      callback({ code: grpc.status.INTERNAL, details: `Temporal's answer to ${method}: ${error.message}` });
      return;
    }
    callback(null, rewritten);
  }

  function rewriteAnswer(method: string, nodeId: string, answer: Buffer): Buffer {
    const rule = RULES[method] ?? {};
    let out = answer;
    for (const path of rule.dropFromAnswer ?? []) out = dropField(out, path);
    if (rule.tokenOut === undefined) return out;
    // A poll that ended without a task has no token.
    const token = singleAt(out, [rule.tokenOut]);
    if (token === null || token.length === 0) return out;
    return replaceField(out, rule.tokenOut, bindToken(currentKey, nodeId, token));
  }

  const methods = methodNames();
  return {
    service: Object.fromEntries(methods.map(method => [method, definition(method)])),
    implementation: Object.fromEntries(
      methods.map(method => [
        method,
        (call: Call, callback: grpc.sendUnaryData<Buffer>) => handle(method, call, callback),
      ]),
    ),
    close() {
      const entries = [...inFlight];
      inFlight.clear();
      for (const entry of entries) {
        entry.refuse();
        entry.cancel();
      }
      upstream.close();
    },
  };
}

type Call = grpc.ServerUnaryCall<Buffer, Buffer>;

function methodNames(): string[] {
  // The generated class is a namespace of reflection objects at run time; its types show only the client.
  const service = temporalProto.temporal.api.workflowservice.v1.WorkflowService as unknown as {
    methods: Record<string, unknown>;
  };
  return Object.keys(service.methods);
}

function definition(method: string): grpc.MethodDefinition<Buffer, Buffer> {
  return {
    path: `/${SERVICE}/${method}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: identity,
    requestDeserialize: identity,
    responseSerialize: identity,
    responseDeserialize: identity,
  };
}

function only(names: readonly string[], from: grpc.Metadata): grpc.Metadata {
  const to = new grpc.Metadata();
  for (const name of names) for (const value of from.get(name)) to.add(name, value);
  return to;
}

function passedOn(error: grpc.ServiceError | null): Partial<grpc.StatusObject> {
  if (error === null) return { code: grpc.status.INTERNAL, details: 'Temporal answered without a message' };
  return { code: error.code, details: error.details, metadata: only(METADATA_DOWN, error.metadata) };
}
