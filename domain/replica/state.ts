// The replica's state (plain JSON, carried over continue-as-new), its events and its effects. What each phase means
// stands in contracts/status.ts.
import type {
  AdoptOrder,
  ControlActivities,
  LoadProgress,
  LookedAt,
  MemberOrder,
  Prepared,
  ReadyResult,
  Spawned,
  SpawnOrder,
  StopOrder,
} from '../../contracts/activities.js';
import type { EngineEvent, FailureDigest, StopProof } from '../../contracts/engine.js';
import type {
  AdoptRequest,
  Excluded,
  GrantMember,
  LedgerMsg,
  LedgerReply,
  ProgressMsg,
} from '../../contracts/messages.js';
import type { ReplicaSpec } from '../../contracts/spec.js';
import type { MemberStatus, ReplicaPhase } from '../../contracts/status.js';

/** What follows the stop that is under way. */
export type AfterStop =
  /** The next generation at once. */
  | { next: 'renew' }
  /** The next generation after a wait (ms). */
  | { next: 'back_off'; wait: number }
  /** Cancelled: release and end. */
  | { next: 'end' }
  /** It can't work: release and fail with this. */
  | { next: 'fail'; code: string; sentence: string };

export type Outcome =
  | { kind: 'stopped'; holds: string[] }
  | { kind: 'failed'; code: string; sentence: string; digest: FailureDigest | null };

/** A member of the grant: what people see of it, and what the decisions need besides. One node has one of them. */
export interface Member extends MemberStatus {
  /** What the node said of it when it prepared, or took it over; null: not answered yet. */
  prepared: Pick<Prepared, 'mgmt_addr' | 'engine_version' | 'launch_mode'> | null;
  /** Why its order came to nothing; the generation ends when the other members have answered too. */
  refused: { code: string; sentence: string; delivered: boolean } | null;
  /** Of its stop (INV-2). */
  proof: StopProof | null;
  /** What its stop order was answered with instead of a proof; null: no answer yet. */
  unproven: { sentence: string; leaked: boolean } | null;
  /** Its stop is not waited for: the hold was left to the ledger (INV-1), or ended by an operator's word. */
  gone: { how: 'left' | 'forgotten'; why: string } | null;
  /** An await_ready of it is under way. */
  watched: boolean;
  /** When it was last told to make no progress (INV-9). */
  stalled_at: number | null;
  loads: Omit<LoadProgress, 'at'> | null;
}

/** The node of a member is lost since `at`. */
export interface Loss {
  node: string;
  at: number;
  /** When it is replaced; null: never, or it is left already. */
  until: number | null;
  said: string;
  /** The reason that was shown before any node was lost. */
  before: string;
}

export interface ReplicaState {
  v: 1;
  name: string;
  first_run_id: string;
  /** This run and the one that it continues, set by each run: the ledger tells a reset by them. */
  run_id: string;
  continued_run_id: string | null;
  spec: ReplicaSpec;
  phase: ReplicaPhase;
  reason: string;
  since: number;
  deadline: number | null;
  /** For people: 1, 2, 3… Orders carry the fence. */
  generation: number;
  /** Fence of the grant that is held; null: none. */
  fence: number | null;
  /** Highest fence of a grant that this run took. */
  last_fence: number;
  grant: { members: GrantMember[]; why: string; fabric?: string | null } | null;
  /** Key of the reserve that is waited for. */
  reserving: string | null;
  /** Key of the assertion that isn't answered yet. */
  asserting: string | null;
  /** An engine that another run left is being taken over. */
  claiming: boolean;
  /** A process that llmgw didn't start is to be taken over; `slots`: what it was seen to have. */
  adopt: (AdoptRequest & { slots: number[] | null }) | null;
  /** An operator adopts an engine of this very name: it is taken as it is, or let be; nothing is started in its place. */
  adopt_own: boolean;
  /** The spec as it was given, for people who deploy it again. */
  given: Record<string, unknown>;
  lost: Loss[];
  keys: number;
  /** In rank order. */
  members: Member[];
  endpoint: string | null;
  /** Public id of the engine key's master; null: the engine has no key. */
  key_id: string | null;
  /** The node's own stop_timeout and gpu_release_timeout together, ms; null: not told. */
  stop_ms: number | null;
  /** Stops in a row that the node did not answer or refused. */
  stop_tries: number;
  progress: LoadProgress | null;
  /** Nodes where this spec was refused, with the sentence. Cleared by ready, apply and restart. */
  exclude: Excluded[];
  /** Times of counted failures within restart.window. */
  failures: number[];
  /** A port conflict is spared once until ready. */
  port_conflict_spared: boolean;
  /** This generation has been ready. */
  was_ready: boolean;
  /** Some generation of this spec has been ready. */
  ever_ready: boolean;
  /** `node`: where that member was; absent in a state of an older release. */
  last_failure: (FailureDigest & { member: number; node?: string }) | null;
  /**
   * The failure that the stop under way follows from: when it was, and what was counted before it. An exit that was
   * earlier and is heard later takes its place (INV-10). null: nothing that is heard now changes what follows.
   */
  failing: { at: number; earlier: number[]; spared: boolean } | null;
  after_stop: AfterStop | null;
  /** Set by cancel: nothing starts again. */
  cancelled: boolean;
  /** Highest seq of engine events by fence/rank: told again, they are dropped. */
  seen: Record<string, number>;
  /** Key of the endpoint message whose ack brings the version to drain. */
  draining_key: string | null;
  outcome: Outcome | null;
  journal: { at: number; text: string }[];
}

export type ReplicaEvent =
  | { type: 'started' }
  /** A run that continues another one. */
  | { type: 'resumed' }
  | { type: 'ledger'; reply: LedgerReply }
  /** The one member was started, or a member was taken over. */
  | { type: 'launched'; fence: number; rank: number; result: Prepared & Spawned }
  | ({ type: 'launch_failed' } & OrderFailed)
  | { type: 'prepared'; fence: number; rank: number; result: Prepared }
  | ({ type: 'prepare_failed' } & OrderFailed)
  | { type: 'spawned'; fence: number; rank: number; result: Spawned }
  | ({ type: 'spawn_failed' } & OrderFailed)
  /** The engine that was to be claimed or adopted is not to be had. */
  | { type: 'adopt_failed'; fence: number; rank: number; code: string; sentence: string }
  | { type: 'looked'; result: LookedAt }
  | { type: 'look_failed'; code: string; sentence: string }
  | { type: 'ready_result'; fence: number; rank: number; result: ReadyResult }
  | { type: 'progress'; msg: ProgressMsg }
  /** A signal that hasn't its shape. */
  | { type: 'ignored'; what: string; fault: string }
  | { type: 'engine'; event: EngineEvent }
  /** Of the members that have answered so. */
  | { type: 'stopped'; fence: number; proofs: { node: string; proof: StopProof }[] }
  /** `leaked`: the node answered that the proof can't be had; else it doesn't answer. */
  | { type: 'stop_failed'; fence: number; node: string; sentence: string; leaked: boolean }
  /** `heard` false: no control plane instance answered; the time was waited out. */
  | { type: 'drained'; fence: number; drained: boolean; outstanding: number; heard: boolean }
  | { type: 'timer'; id: TimerId }
  | { type: 'apply'; spec: ReplicaSpec; given?: Record<string, unknown> }
  | { type: 'restart'; by: string }
  | { type: 'cancel' };

/** `delivered` false: no attempt ever reached the node, so nothing was started there by this order. */
export interface OrderFailed {
  fence: number;
  rank: number;
  code: string;
  sentence: string;
  delivered: boolean;
}

export type TimerId = 'back_off' | 'pending' | 'exclusion' | 'stop_again' | 'node_loss';
export type Op = 'launch' | 'prepare' | 'spawn' | 'adopt' | 'await_ready' | 'drain';

export type ReplicaEffect =
  | { do: 'ledger'; msg: LedgerMsg }
  | { do: 'launch'; node: string; order: MemberOrder }
  | { do: 'prepare'; node: string; order: MemberOrder }
  | { do: 'spawn'; node: string; order: SpawnOrder }
  | { do: 'adopt'; node: string; order: AdoptOrder }
  | { do: 'look'; node: string; process: { pid: number; port: number } }
  | { do: 'await_ready'; node: string; order: MemberOrder }
  | { do: 'drain'; queues: string[]; input: Parameters<ControlActivities['await_drained']>[0] }
  /** `bound_ms`: how long it is tried before the domain hears of it. */
  | { do: 'stop'; bound_ms: number; orders: { node: string; order: StopOrder }[] }
  /** Stop waiting for an operation, of whichever members; its late result is ignored by its fence. */
  | { do: 'abort'; op: Op }
  | { do: 'timer'; id: TimerId; ms: number }
  | { do: 'clear_timer'; id: TimerId };

export function initialReplica(
  spec: ReplicaSpec,
  firstRunId: string,
  now: number,
  adopt: AdoptRequest | null = null,
): ReplicaState {
  return {
    v: 1,
    name: spec.name,
    first_run_id: firstRunId,
    run_id: firstRunId,
    continued_run_id: null,
    spec,
    phase: 'pending',
    reason: 'asking the ledger for GPUs',
    since: now,
    deadline: null,
    generation: 0,
    fence: null,
    last_fence: 0,
    grant: null,
    reserving: null,
    asserting: null,
    claiming: false,
    adopt: adopt === null ? null : { ...adopt, slots: null },
    adopt_own: false,
    given: { ...spec },
    lost: [],
    keys: 0,
    members: [],
    endpoint: null,
    key_id: null,
    stop_ms: null,
    stop_tries: 0,
    progress: null,
    exclude: [],
    failures: [],
    port_conflict_spared: false,
    was_ready: false,
    ever_ready: false,
    last_failure: null,
    failing: null,
    after_stop: null,
    cancelled: false,
    seen: {},
    draining_key: null,
    outcome: null,
    journal: [],
  };
}
