// What a node may ask of Temporal: the few methods of an activity worker, in its namespace, for its own queue and
// its own tasks. Everything else of WorkflowService is refused (a node's key can't read or start a workflow).

import { nodeQueue } from '../../contracts/ids.js';
import { editFields, MalformedMessage, setField, singleAt, valuesAt } from './raw-message.js';
import { unbindToken } from './task-token.js';

interface MethodRule {
  /**
   * Numbers of the fields that go upstream. All others stay here, those that this build doesn't know included: a
   * newer Temporal might read a queue, a worker or a task from them that no rule has looked at.
   */
  pass: readonly number[];
  /** Whether the request carries what activities give back; all others are short. */
  payloads?: boolean;
  /** Waits upstream until there is a task. */
  poll?: boolean;
  /** Field number of `namespace`; absent: the method has none. */
  namespace?: number;
  /** Field number of `identity`: it goes upstream as the node id, so that histories and lists of workers don't lie. */
  identity?: number;
  /** Field number of the TaskQueue that must be the node's own. */
  queue?: number;
  /** Field number of a queue's name that is only reported; where given it must be the node's own too. */
  reportedQueue?: number;
  /** Field number of the WorkerHeartbeats. */
  heartbeats?: number;
  /** Fields that must stay empty. */
  empty?: readonly { number: number; name: string }[];
  /** Field number of the task token in the request. */
  tokenIn?: number;
  /** Field number of the task token in the answer. */
  tokenOut?: number;
  /** Paths left out of the answer. */
  dropFromAnswer?: readonly (readonly number[])[];
}

/** What ends a task has the same first five fields in all of its forms: token, payload, identity, namespace, version. */
const TASK = { namespace: 4, identity: 3, tokenIn: 1, payloads: true } as const;

/** Field numbers from temporal/api/workflowservice/v1/request_response.proto; a method not named is refused. */
export const RULES: Readonly<Record<string, MethodRule>> = {
  GetSystemInfo: { pass: [] },
  DescribeNamespace: {
    pass: [1, 3],
    namespace: 1,
    // The id would name a namespace that the first field doesn't.
    empty: [{ number: 2, name: 'id' }],
    // capabilities.worker_commands: the SDK would poll a Nexus queue for them, which is refused here, for ever.
    dropFromAnswer: [[1, 7, 10]],
  },
  // Not 5 and 6: a versioned poll makes Temporal start workflows of its own. Not 9: a queue that Temporal sends to.
  PollActivityTaskQueue: {
    pass: [1, 2, 3, 4, 8, 10],
    poll: true,
    namespace: 1,
    identity: 3,
    queue: 2,
    tokenOut: 1,
  },
  RespondActivityTaskCompleted: { ...TASK, pass: [1, 2, 3, 4, 5] },
  RespondActivityTaskFailed: { ...TASK, pass: [1, 2, 3, 4, 5, 6] },
  RespondActivityTaskCanceled: { ...TASK, pass: [1, 2, 3, 4, 5] },
  RecordActivityTaskHeartbeat: { ...TASK, pass: [1, 2, 3, 4] },
  // A sticky queue belongs to a workflow worker: naming one would unload another's.
  ShutdownWorker: {
    pass: [1, 3, 4, 5, 6, 7, 8],
    namespace: 1,
    identity: 3,
    empty: [{ number: 2, name: 'sticky_task_queue' }],
    reportedQueue: 7,
    heartbeats: 5,
  },
  RecordWorkerHeartbeat: { pass: [1, 2, 3], namespace: 1, identity: 2, heartbeats: 3 },
};

/** Of requests without payloads; real ones have some hundred bytes, a worker's heartbeat a few thousand. */
const SHORT_REQUEST = 64 * 1024;
/** An agent has one worker, and two while its certificate is replaced. */
const MAX_HEARTBEATS = 16;
/** Field numbers within temporal.api.taskqueue.v1.TaskQueue and temporal.api.worker.v1.WorkerHeartbeat. */
const TASK_QUEUE = { name: 1, normalName: 3 } as const;
const HEARTBEAT = { identity: 2, queue: 4 } as const;
/** TaskQueue.kind = TASK_QUEUE_KIND_NORMAL. */
const KIND_NORMAL = Buffer.from([0x10, 1]);

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
  if (rule === undefined) return denied(notOpen(method, caller.nodeId));
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

/** Why a method without a rule is refused. */
export const notOpen = (method: string, nodeId: string): string =>
  `${method} is not open to nodes: node ${nodeId} may only run the activities of its own queue`;

function apply(method: string, rule: MethodRule, request: Buffer, caller: Caller): Verdict {
  const { nodeId } = caller;
  if (rule.payloads !== true && request.length > SHORT_REQUEST) {
    throw new MalformedMessage(`it has ${request.length} bytes, ${SHORT_REQUEST} are allowed`);
  }
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
  const other = foreignQueue(rule, request, own);
  if (other !== null) return denied(otherQueue(method, nodeId, own, other));
  if (rule.tokenIn === undefined) return { ok: true, request: rewritten(rule, request, nodeId, null) };
  const token = unbindToken(caller.tokenKeys, nodeId, singleAt(request, [rule.tokenIn]) ?? new Uint8Array());
  if (token === null) {
    // NOT_FOUND is what a server says of a task that is over: the SDK drops it without failing its worker.
    return {
      ok: false,
      code: 'NOT_FOUND',
      reason: `${method}: the task token was not given to node ${nodeId}`,
    };
  }
  return { ok: true, request: rewritten(rule, request, nodeId, token) };
}

/** A queue in the request that isn't the node's own; null: there is none. */
function foreignQueue(rule: MethodRule, request: Buffer, own: string): string | null {
  if (rule.queue !== undefined) {
    const queue = text(singleAt(request, [rule.queue, TASK_QUEUE.name]));
    if (queue !== own) return queue;
  }
  const heartbeats = rule.heartbeats === undefined ? [] : valuesAt(request, [rule.heartbeats]);
  if (heartbeats.length > MAX_HEARTBEATS) {
    throw new MalformedMessage(`it reports ${heartbeats.length} workers, ${MAX_HEARTBEATS} are allowed`);
  }
  const named = [
    ...(rule.queue === undefined ? [] : valuesAt(request, [rule.queue, TASK_QUEUE.normalName])),
    ...(rule.reportedQueue === undefined ? [] : valuesAt(request, [rule.reportedQueue])),
    ...heartbeats.flatMap(heartbeat => valuesAt(heartbeat, [HEARTBEAT.queue])),
  ];
  return named.map(text).find(queue => queue !== own && queue !== '') ?? null;
}

/** What goes upstream: the fields that may, with queue, token and names made by this proxy, not copied. */
function rewritten(rule: MethodRule, request: Buffer, nodeId: string, token: Buffer | null): Buffer {
  const id = Buffer.from(nodeId);
  const out = editFields(request, (number, value) => {
    if (!rule.pass.includes(number)) return null;
    if (number === rule.queue) return value === null ? null : ownTaskQueue(nodeId);
    if (number === rule.heartbeats) return value === null ? null : setField(value, HEARTBEAT.identity, id);
    if (number === rule.tokenIn) return value === null ? null : token;
    return 'keep';
  });
  return rule.identity === undefined ? out : setField(out, rule.identity, id);
}

/** Always of the kind NORMAL: a sticky queue would be looked up under another one's name. */
const ownTaskQueue = (nodeId: string): Buffer =>
  Buffer.concat([setField(new Uint8Array(), TASK_QUEUE.name, Buffer.from(nodeQueue(nodeId))), KIND_NORMAL]);

const denied = (reason: string): Verdict => ({ ok: false, code: 'PERMISSION_DENIED', reason });

const otherQueue = (method: string, nodeId: string, own: string, queue: string): string =>
  `${method}: the certificate is that of node ${nodeId}, whose queue is ${own}, but the queue asked for is ${show(queue)}`;

const text = (bytes: Uint8Array | null): string =>
  bytes === null ? '' : Buffer.from(bytes).toString('utf8');
const show = (value: string): string => JSON.stringify(value.slice(0, 80));
