// Every change of phase that domain/replica can make: its states are walked breadth first with every event that could
// come, as the ledger, the node and people send them. Two states that decide alike are walked once.
import type { FailureDigest, StopProof } from '../../contracts/engine.js';
import { parseReplicaSpec, type ReplicaSpec } from '../../contracts/spec.js';
import { initialReplica, type ReplicaEvent, type ReplicaState } from '../../domain/replica/state.js';
import { replicaStep } from '../../domain/replica/step.js';

const MEMBERS = [{ node: 'n1', rank: 0, slots: [0] }];
const PROOF: StopProof = { proof: 'strong', at: '', leaked: [] };
const NOW = 1_000;

export function reachable(): { changes: Set<string>; ends: Set<string> } {
  const changes = new Set<string>();
  const phases = new Set<string>();
  const seen = new Set<string>();
  const todo = [
    initialReplica(spec(), 'run', NOW),
    initialReplica(spec(), 'run', NOW, { node: 'n1', pid: 77, port: 8_000 }),
  ];
  while (todo.length > 0) {
    const state = todo.pop()!;
    phases.add(state.phase);
    for (const event of eventsIn(state)) {
      const next = structuredClone(state);
      replicaStep(next, event, NOW);
      if (next.phase !== state.phase) changes.add(`${state.phase} → ${next.phase}`);
      const key = decidesBy(next);
      if (!seen.has(key)) todo.push(next);
      seen.add(key);
    }
  }
  const ends = new Set([...phases].filter(phase => ![...changes].some(c => c.startsWith(`${phase} →`))));
  return { changes, ends };
}

/** What the decisions look at, counters cut off where they stop to matter. */
function decidesBy(s: ReplicaState): string {
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
    s.proofs !== null,
    s.asserting !== null,
    s.claiming,
    s.lost !== null,
    s.adopt,
    s.outcome?.kind,
  ]);
}

function eventsIn(s: ReplicaState): ReplicaEvent[] {
  const fence = s.fence ?? 1;
  const key = s.reserving ?? s.draining_key ?? 'run/reserve/0';
  const classes: FailureDigest['class'][] = [
    'permanent',
    'retry',
    'gpu_cleanup',
    'node_fault',
    'port_conflict',
    'host_stop',
  ];
  const failures = classes.map(digest);
  return [
    ...(s.keys === 0 ? [{ type: 'started' as const }] : []),
    { type: 'ledger', reply: { kind: 'granted', key, fence: s.last_fence + 1, members: MEMBERS, why: '' } },
    { type: 'ledger', reply: { kind: 'waiting', key, reason: 'full', hopeless: false } },
    { type: 'ledger', reply: { kind: 'waiting', key, reason: 'nowhere', hopeless: true } },
    { type: 'ledger', reply: { kind: 'stale', key, fence: s.last_fence + 1, members: MEMBERS } },
    { type: 'ledger', reply: { kind: 'ack', key, version: 1, queues: [] } },
    { type: 'ledger', reply: { kind: 'assert', key: '' } },
    ...(s.asserting === null
      ? []
      : [fence, s.last_fence + 1].map(f => ({
          type: 'ledger' as const,
          reply: { kind: 'stale' as const, key: s.asserting!, fence: f, members: MEMBERS },
        }))),
    ...(['lost', 'back', 'forgotten', 'missing'] as const).map(news => ({
      type: 'ledger' as const,
      reply: { kind: 'node' as const, key: '', node: 'n1', fence, news, at: NOW, reason: 'dark' },
    })),
    ...['FENCE_CONFLICT', 'ENGINE_UNKNOWN', 'NODE_UNREACHABLE'].map(code => ({
      type: 'adopt_failed' as const,
      fence,
      code,
      sentence: 'no',
    })),
    {
      type: 'launched',
      fence,
      result: { gpus: [], ports: { http: 1 }, mgmt_addr: null, key_id: null, pid: 1, adopted: false },
    },
    ...['MODEL_MISSING', 'STALE_FENCE', 'SPAWN_FAILED'].flatMap(code =>
      [true, false].map(delivered => ({
        type: 'launch_failed' as const,
        fence,
        code,
        sentence: 'no',
        delivered,
      })),
    ),
    { type: 'ready_result', fence, result: { ready: true, pid: 1, model_ids: [] } },
    ...failures.map(failure => ({
      type: 'ready_result' as const,
      fence,
      result: { ready: false as const, failure },
    })),
    { type: 'progress', msg: { fence, stage: 'loading', percent: null } },
    ...failures.map(failure => ({
      type: 'engine' as const,
      event: {
        replica: 'r',
        fence,
        rank: 0,
        seq: (s.seen[`${fence}/0`] ?? 0) + 1,
        kind: 'exited' as const,
        at: '',
        requested: false,
        failure,
      },
    })),
    { type: 'stopped', fence, proofs: [{ node: 'n1', proof: PROOF }] },
    { type: 'stop_failed', fence, sentence: 'no', leaked: true },
    { type: 'stop_failed', fence, sentence: 'no', leaked: false },
    { type: 'drained', fence, drained: true, outstanding: 0, heard: true },
    { type: 'drained', fence, drained: false, outstanding: 3, heard: true },
    { type: 'timer', id: 'back_off' },
    { type: 'timer', id: 'pending' },
    { type: 'timer', id: 'node_loss' },
    { type: 'looked', result: { slots: [0], engine: null } },
    { type: 'look_failed', code: 'ADOPT_REFUSED', sentence: 'no' },
    { type: 'apply', spec: spec() },
    { type: 'restart', by: '' },
    { type: 'cancel' },
  ];
}

function digest(cls: FailureDigest['class']): FailureDigest {
  return { code: 'ENGINE_FAILED', class: cls, sentence: 'no', exit: null, tail: [], evidence: null };
}

function spec(): ReplicaSpec {
  const given = {
    model: 'm',
    engine: 'vllm',
    placement: { timeout: '1h' },
    restart: { max_failures: 2 },
  };
  const parsed = parseReplicaSpec(given, 'r');
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults));
  return parsed.spec;
}
