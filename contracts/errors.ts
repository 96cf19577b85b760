// The one catalogue of errors that cross a boundary: the code is the `type` of an ApplicationFailure, the `code` of
// an HTTP error body and of a gRPC status detail. Nothing else may be thrown across (a test compares this table with
// docs/errors.md).

export interface ErrorEntry {
  /** Whether the same call may succeed later without anybody changing anything. */
  retryable: boolean;
  /** HTTP status at the operators' API. */
  http: number;
  /** What an operator does next. */
  hint: string;
}

export const ERRORS = {
  SPEC_INVALID: {
    retryable: false,
    http: 422,
    hint: 'Correct the named paths of the spec and submit it again.',
  },
  DOES_NOT_FIT: {
    retryable: false,
    http: 409,
    hint: 'See what the sentence names; `llmgw ctl nodes` shows what is free.',
  },
  REPLICA_FAILED: {
    retryable: false,
    http: 409,
    hint: 'Read the sentence and `llmgw ctl replica logs NAME`, correct the cause, start it again.',
  },
  REPLICA_NOT_FOUND: { retryable: false, http: 404, hint: '`llmgw ctl replicas` lists what there is.' },
  REPLICA_ENDING: {
    retryable: false,
    http: 409,
    hint: 'It is being stopped; start it again when it has ended.',
  },
  NODE_NOT_FOUND: { retryable: false, http: 404, hint: '`llmgw ctl nodes` lists what there is.' },
  NODE_UNREACHABLE: {
    retryable: true,
    http: 503,
    hint: 'The agent has no stream open; look at its log and `systemctl status llmgw-agent`.',
  },
  STALE_FENCE: {
    retryable: false,
    http: 409,
    hint: 'A newer generation owns this replica on the node; nothing to do.',
  },
  FENCE_CONFLICT: {
    retryable: false,
    http: 409,
    hint: 'The same fence came with different content; report it with the workflow history.',
  },
  GPU_HELD: { retryable: false, http: 409, hint: 'Another engine holds the GPU; the sentence names it.' },
  GPU_GONE: {
    retryable: false,
    http: 409,
    hint: 'The granted GPU is no longer usable on the node; see `llmgw ctl node show`.',
  },
  FABRIC_DOWN: {
    retryable: false,
    http: 409,
    hint: 'Mend the InfiniBand ports that the sentence names, or correct `fabrics` in agent.yaml on the node.',
  },
  MGMT_ADDR_UNUSABLE: {
    retryable: false,
    http: 409,
    hint: 'Correct mgmt_addr and mgmt_interface in agent.yaml on the node: the members of a multi-node replica meet there.',
  },
  MEMBERS_DIFFER: {
    retryable: false,
    http: 409,
    hint: 'Give the engine the same version and launch_mode on all nodes that the replica may have.',
  },
  GPU_LEAKED: {
    retryable: true,
    http: 409,
    hint: 'Processes still hold the GPU; the sentence names their pids.',
  },
  ENGINE_MISSING: {
    retryable: false,
    http: 409,
    hint: 'Add the engine to agent.yaml on the node, or correct `engine` in the spec.',
  },
  ENGINE_BROKEN: { retryable: false, http: 409, hint: 'Run the named binary by hand on the node.' },
  MODEL_MISSING: {
    retryable: false,
    http: 409,
    hint: 'Put the model at that path on the node, or correct `model`.',
  },
  SECRET_MISSING: { retryable: false, http: 409, hint: 'Put the file into secrets_dir on the node.' },
  FLAG_UNKNOWN: {
    retryable: false,
    http: 409,
    hint: 'The installed engine version does not know the flag; correct `args`.',
  },
  ENGINE_UNFIT: {
    retryable: false,
    http: 409,
    hint: 'Correct what the sentence names in the spec, or name an engine of another type.',
  },
  PORTS_EXHAUSTED: { retryable: true, http: 409, hint: 'Widen supervisor.ports in agent.yaml.' },
  NO_SPACE: { retryable: true, http: 409, hint: 'Free space in supervisor.work_dir on the node.' },
  SPAWN_FAILED: {
    retryable: true,
    http: 409,
    hint: 'The sentence has the system error; look at the agent log.',
  },
  ENGINE_FAILED: {
    retryable: false,
    http: 409,
    hint: 'The sentence has the line of the engine log that explains it.',
  },
  NO_PROGRESS: {
    retryable: true,
    http: 409,
    hint: 'Look at the last lines of its log; raise no_progress_timeout if it was loading all the same.',
  },
  ENGINE_HUNG: {
    retryable: true,
    http: 409,
    hint: 'It is stopped and started again; look at its evidence, at the GPUs, and for a stuck collective (NCCL).',
  },
  ENGINE_UNKNOWN: {
    retryable: false,
    http: 404,
    hint: 'The node has no such engine; it was never started there or is already cleared.',
  },
  ADOPT_REFUSED: {
    retryable: false,
    http: 409,
    hint: 'Name a running process of the node, the port that it listens on, and a spec that fits it.',
  },
  NODE_IN_USE: {
    retryable: false,
    http: 409,
    hint: 'It, or an engine of it, answers: only a node of which nothing runs any more is forgotten. End its engines first.',
  },
  STOP_INCOMPLETE: {
    retryable: true,
    http: 409,
    hint: 'The engine tree or its GPU memory is still there; the sentence names the pids.',
  },
  UNAUTHENTICATED: { retryable: false, http: 401, hint: 'Give --token-file or LLMGW_TOKEN_FILE.' },
  BAD_REQUEST: { retryable: false, http: 400, hint: 'Correct the request as the message says.' },
  UNAVAILABLE: {
    retryable: true,
    http: 503,
    hint: 'Temporal or its worker does not answer; `llmgw temporal operator cluster health` tells which.',
  },
  INTERNAL: { retryable: true, http: 500, hint: 'A bug of llmgw: report it with the log around this time.' },
} as const satisfies Record<string, ErrorEntry>;

export type ErrorCode = keyof typeof ERRORS;

export const isErrorCode = (s: string | null | undefined): s is ErrorCode =>
  s != null && Object.hasOwn(ERRORS, s);

/** An error with a catalogued code, inside one process; each edge (activity, HTTP, CLI) maps it once. */
export class LlmgwError extends Error {
  readonly code: ErrorCode;
  readonly details: unknown;
  constructor(code: ErrorCode, message: string, opts: { details?: unknown; cause?: unknown } = {}) {
    super(message, opts.cause === undefined ? undefined : { cause: opts.cause });
    this.name = 'LlmgwError';
    this.code = code;
    this.details = opts.details;
  }
}

/** Body of every HTTP error: `{error: {code, message, hint}}`. */
export interface ErrorBody {
  error: { code: ErrorCode; message: string; hint: string };
}

export const errorBody = (code: ErrorCode, message: string): ErrorBody => ({
  error: { code, message, hint: ERRORS[code].hint },
});
