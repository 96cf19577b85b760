// A node for workflow tests: a real activity worker on `node-<id>`, and behind it a supervisor that the test steers.
// What isn't steered goes well: engines start, serve at once and stop with a strong proof.
import { CompleteAsyncError, Context } from '@temporalio/activity';
import { ApplicationFailure } from '@temporalio/common';
import { Worker } from '@temporalio/worker';
import type {
  AdoptOrder,
  LookedAt,
  MemberOrder,
  NodeActivities,
  Prepared,
  ReadyResult,
  Spawned,
  SpawnOrder,
  StopOrder,
} from '../../contracts/activities.js';
import type { EngineEvent, EngineReport, FailureDigest, StopProof } from '../../contracts/engine.js';
import { ERRORS, type ErrorCode } from '../../contracts/errors.js';
import { nodeQueue } from '../../contracts/ids.js';
import type { Inventory } from '../../contracts/inventory.js';
import type { NodeHello } from '../../contracts/messages.js';
import { canonicalJson, specHash } from '../../contracts/spec.js';
import type { Installation } from './harness.js';

type Steered = 'launch' | 'prepare' | 'spawn' | 'adopt' | 'await_ready' | 'stop';
interface Orders {
  launch: MemberOrder;
  prepare: MemberOrder;
  spawn: SpawnOrder;
  adopt: AdoptOrder;
  await_ready: MemberOrder;
  stop: StopOrder;
}
interface Answers {
  launch: Prepared & Spawned;
  prepare: Prepared;
  spawn: Spawned;
  adopt: Prepared & Spawned;
  await_ready: ReadyResult;
  stop: StopProof;
}

/** One call that waits for the test. */
export interface Held<K extends Steered> {
  /** The order, once the call has come. */
  called: Promise<Orders[K]>;
  answer(result: Answers[K]): void;
  /** Fails it as the agent would. */
  refuse(code: ErrorCode, sentence: string): void;
}

const BEAT_MS = 200;

export class SimNode {
  /** Every call that arrived, in order. */
  readonly calls: { activity: Steered; fence: number; reason: string }[] = [];
  session = 0;
  private readonly held: { [K in Steered]: ((order: Orders[K]) => Promise<Answers[K]>)[] } = {
    launch: [],
    prepare: [],
    spawn: [],
    adopt: [],
    await_ready: [],
    stop: [],
  };
  private worker: { worker: Worker; done: Promise<void> } | null = null;
  private lost = new AbortController();
  private pids = 1000;

  constructor(
    readonly installation: Installation,
    readonly id: string,
    readonly gpus = 8,
  ) {}

  /** The agent starts: its worker polls. */
  async start(): Promise<this> {
    this.lost = new AbortController();
    const worker = await Worker.create({
      connection: this.installation.server.nativeConnection,
      namespace: this.installation.namespace,
      taskQueue: nodeQueue(this.id),
      activities: this.activities(),
      maxHeartbeatThrottleInterval: BEAT_MS,
      activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
    });
    this.worker = { worker, done: worker.run() };
    return this;
  }

  /** Ends the agent's worker; `kill`: what it was doing is never reported to Temporal. */
  async end({ kill = false } = {}): Promise<void> {
    if (kill) this.lost.abort();
    if (this.worker?.worker.getState() === 'RUNNING') this.worker.worker.shutdown();
    await this.worker?.done;
    this.worker = null;
  }

  /** The next call of `activity` waits until the test ends it. Several are taken in turn. */
  hold<K extends Steered>(activity: K): Held<K> {
    let arrived!: (order: Orders[K]) => void;
    let answer!: (result: Answers[K]) => void;
    let fail!: (error: Error) => void;
    const called = new Promise<Orders[K]>(resolve => {
      arrived = resolve;
    });
    const result = new Promise<Answers[K]>((resolve, reject) => {
      answer = resolve;
      fail = reject;
    });
    result.catch(() => undefined);
    this.held[activity].push(order => {
      arrived(order);
      return result;
    });
    return {
      called,
      answer,
      refuse: (code, message) =>
        fail(ApplicationFailure.create({ type: code, message, nonRetryable: !ERRORS[code].retryable })),
    };
  }

  /** What the test steered and nobody called goes well again. */
  unhold(): void {
    for (const held of Object.values(this.held)) held.length = 0;
  }

  /** Every call of `activity` is refused, until told otherwise by `null`. */
  refuseAll: Partial<Record<Steered, { code: ErrorCode; sentence: string } | null>> = {};

  /** Hello of a new session. */
  async hello(over: Partial<NodeHello> = {}): Promise<this> {
    this.session = over.session ?? this.session + 1;
    await this.installation.fleet.hello(this.id, {
      session: this.session,
      instance: 'cp',
      peer_addr: null,
      boot_id: 'boot-1',
      protocol_version: 1,
      agent_version: '0.1.0',
      capabilities: [],
      proven: true,
      clock_offset_ms: 0,
      heartbeat_interval_ms: 5_000,
      inventory: inventory(this.id, this.gpus, {
        fabrics: this.fabrics.map(name => ({ name, usable: true, hcas: [], problems: [] })),
      }),
      engines: this.running(),
      ...over,
    });
    return this;
  }

  /** The engine of that fence ended by itself; told as the control plane tells it. */
  exit(replica: string, fence: number, failure: Partial<FailureDigest> = {}, seq = 1): Promise<unknown> {
    const rank = this.engines.get(fence)?.rank ?? 0;
    this.engines.delete(fence);
    return this.installation.fleet.engineEvent(this.id, { ...exitEvent(replica, fence, failure, seq), rank });
  }

  /** The fabrics that its next hello tells of (INV-3). */
  fabrics: string[] = [];
  /** What its engine says to be. */
  version = '0.33.0';
  /** What runs on it, by fence. */
  readonly engines = new Map<number, MemberOrder & { pid: number }>();
  /** What `look` answers. */
  looks: LookedAt = { slots: [], engine: null };

  private running(): EngineReport[] {
    return [...this.engines.values()].map(e => ({
      replica: e.replica,
      fence: e.fence,
      rank: e.rank,
      state: 'ready',
      pid: e.pid,
      gpus: e.slots.map(slot => gpuId(this.id, slot)),
      ports: { http: portOf(e.fence) },
      stage: null,
      serves:
        e.rank > 0
          ? null
          : {
              model: e.spec.served_model_name,
              aliases: e.spec.aliases,
              url: `http://127.0.0.1:${portOf(e.fence)}`,
              key_id: 'k1',
              revision: specHash(e.spec),
            },
      nodes: e.nodes,
      fabric: e.fabric ?? null,
    }));
  }

  private prepared({ fence, slots }: MemberOrder): Prepared {
    return {
      gpus: slots.map(slot => gpuId(this.id, slot)),
      ports: { http: portOf(fence) },
      mgmt_addr: '127.0.0.1',
      key_id: 'k1',
      engine_version: this.version,
      launch_mode: 'mp',
    };
  }

  private spawned(order: MemberOrder, adopted: boolean): Spawned {
    const { pid } = this.engines.get(order.fence) ?? { pid: ++this.pids };
    this.engines.set(order.fence, { ...order, pid });
    return { pid, adopted };
  }

  private started(order: MemberOrder, adopted: boolean): Prepared & Spawned {
    return { ...this.prepared(order), ...this.spawned(order, adopted) };
  }

  /** As an agent does: what isn't there, or runs another spec, isn't taken over. */
  private takeOver(order: AdoptOrder): Prepared & Spawned {
    const known = this.engines.get(order.fence);
    if (order.process === null && known?.replica !== order.replica)
      throw refusal('ENGINE_UNKNOWN', 'no such engine');
    if (known !== undefined && canonicalJson(known.spec) !== canonicalJson(order.spec))
      throw refusal('FENCE_CONFLICT', 'it runs another spec');
    return this.started(order, true);
  }

  /** What a look at a spec is refused with, before anything is drained for it. */
  refuseCheck: { code: ErrorCode; sentence: string } | null = null;

  /** Orders of every look at a spec, and of every start of a member. */
  readonly checks: MemberOrder[] = [];
  readonly spawns: SpawnOrder[] = [];

  countOf(activity: Steered): number {
    return this.calls.filter(c => c.activity === activity).length;
  }

  private activities(): NodeActivities {
    const unused = async (): Promise<never> => {
      throw ApplicationFailure.nonRetryable('no workflow of this release calls it');
    };
    return {
      launch: order => this.run('launch', order, () => this.started(order, false)),
      adopt: order => this.run('adopt', order, () => this.takeOver(order)),
      look: async () => this.looks,
      await_ready: order =>
        this.run('await_ready', order, () => {
          // A follower serves nothing: it is watched until it ends, or nobody asks any more.
          if (order.rank > 0) return new Promise<never>(() => undefined);
          const pid = this.engines.get(order.fence)?.pid ?? this.pids;
          return { ready: true, pid, model_ids: [order.spec.served_model_name] };
        }),
      stop: order =>
        this.run('stop', order, () => {
          this.engines.delete(order.fence);
          return strongProof();
        }),
      prepare: order => this.run('prepare', order, () => this.prepared(order)),
      spawn: order => {
        this.spawns.push(order);
        return this.run('spawn', order, () => this.spawned(order, false));
      },
      inspect: unused,
      check: async order => {
        this.checks.push(order);
        if (this.refuseCheck !== null) {
          const { code, sentence } = this.refuseCheck;
          throw ApplicationFailure.create({ type: code, message: sentence, nonRetryable: true });
        }
      },
    };
  }

  /** Heartbeats while it works. A cancelled attempt ends; one of a killed agent is never heard of again. */
  private async run<K extends Steered>(
    activity: K,
    order: Orders[K],
    well: () => Answers[K] | Promise<Answers[K]>,
  ): Promise<Answers[K]> {
    const context = Context.current();
    this.calls.push({ activity, fence: order.fence, reason: 'reason' in order ? order.reason : '' });
    const no = this.refuseAll[activity];
    if (no) {
      const { retryable } = ERRORS[no.code];
      throw ApplicationFailure.create({ type: no.code, message: no.sentence, nonRetryable: !retryable });
    }
    context.heartbeat();
    const beat = setInterval(() => context.heartbeat(), BEAT_MS);
    const over = new AbortController();
    const vanished = new Promise<never>((_, reject) => {
      const vanish = () => reject(new CompleteAsyncError());
      this.lost.signal.addEventListener('abort', vanish, { signal: over.signal });
    });
    try {
      const held = this.held[activity].shift();
      const work = held === undefined ? Promise.resolve(well()) : held(order);
      return await Promise.race([work, context.cancelled, vanished]);
    } finally {
      clearInterval(beat);
      over.abort();
    }
  }
}

const portOf = (fence: number): number => 20_000 + (fence % 1_000);

const refusal = (type: ErrorCode, message: string): ApplicationFailure =>
  ApplicationFailure.create({ type, message, nonRetryable: true });

export const gpuId = (node: string, slot: number): string => `GPU-${node}-${slot}`;

export const strongProof = (): StopProof => ({ proof: 'strong', at: '2026-01-01T00:00:00Z', leaked: [] });

export function exitEvent(
  replica: string,
  fence: number,
  failure: Partial<FailureDigest> = {},
  seq = 1,
): EngineEvent {
  return {
    replica,
    fence,
    rank: 0,
    seq,
    kind: 'exited',
    at: '2026-01-01T00:00:00Z',
    requested: false,
    failure: {
      code: 'ENGINE_FAILED',
      class: 'retry',
      sentence: 'the engine was killed',
      exit: { code: null, signal: 'SIGKILL' },
      tail: ['last line of the log'],
      evidence: '/var/lib/llmgw-agent/evidence',
      ...failure,
    },
  };
}

/** `count` equal GPUs in one NVLink island, engine `vllm`. */
export function inventory(nodeId: string, count: number, over: Partial<Inventory> = {}): Inventory {
  const uuids = Array.from({ length: count }, (_, slot) => gpuId(nodeId, slot));
  return {
    node_id: nodeId,
    boot_id: 'boot-1',
    agent_version: '0.1.0',
    mgmt_addr: '127.0.0.1',
    labels: {},
    source: 'simulated',
    driver_version: '580.95.05',
    gpus: uuids.map((uuid, index) => ({
      index,
      uuid,
      name: 'NVIDIA H100 80GB HBM3',
      pci_bus_id: null,
      memory_total_mib: 81_559,
      memory_free_mib: 81_000,
      foreign_mib: 0,
      compute_capability: '9.0',
      mig: false,
      usable: true,
      reason: null,
    })),
    nvlink_islands: count > 1 ? [uuids] : [],
    hcas: [],
    fabrics: [],
    engines: [{ name: 'vllm', type: 'vllm', version: '0.33.0', launch_mode: 'mp', problems: [] }],
    certificate: null,
    conditions: [],
    ...over,
  };
}
