// Temporal's WorkflowService as the control plane offers it to nodes, on the same address as the agents' stream:
// every method is registered, so that a refusal is ours and names method and node; the few of an activity worker
// are handed on, with deadline and cancellation. A message is read only after its caller may send it.

import * as grpc from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import type { Logger } from 'pino';
import { Admission, NODE_LIMITS, type NodeLimits } from './admission.js';
import { type InsecureIdentity, identifyNode } from './caller.js';
import { dropField, MalformedMessage, replaceField, singleAt } from './raw-message.js';
import { type Call, receiveOne } from './receive.js';
import { RefusalLog } from './refusal-log.js';
import { judge, notOpen, RULES } from './rules.js';
import { bindToken } from './task-token.js';
import type { TokenKeys } from './token-keys.js';
import { connectUpstream, MAX_MESSAGE_BYTES, type UpstreamOptions } from './upstream.js';

export interface TemporalProxyOptions {
  upstream: UpstreamOptions;
  /** The one namespace that nodes may name. */
  namespace: string;
  /** 64 hex digits each: the current key binds, all of them are accepted back. A function is asked at each use. */
  tokenKeys: TokenKeys | (() => TokenKeys);
  log: Pick<Logger, 'info' | 'warn'>;
  /** Only where the server has no TLS; default: a certificate is required. */
  insecureIdentity?: InsecureIdentity;
  /** What differs from NODE_LIMITS. */
  limits?: Partial<NodeLimits>;
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
/** A version or a list of features: something longer could break the connection that all nodes' calls share. */
const METADATA_VALUE_MAX = 1_024;
/** No call of an SDK is longer (polls 70 s, others 30 s); one without a deadline would stay for ever. */
const LONGEST_CALL_MS = 120_000;
/** The details of a failure (failure type, retry hints), which the SDK acts on. */
const METADATA_DOWN = ['grpc-status-details-bin'];

const identity = (bytes: Buffer): Buffer => bytes;

export function temporalProxyService(options: TemporalProxyOptions): TemporalProxy {
  const upstream = connectUpstream(options.upstream);
  const inFlight = new Set<{ cancel: () => void; refuse: () => void }>();
  const { tokenKeys, namespace } = options;
  const keys = typeof tokenKeys === 'function' ? tokenKeys : () => tokenKeys;
  const admission = new Admission({ ...NODE_LIMITS, ...options.limits });
  const refusals = new RefusalLog(options.log);

  function handle(method: string, call: Call, callback: grpc.sendUnaryData<Buffer>): void {
    const peer = call.getPeer();
    let node: string | null = null;
    const refuse = (code: keyof typeof grpc.status, reason: string): void => {
      refusals.write({ method, node, peer, code }, reason);
      callback({ code: grpc.status[code], details: reason });
    };
    const caller = identifyNode(call, options.insecureIdentity ?? false);
    if (!caller.ok) {
      refuse(caller.code, `${method}: ${caller.reason}`);
      return;
    }
    const { nodeId } = caller;
    node = nodeId;
    const rule = RULES[method];
    if (rule === undefined) {
      refuse('PERMISSION_DENIED', notOpen(method, nodeId));
      return;
    }
    const entry = admission.enter(nodeId, rule.poll === true);
    if (!entry.ok) {
      refuse('RESOURCE_EXHAUSTED', `${method}: ${entry.reason}`);
      return;
    }
    // However the call ends, grpc-js tells it so, after the answer has left or when the connection is gone.
    call.on('cancelled', entry.leave);
    receiveOne(call, entry, request => {
      if (request === null) {
        refuse('INVALID_ARGUMENT', `${method}: one message is expected`);
        return;
      }
      const verdict = judge(method, request, { nodeId, namespace, tokenKeys: keys() });
      if (verdict.ok) handOn(method, nodeId, verdict.request, call, callback);
      else refuse(verdict.code, verdict.reason);
    });
  }

  function handOn(
    method: string,
    nodeId: string,
    request: Buffer,
    call: Call,
    callback: grpc.sendUnaryData<Buffer>,
  ): void {
    const metadata = only(METADATA_UP, call.metadata, METADATA_VALUE_MAX);
    metadata.set('temporal-namespace', namespace);
    const running = upstream.call(
      `/${SERVICE}/${method}`,
      request,
      metadata,
      Math.min(Number(call.getDeadline()), Date.now() + LONGEST_CALL_MS),
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
    const { dropFromAnswer = [], tokenOut } = RULES[method] ?? { pass: [] };
    let out = answer;
    for (const path of dropFromAnswer) out = dropField(out, path);
    if (tokenOut === undefined) return out;
    // A poll that ended without a task has no token.
    const token = singleAt(out, [tokenOut]);
    if (token === null || token.length === 0) return out;
    return replaceField(out, tokenOut, bindToken(keys()[0], nodeId, token));
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
    requestStream: true,
    responseStream: false,
    requestSerialize: identity,
    requestDeserialize: identity,
    responseSerialize: identity,
    responseDeserialize: identity,
  };
}

function only(names: readonly string[], from: grpc.Metadata, maxLength = Infinity): grpc.Metadata {
  const to = new grpc.Metadata();
  for (const name of names) {
    for (const value of from.get(name)) if (value.length <= maxLength) to.add(name, value);
  }
  return to;
}

function passedOn(error: grpc.ServiceError | null): Partial<grpc.StatusObject> {
  if (error === null) return { code: grpc.status.INTERNAL, details: 'Temporal answered without a message' };
  return { code: error.code, details: error.details, metadata: only(METADATA_DOWN, error.metadata) };
}
