// Every time that ties two parts together, in ms, with what bounds it. test/contracts/timing.test.ts checks the
// inequalities: change a number here and the test says what it breaks.

export const TIMING = {
  /** Agent → control plane; agent.yaml's heartbeat_interval default. */
  heartbeatInterval: 5_000,
  /** Intervals without a heartbeat after which a node is `silent`. More than one: a lost packet is no silence. */
  silentAfterIntervals: 3,
  /** One digest signal to the `node` workflow in this time: 6 signals an hour, 3 events each (INV-11: ≤ 60 an hour). */
  nodeDigestInterval: 600_000,
  /** The `node` workflow looks by itself this often; longer than the digest, or it would see silence in a pause. */
  nodeLookInterval: 1_500_000,
  /** Heartbeat timeout of every node activity: a task lost in the proxy or with an agent costs this much. */
  activityHeartbeatTimeout: 10_000,
  /** How often an activity heartbeats; at least three within the timeout. */
  activityHeartbeat: 2_000,
  /** schedule-to-start of prepare, spawn, launch: then the node is inspected and another is taken. */
  launchScheduleToStart: 30_000,
  /** An unacknowledged ledger message is sent again with its key after this long. */
  outboxResend: 10_000,
  /** The stop of a cancelled replica is tried for stop_timeout + gpu_release_timeout + this. */
  stopMargin: 60_000,
  /** Upper bound of stop_timeout + gpu_release_timeout that a workflow assumes of a node it can't ask. */
  stopAssumed: 120_000,
  /** Progress signals to a workflow: on a change of stage, at most one in this time. */
  progressSignal: 30_000,
  /** Control plane instances pull the table besides being told. */
  routesPull: 10_000,
  /** A control plane instance registers with the fleet this often: each costs history, so it is seldom (INV-11). */
  instanceRegister: 600_000,
  /** One that isn't heard for this long gets no pushes. Until then a push to a dead one costs pushTimeout. */
  instanceGone: 1_800_000,
  /** A push of routes or a drain that no instance takes within this time is dropped: the instance pulls besides. */
  pushTimeout: 5_000,
  /** A silent node's data plane must be dark for this long, in one piece, before the node is `lost`. */
  lostAfter: 30_000,
  /** One watch of a silent node at most; each costs a handful of events (INV-11). */
  silentWatch: 600_000,
  /** A rebuilt ledger waits this long for open replicas to say what they hold; then only their nodes stay blocked. */
  rebuildPatience: 60_000,
  /** A ledger without a database shows no table for this long: every control plane says the hellos of its nodes again (200: 10 s). */
  tableHold: 15_000,
  /** What is left on a node that is there, and couldn't be stopped, is ordered to stop again after this. */
  settleAgain: 60_000,
  /** The janitor's sweep, jittered by a quarter. */
  janitorSweep: 30_000,
  /** A lost node counts against the brake for this long: what is gone for good must not hold up the rest for ever. */
  brakeForgets: 3_600_000,
  /** Continue-as-new below Temporal's limits: 10,240 events or 10 MB warn, 10,000 signals or 50 MB a run are the end. */
  maxEvents: 4_000,
  maxSignals: 1_500,
  /** Bytes. A node's hello may have 40 KB, and 1,500 of those are more than a run may have. */
  maxHistoryBytes: 8_000_000,
} as const;
