// What a node may ask of Temporal: the few methods of an activity worker, in its namespace, for its own queue and
// its own tasks. Everything else of WorkflowService is refused (a node's key can't read or start a workflow).

import { nodeQueue } from '../../contracts/ids.js';
import { MalformedMessage, replaceField, singleAt, valuesAt } from './raw-message.js';
import { unbindToken } from './task-token.js';

interface MethodRule {
  /** Field number of `namespace`; absent: the method has none. */
  namespace?: number;
  /** The queue that must be the node's own. */
  queue?: readonly number[];
  /** Queues that are only reported; where given they must be the node's own too. */
  reportedQueues?: readonly (readonly number[])[];
  /** Fields that must stay empty. */
  empty?: readonly { number: number; name: string }[];
  /** Field number of the task token in the request. */
  tokenIn?: number;
  /** Field number of the task token in the answer. */
  tokenOut?: number;
  /** Paths left out of the answer. */
  dropFromAnswer?: readonly (readonly number[])[];
}

/** Field numbers from temporal/api/workflowservice/v1/request_response.proto; a method not named is refused. */
export const RULES: Readonly<Record<string, MethodRule>> = {
  GetSystemInfo: {},
  DescribeNamespace: {
    namespace: 1,
    // The id would name a namespace that the first field doesn't.
    empty: [{ number: 2, name: 'id' }],
    // capabilities.worker_commands: the SDK would poll a Nexus queue for them, which is refused here, for ever.
    dropFromAnswer: [[1, 7, 10]],
  },
  PollActivityTaskQueue: { namespace: 1, queue: [2, 1], tokenOut: 1 },
  RespondActivityTaskCompleted: { namespace: 4, tokenIn: 1 },
  RespondActivityTaskFailed: { namespace: 4, tokenIn: 1 },
  RespondActivityTaskCanceled: { namespace: 4, tokenIn: 1 },
  RecordActivityTaskHeartbeat: { namespace: 4, tokenIn: 1 },
  // A sticky queue belongs to a workflow worker: naming one would unload another's.
  ShutdownWorker: {
    namespace: 1,
    empty: [{ number: 2, name: 'sticky_task_queue' }],
    reportedQueues: [[7], [5, 4]],
  },
  RecordWorkerHeartbeat: { namespace: 1, reportedQueues: [[3, 4]] },
};

export type Verdict =
  | { ok: true; request: Buffer }
  | { ok: false; code: 'INVALID_ARGUMENT' | 'NOT_FOUND' | 'PERMISSION_DENIED'; reason: string };

export interface Caller {
  nodeId: string;
  namespace: string;
  tokenKeys: readonly string[];
}

/** Judges one request; `request` in the verdict is what may go upstream, its task token unbound. */
export function judge(method: string, request: Buffer, caller: Caller): Verdict {
  const rule = RULES[method];
  if (rule === undefined) {
    return denied(
      `${method} is not open to nodes: node ${caller.nodeId} may only run the activities of its own queue`,
    );
  }
  try {
    return apply(method, rule, request, caller);
  } catch (error) {
    if (!(error instanceof MalformedMessage)) throw error;
    return {
      ok: false,
      code: 'INVALID_ARGUMENT',
      reason: `${method} of node ${caller.nodeId}: ${error.message}`,
    };
  }
}

function apply(method: string, rule: MethodRule, request: Buffer, caller: Caller): Verdict {
  const { nodeId } = caller;
  if (rule.namespace !== undefined) {
    const namespace = text(singleAt(request, [rule.namespace]));
    if (namespace !== caller.namespace) {
      return denied(
        `${method}: node ${nodeId} asked for namespace ${show(namespace)}, this installation is in ${show(caller.namespace)}`,
      );
    }
  }
  for (const field of rule.empty ?? []) {
    if (text(singleAt(request, [field.number])) !== '') {
      return denied(`${method}: node ${nodeId} may not set ${field.name}`);
    }
  }
  const own = nodeQueue(nodeId);
  if (rule.queue !== undefined) {
    const queue = text(singleAt(request, rule.queue));
    if (queue !== own) return denied(otherQueue(method, nodeId, own, queue));
  }
  for (const path of rule.reportedQueues ?? []) {
    const other = valuesAt(request, path)
      .map(text)
      .find(q => q !== own && q !== '');
    if (other !== undefined) return denied(otherQueue(method, nodeId, own, other));
  }
  if (rule.tokenIn === undefined) return { ok: true, request };
  const token = unbindToken(caller.tokenKeys, nodeId, singleAt(request, [rule.tokenIn]) ?? new Uint8Array());
  if (token === null) {
    // NOT_FOUND is what a server says of a task that is over: the SDK drops it without failing its worker.
    return {
      ok: false,
      code: 'NOT_FOUND',
      reason: `${method}: the task token was not given to node ${nodeId}`,
    };
  }
  return { ok: true, request: replaceField(request, rule.tokenIn, token) };
}

const denied = (reason: string): Verdict => ({ ok: false, code: 'PERMISSION_DENIED', reason });

const otherQueue = (method: string, nodeId: string, own: string, queue: string): string =>
  `${method}: the certificate is that of node ${nodeId}, whose queue is ${own}, but the queue asked for is ${show(queue)}`;

const text = (bytes: Uint8Array | null): string =>
  bytes === null ? '' : Buffer.from(bytes).toString('utf8');
const show = (value: string): string => JSON.stringify(value.slice(0, 80));
