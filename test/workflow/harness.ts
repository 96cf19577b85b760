// The workflows on the real Temporal dev server: one server a test file, and in it one namespace for each
// installation, because `fleet` is a fixed id. `replayAll` replays every history that a file has left behind; an
// installation with `cached: 0` replays at each task besides (three times slower: for the tests where it matters).
import { Client, type WorkflowHandle } from '@temporalio/client';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { Worker } from '@temporalio/worker';
import { controlActivities, type PlanPorts, planActivities } from '../../activities/control/index.js';
import type { ControlActivities } from '../../contracts/activities.js';
import { controlQueue, FLEET_ID, replicaWorkflowId, WORKFLOW_QUEUE } from '../../contracts/ids.js';
import type { Endpoint } from '../../contracts/routes.js';
import type { NodeRow, ReplicaPhase, ReplicaStatus } from '../../contracts/status.js';
import { findTemporal } from '../../dev/temporal-binary.js';
import { FleetClient } from '../../server/fleet.js';
import { survey } from '../../server/survey.js';
import { ONE_TASK } from '../../server/worker.js';
import { type Times, workflowBundle } from './bundle.js';
import { quietRuntime } from './runtime.js';
import { SimNode } from './sim-node.js';

/** What tests wait on is bounded, so that a fault says what it saw instead of hanging; it measures nothing. */
const PATIENCE_MS = 15_000;
const LOOK_MS = 40;

/** Short enough to be waited for, long enough for a busy machine. */
export const SHORT: Times = {
  // The control plane's activities beat every 2 s.
  activityHeartbeatTimeout: 4_000,
  launchScheduleToStart: 1_500,
  outboxResend: 700,
  stopAssumed: 1_000,
  stopMargin: 2_000,
  pushTimeout: 1_500,
  tableHold: 500,
};

/** Made with the server: one that is registered later takes the server seconds to know everywhere. */
const NAMESPACES = Array.from({ length: 12 }, (_, i) => `installation-${i}`);

export class TestServer {
  private readonly free = [...NAMESPACES];
  private readonly installations: Installation[] = [];

  private constructor(private readonly env: TestWorkflowEnvironment) {}

  static async start(): Promise<TestServer> {
    quietRuntime();
    const { path } = await findTemporal();
    const env = await TestWorkflowEnvironment.createLocal({
      server: {
        executable: { type: 'existing-path', path },
        log: { format: 'pretty', level: 'never' },
        extraArgs: NAMESPACES.flatMap(name => ['--namespace', name]),
      },
    });
    return new TestServer(env);
  }

  get nativeConnection() {
    return this.env.nativeConnection;
  }

  /** A namespace of its own with the control plane's workers; without `ledger: false` with `fleet` in it. */
  async install(options: { times?: Times; cached?: number; ledger?: boolean } = {}): Promise<Installation> {
    const namespace = this.free.shift();
    if (namespace === undefined) throw new Error('no namespace is left: raise the number in NAMESPACES');
    const installation = new Installation(this, namespace);
    this.installations.push(installation);
    await installation.start(options.times ?? SHORT, options.cached ?? 500);
    if (options.ledger !== false) await installation.startLedger();
    return installation;
  }

  clientFor(namespace: string): Client {
    const { connection } = this.env;
    return new Client({ connection, namespace });
  }

  /** Replays every run of every installation against the bundle that made it; what doesn't replay is named. */
  async replayAll(): Promise<{ replayed: number; faults: string[] }> {
    const faults: string[] = [];
    let replayed = 0;
    // One replaying worker a bundle: each takes a second to start.
    for (const code of new Set(this.installations.map(i => i.bundle.code))) {
      const same = this.installations.filter(i => i.bundle.code === code);
      const histories = async function* () {
        for (const { client } of same) yield* client.workflow.list().intoHistories();
      };
      for await (const { workflowId, error } of Worker.runReplayHistories(
        { workflowBundle: { code }, ...ONE_TASK },
        histories(),
      )) {
        replayed++;
        if (error) faults.push(`${workflowId}: ${error.message}`);
      }
    }
    return { replayed, faults };
  }

  async stop(): Promise<void> {
    for (const installation of this.installations) await installation.stop();
    await this.env.teardown();
  }
}

export class Installation {
  readonly fleet: FleetClient;
  /** Versions of the route table that were pushed to the control plane instance. */
  readonly pushed: number[] = [];
  readonly drains: Parameters<ControlActivities['await_drained']>[0][] = [];
  /** What a drain answers; the test may let it wait. */
  onDrain: ControlActivities['await_drained'] = async () => ({ drained: true, outstanding: 0 });
  /** What a watch of a silent node sees; without the test's word nothing. */
  onSilent: PlanPorts['watchSilent'] = (_, signal) =>
    new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  /** What a survey sees, page by page. */
  onSurvey: PlanPorts['survey'] = ({ page }) => survey(this.client, page);
  readonly queue = controlQueue('cp');
  bundle = { code: '' };
  private readonly nodes: SimNode[] = [];
  private readonly workers: { worker: Worker; done: Promise<void> }[] = [];

  constructor(
    readonly server: TestServer,
    readonly namespace: string,
  ) {
    this.fleet = new FleetClient(server.clientFor(namespace));
  }

  get client() {
    return this.fleet.client;
  }

  /** `change`: of the bundle's code, for a build that isn't this one. */
  async start(times: Times, cached: number, change = (code: string): string => code): Promise<void> {
    this.bundle = { code: change((await workflowBundle(times)).code) };
    const common = { connection: this.server.nativeConnection, namespace: this.namespace } as const;
    await this.run({
      ...common,
      taskQueue: WORKFLOW_QUEUE,
      workflowBundle: this.bundle,
      maxCachedWorkflows: cached,
      // After a control plane has ended, the next task of each workflow is offered to it for this long.
      stickyQueueScheduleToStartTimeout: '1s',
      ...ONE_TASK,
      activities: planActivities({
        ledger: () => this.fleet.ledger(),
        survey: input => this.onSurvey(input),
        watchSilent: (input, signal) => this.onSilent(input, signal),
      }),
      maxHeartbeatThrottleInterval: '200ms',
      activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
    });
    await this.run({
      ...common,
      taskQueue: this.queue,
      activities: controlActivities({
        refreshRoutes: async () => {
          this.pushed.push((await this.fleet.routes()).version);
        },
        awaitDrained: input => {
          this.drains.push(input);
          return this.onDrain(input);
        },
      }),
      maxHeartbeatThrottleInterval: '200ms',
      activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
    });
  }

  private async run(options: Parameters<typeof Worker.create>[0]): Promise<void> {
    const worker = await Worker.create(options);
    this.workers.push({ worker, done: worker.run() });
  }

  /** The control plane ends, with whatever its workers were about; the agents stay. */
  async endControlPlane(): Promise<void> {
    for (const { worker } of this.workers) if (worker.getState() === 'RUNNING') worker.shutdown();
    for (const { done } of this.workers.splice(0)) await done;
  }

  async startLedger(): Promise<void> {
    await this.fleet.register({ instance: 'cp', queue: this.queue, peer_addr: null, version: '0.1.0' });
  }

  /** A connected node whose worker polls. */
  async node(id: string, gpus = 8): Promise<SimNode> {
    const node = await this.silentNode(id, gpus).start();
    return node.hello();
  }

  /** A node that has neither a worker nor said hello. */
  silentNode(id: string, gpus = 8): SimNode {
    const node = new SimNode(this, id, gpus);
    this.nodes.push(node);
    return node;
  }

  async startReplica(name: string, spec: Record<string, unknown> = {}): Promise<Replica> {
    const handle = await this.client.workflow.start('replica', {
      taskQueue: WORKFLOW_QUEUE,
      workflowId: replicaWorkflowId(name),
      workflowIdConflictPolicy: 'FAIL',
      args: [{ model: 'Qwen/Qwen3-8B', engine: 'vllm', ...spec }],
    });
    return new Replica(this, name, handle);
  }

  ledgerHandle = (): WorkflowHandle => this.client.workflow.getHandle(FLEET_ID);

  /** The node's row in `ctl nodes`, once it is as wanted. */
  async row(nodeId: string, good: (row: NodeRow) => boolean, what: string): Promise<NodeRow> {
    const row = await eventually(
      async () => (await this.fleet.nodes()).find(r => r.node_id === nodeId),
      r => r !== undefined && good(r),
      `${nodeId} ${what}`,
    );
    return row!;
  }

  async stop(): Promise<void> {
    for (const node of this.nodes) await node.end();
    await this.endControlPlane();
  }
}

export class Replica {
  constructor(
    private readonly installation: Installation,
    readonly name: string,
    readonly handle: WorkflowHandle,
  ) {}

  status = (): Promise<ReplicaStatus> => this.handle.query<ReplicaStatus>('status');
  apply = (spec: unknown): Promise<{ result: string; reason: string }> =>
    this.handle.executeUpdate('apply', { args: [spec] });
  restart = (): Promise<{ result: string }> => this.handle.executeUpdate('restart');

  /** The status once `phase` is reached (in `generation`, if given). */
  async reaches(phase: ReplicaPhase, generation?: number): Promise<ReplicaStatus> {
    return eventually(
      this.status,
      s => s.phase === phase && (generation === undefined || s.generation === generation),
      `replica/${this.name} is ${phase}${generation === undefined ? '' : ` in generation ${generation}`}`,
    );
  }

  /** Resolves with how the workflow ended. */
  async ended(): Promise<{ status: string; type: string | null; message: string; details: unknown }> {
    const error = await this.handle.result().then(
      () => null,
      // biome-ignore lint/suspicious/noExplicitAny: the failure's shape is Temporal's
      (err: any) => err,
    );
    const { status } = await this.handle.describe();
    return {
      status: status.name,
      type: error?.cause?.type ?? null,
      message: error?.cause?.message ?? '',
      details: error?.cause?.details?.[0],
    };
  }

  /** The endpoint in the route table, or undefined. */
  route = async (): Promise<Endpoint | undefined> => {
    const { endpoints } = await this.installation.fleet.routes();
    return endpoints.find(e => e.replica === this.name);
  };
}

/** Looks until `good`; says what it saw last when it never is. */
export async function eventually<T>(
  look: () => Promise<T> | T,
  good: (seen: T) => boolean,
  what: string,
  patience = PATIENCE_MS,
): Promise<T> {
  const until = Date.now() + patience;
  for (;;) {
    const seen = await look();
    if (good(seen)) return seen;
    if (Date.now() > until) throw new Error(`not true in time: ${what}. Last seen: ${JSON.stringify(seen)}`);
    await new Promise(resolve => setTimeout(resolve, LOOK_MS));
  }
}
