// Shapes for the pure tests: a spec, a node, and a replica driven to where a test needs it.
import type { FailureDigest, StopProof } from '../../contracts/engine.js';
import type { NodeFacts } from '../../contracts/messages.js';
import { parseReplicaSpec, type ReplicaSpec } from '../../contracts/spec.js';
import {
  initialReplica,
  type ReplicaEffect,
  type ReplicaEvent,
  type ReplicaState,
} from '../../domain/replica/state.js';
import { replicaStep } from '../../domain/replica/step.js';
import { maskOf } from '../../domain/slots.js';

export function spec(over: Record<string, unknown> = {}): ReplicaSpec {
  const parsed = parseReplicaSpec({ model: 'm', engine: 'vllm', ...over }, 'r');
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults));
  return parsed.spec;
}

export function facts(over: Partial<NodeFacts> = {}): NodeFacts {
  return {
    node_id: 'n1',
    seq: 1,
    state: 'connected',
    reason: 'heartbeats arrive',
    since: 0,
    agent_version: '0.1.0',
    labels: {},
    mgmt_addr: true,
    fabrics: ['ib-a'],
    engines: [{ name: 'vllm', type: 'vllm', version: '0.33.0', launch_mode: 'mp', problem: null }],
    profile: {
      gpu_model: 'NVIDIA H100 80GB HBM3',
      memory_mib: 81559,
      slots: 8,
      islands: [maskOf([0, 1, 2, 3, 4, 5, 6, 7])],
    },
    usable: maskOf([0, 1, 2, 3, 4, 5, 6, 7]),
    foreign: 0,
    unproven: false,
    conditions: [],
    hello_at: 1,
    boot_id: 'boot-1',
    running: [],
    ...over,
  };
}

export const proof = (kind: StopProof['proof'] = 'strong'): StopProof => ({
  proof: kind,
  at: '2026-01-01T00:00:00Z',
  leaked: [],
});

export function digest(over: Partial<FailureDigest> = {}): FailureDigest {
  return {
    code: 'ENGINE_FAILED',
    class: 'retry',
    sentence: 'it broke',
    exit: { code: 1, signal: null },
    tail: [],
    evidence: null,
    ...over,
  };
}

/** A replica and the effects of its last event. */
export class Bench {
  readonly state: ReplicaState;
  now = 1_000_000;
  fences = 100;
  last: ReplicaEffect[] = [];

  constructor(over: Record<string, unknown> = {}) {
    this.state = initialReplica(spec(over), 'run-1', this.now);
    this.send({ type: 'started' });
  }

  send(ev: ReplicaEvent): ReplicaEffect[] {
    this.now += 10;
    this.last = replicaStep(this.state, ev, this.now);
    return this.last;
  }

  did(what: ReplicaEffect['do']): boolean {
    return this.last.some(e => e.do === what);
  }

  grant(): this {
    this.fences++;
    this.send({
      type: 'ledger',
      reply: {
        kind: 'granted',
        key: this.state.reserving!,
        fence: this.fences,
        members: [{ node: 'n1', rank: 0, slots: [0] }],
        why: 'n1: slots 0',
      },
    });
    return this;
  }

  launched(): this {
    const result = {
      gpus: ['GPU-0'],
      ports: { http: 20000 },
      mgmt_addr: '10.0.0.1',
      key_id: null,
      pid: 42,
      adopted: false,
    };
    this.send({ type: 'launched', fence: this.fences, rank: 0, result });
    return this;
  }

  ready(): this {
    this.grant().launched();
    this.send({
      type: 'ready_result',
      fence: this.fences,
      rank: 0,
      result: { ready: true, pid: 42, model_ids: ['m'] },
    });
    return this;
  }

  exit(over: Partial<FailureDigest> = {}, seq = 1): this {
    this.send({
      type: 'engine',
      event: {
        replica: 'r',
        fence: this.fences,
        rank: 0,
        seq,
        kind: 'exited',
        at: '',
        requested: false,
        failure: digest(over),
      },
    });
    return this;
  }

  stopped(): this {
    this.send({ type: 'stopped', fence: this.fences, proofs: [{ node: 'n1', proof: proof() }] });
    return this;
  }
}
