// A gang driven to where a test needs it: what its nodes and the ledger answer, member by member.
import type { Prepared } from '../../contracts/activities.js';
import type { EngineEvent, FailureDigest } from '../../contracts/engine.js';
import type { NodeNews } from '../../contracts/messages.js';
import type { ReplicaEffect } from '../../domain/replica/state.js';
import { Bench, digest, proof } from './fixtures.js';

export const NODES = ['n1', 'n2', 'n3'];

export class GangBench extends Bench {
  constructor(over: Record<string, unknown> = {}) {
    super({ nodes: 3, tensor_parallel: 3, ...over });
  }

  override grant(nodes = NODES): this {
    this.fences++;
    const members = nodes.map((node, rank) => ({ node, rank, slots: [rank] }));
    const why = `${nodes.join(', ')} on ib-a`;
    const key = this.state.reserving!;
    const reply = { kind: 'granted' as const, key, fence: this.fences, members, why, fabric: 'ib-a' };
    this.send({ type: 'ledger', reply });
    return this;
  }

  nodeOf = (rank: number): string => this.state.members.find(m => m.rank === rank)?.node ?? '?';

  prepared(rank: number, over: Partial<Prepared> = {}): this {
    const result = {
      gpus: [`GPU-${rank}`],
      ports: { http: 20_000, rendezvous: 20_010 + rank },
      mgmt_addr: `10.0.0.${rank + 1}`,
      key_id: 'k1',
      stop_ms: 100_000 + rank,
      engine_version: '0.33.0',
      launch_mode: 'mp',
      ...over,
    };
    this.send({ type: 'prepared', fence: this.fences, rank, result });
    return this;
  }

  refused(rank: number, code: string, sentence: string, delivered = true): this {
    this.send({ type: 'prepare_failed', fence: this.fences, rank, code, sentence, delivered });
    return this;
  }

  spawned(rank: number): this {
    this.send({ type: 'spawned', fence: this.fences, rank, result: { pid: 100 + rank, adopted: false } });
    return this;
  }

  /** Granted, prepared and started. */
  loading(): this {
    this.grant();
    for (const rank of [0, 1, 2]) this.prepared(rank);
    for (const rank of [0, 1, 2]) this.spawned(rank);
    return this;
  }

  serves(): this {
    const result = { ready: true as const, pid: 100, model_ids: ['m'] };
    this.send({ type: 'ready_result', fence: this.fences, rank: 0, result });
    return this;
  }

  override ready(): this {
    return this.loading().serves();
  }

  /** Told by its await_ready. */
  fails(rank: number, over: Partial<FailureDigest> = {}): this {
    const result = { ready: false as const, failure: digest(over) };
    this.send({ type: 'ready_result', fence: this.fences, rank, result });
    return this;
  }

  exits(rank: number, over: Partial<FailureDigest> = {}, event: Partial<EngineEvent> = {}): this {
    this.send({
      type: 'engine',
      event: {
        node: this.nodeOf(rank),
        replica: 'r',
        fence: this.fences,
        rank,
        seq: 1,
        kind: 'exited',
        at: new Date(this.now).toISOString(),
        requested: false,
        failure: digest(over),
        ...event,
      },
    });
    return this;
  }

  proven(...ranks: number[]): this {
    for (const rank of ranks)
      this.send({
        type: 'stopped',
        fence: this.fences,
        proofs: [{ node: this.nodeOf(rank), proof: proof() }],
      });
    return this;
  }

  unproven(rank: number, leaked = false): this {
    const node = this.nodeOf(rank);
    const sentence = leaked ? `pid 7 holds GPU 0 of ${node}` : `${node} does not answer`;
    this.send({ type: 'stop_failed', fence: this.fences, node, sentence, leaked });
    return this;
  }

  news(rank: number, news: NodeNews): this {
    const node = this.nodeOf(rank);
    const reason = `${node}: ${news}`;
    const { fences: fence, now: at } = this;
    this.send({ type: 'ledger', reply: { kind: 'node', key: '', node, fence, news, at, reason } });
    return this;
  }

  effects<D extends ReplicaEffect['do']>(what: D): Extract<ReplicaEffect, { do: D }>[] {
    return this.last.filter((e): e is Extract<ReplicaEffect, { do: D }> => e.do === what);
  }

  /** Nodes that the last event gave a stop order. */
  stops = (): string[] => this.effects('stop').flatMap(e => e.orders.map(o => o.node));
  messages = () => this.effects('ledger').map(e => e.msg);
}
