// Every change of phase that domain/replica can make: its states are walked breadth first with every event that could
// come, as the ledger, the node and people send them. Two states that decide alike are walked once.
import type { FailureDigest, StopProof } from '../../contracts/engine.js';
import { parseReplicaSpec, type ReplicaSpec } from '../../contracts/spec.js';
import { initialReplica, type ReplicaEvent, type ReplicaState } from '../../domain/replica/state.js';
import { replicaStep } from '../../domain/replica/step.js';

const MEMBERS = [
  { node: 'n1', rank: 0, slots: [0] },
  { node: 'n2', rank: 1, slots: [0] },
];
const PROOF: StopProof = { proof: 'strong', at: '', leaked: [] };
const NOW = 1_000;

export function reachable(): { changes: Set<string>; ends: Set<string> } {
  const changes = new Set<string>();
  const phases = new Set<string>();
  const seen = new Set<string>();
  const todo = [
    initialReplica(spec(), 'run', NOW),
    initialReplica(spec(), 'run', NOW, { node: 'n1', pid: 77, port: 8_000 }),
    initialReplica(spec(2), 'run', NOW),
  ];
  while (todo.length > 0) {
    const state = todo.pop()!;
    phases.add(state.phase);
    for (const event of eventsIn(state)) {
      const next = structuredClone(state);
      replicaStep(next, event, NOW);
      // Nothing is decided by it, and it would make up most of each copy.
      next.journal = [];
      if (next.phase !== state.phase) changes.add(`${state.phase} → ${next.phase}`);
      const key = decidesBy(next);
      if (!seen.has(key) && isTried(next)) todo.push(next);
      seen.add(key);
    }
  }
  const ends = new Set([...phases].filter(phase => ![...changes].some(c => c.startsWith(`${phase} →`))));
  return { changes, ends };
}

/**
 * Of a gang there are more states than can be walked: the start of its first generation is, with a second member of which
 * all goes well. What is the same for one member and for several is walked with the one.
 */
const isTried = (s: ReplicaState): boolean =>
  s.spec.nodes === 1 || (s.generation <= 1 && s.keys <= 2 && s.phase !== 'stopping');

/** What the decisions look at, counters cut off where they stop to matter. */
function decidesBy(s: ReplicaState): string {
  if (s.outcome !== null) return s.phase;
  return JSON.stringify([
    s.phase,
    s.after_stop?.next,
    s.cancelled,
    s.was_ready,
    s.ever_ready,
    Math.min(s.failures.length, s.spec.restart.max_failures),
    s.port_conflict_spared,
    s.draining_key !== null,
    s.reserving !== null,
    s.asserting !== null,
    s.claiming,
    s.lost.length > 0,
    // What else is known of a single member is told by its phase.
    s.members.map(m =>
      (s.spec.nodes === 1 ? [m.proof] : [m.prepared, m.pid, m.refused, m.proof, m.unproven, m.gone]).map(
        known => known !== null,
      ),
    ),
    s.adopt,
    s.spec.nodes,
  ]);
}

const CLASSES = ['permanent', 'retry', 'gpu_cleanup', 'node_fault', 'port_conflict', 'host_stop'] as const;
const failuresOf = (s: ReplicaState): FailureDigest[] =>
  (s.spec.nodes === 1 ? CLASSES : (['permanent', 'host_stop'] as const)).map(digest);
const refusalsOf = (s: ReplicaState): string[] =>
  s.spec.nodes === 1 ? ['MODEL_MISSING', 'STALE_FENCE', 'SPAWN_FAILED'] : ['MODEL_MISSING'];

function eventsIn(s: ReplicaState): ReplicaEvent[] {
  const members = MEMBERS.slice(0, s.spec.nodes);
  const fence = s.fence ?? 1;
  const next = s.last_fence + 1;
  const key = s.reserving ?? s.draining_key ?? 'run/reserve/0';
  return [
    ...(s.keys === 0 ? [{ type: 'started' as const }] : []),
    { type: 'ledger', reply: { kind: 'granted', key, fence: next, members, why: '' } },
    { type: 'ledger', reply: { kind: 'waiting', key, reason: 'full', hopeless: false } },
    { type: 'ledger', reply: { kind: 'waiting', key, reason: 'nowhere', hopeless: true } },
    { type: 'ledger', reply: { kind: 'stale', key, fence: next, members } },
    { type: 'ledger', reply: { kind: 'ack', key, version: 1, queues: [] } },
    { type: 'ledger', reply: { kind: 'assert', key: '' } },
    ...(s.asserting === null
      ? []
      : [fence, next].map(f => ({
          type: 'ledger' as const,
          reply: { kind: 'stale' as const, key: s.asserting!, fence: f, members },
        }))),
    ...members.flatMap(({ node, rank }) => memberEvents(s, node, rank, fence)),
    { type: 'drained', fence, drained: true, outstanding: 0, heard: true },
    { type: 'drained', fence, drained: false, outstanding: 3, heard: true },
    { type: 'timer', id: 'back_off' },
    { type: 'timer', id: 'pending' },
    { type: 'timer', id: 'node_loss' },
    { type: 'looked', result: { slots: [0], engine: null } },
    { type: 'look_failed', code: 'ADOPT_REFUSED', sentence: 'no' },
    { type: 'apply', spec: s.spec },
    { type: 'restart', by: '' },
    { type: 'cancel' },
  ];
}

/** `launch` is ordered of one member, `prepare` and `spawn` of several. */
function memberEvents(s: ReplicaState, node: string, rank: number, fence: number): ReplicaEvent[] {
  const said = { gpus: [], ports: { http: 1 }, mgmt_addr: '10.0.0.1', key_id: null };
  const runs = { pid: 1, adopted: false };
  const orders = s.spec.nodes === 1 ? (['launch'] as const) : (['prepare', 'spawn'] as const);
  const well: ReplicaEvent[] = [
    ...(s.spec.nodes === 1 || s.claiming
      ? [{ type: 'launched' as const, fence, rank, result: { ...said, ...runs } }]
      : [
          { type: 'prepared' as const, fence, rank, result: said },
          { type: 'spawned' as const, fence, rank, result: runs },
        ]),
    { type: 'stopped', fence, proofs: [{ node, proof: PROOF }] },
  ];
  if (rank > 0) return well;
  return [
    ...well,
    ...(['lost', 'back', 'forgotten', 'missing', 'sick'] as const).map(news => ({
      type: 'ledger' as const,
      reply: { kind: 'node' as const, key: '', node, fence, news, at: NOW, reason: 'dark' },
    })),
    ...['FENCE_CONFLICT', 'ENGINE_UNKNOWN', 'NODE_UNREACHABLE'].map(code => ({
      type: 'adopt_failed' as const,
      fence,
      rank,
      code,
      sentence: 'no',
    })),
    ...orders.flatMap(order =>
      refusalsOf(s).flatMap(code =>
        [true, false].map(delivered => ({
          type: `${order}_failed` as const,
          fence,
          rank,
          code,
          sentence: 'no',
          delivered,
        })),
      ),
    ),
    { type: 'ready_result', fence, rank, result: { ready: true, pid: 1, model_ids: [] } },
    ...failuresOf(s).map(failure => ({
      type: 'ready_result' as const,
      fence,
      rank,
      result: { ready: false as const, failure },
    })),
    { type: 'progress', msg: { node, fence, stage: 'loading', percent: null } },
    ...failuresOf(s).map(failure => ({
      type: 'engine' as const,
      event: {
        node,
        replica: 'r',
        fence,
        rank,
        seq: (s.seen[`${fence}/${rank}`] ?? 0) + 1,
        kind: 'exited' as const,
        at: '',
        requested: false,
        failure,
      },
    })),
    { type: 'stop_failed', fence, node, sentence: 'no', leaked: true },
    { type: 'stop_failed', fence, node, sentence: 'no', leaked: false },
  ];
}

function digest(cls: FailureDigest['class']): FailureDigest {
  return { code: 'ENGINE_FAILED', class: cls, sentence: 'no', exit: null, tail: [], evidence: null };
}

function spec(nodes = 1): ReplicaSpec {
  const given = {
    model: 'm',
    engine: 'vllm',
    nodes,
    tensor_parallel: nodes,
    placement: { timeout: '1h' },
    restart: { max_failures: 2 },
  };
  const parsed = parseReplicaSpec(given, 'r');
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults));
  return parsed.spec;
}
