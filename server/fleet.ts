// What the control plane says to the workflows: signals and queries, each bounded. The one place that starts `fleet`
// and `node/<id>`; both starts are idempotent.
import { type Client, WorkflowNotFoundError } from '@temporalio/client';
import type { EngineEvent } from '../contracts/engine.js';
import { LlmgwError } from '../contracts/errors.js';
import { FLEET_ID, nodeWorkflowId, replicaWorkflowId, WORKFLOW_QUEUE } from '../contracts/ids.js';
import type {
  InstanceMsg,
  NodeDigest,
  NodeGone,
  NodeHello,
  NodeInventory,
  ProgressMsg,
  WelcomeInfo,
} from '../contracts/messages.js';
import type { RouteTable } from '../contracts/routes.js';
import type { NodeRow } from '../contracts/status.js';
import type { LedgerState } from '../domain/ledger/state.js';
import type { NodeState } from '../domain/node.js';

/** A control plane that dies in the middle of a task holds its workflow up for this long (Temporal's default is 10 s). */
const TASK_TIMEOUT = '5s';

/** A query without a worker hangs for as long as it may: an operator waits 3 s at most. */
export const QUERY_MS = 3_000;
/** A signal needs no worker, only Temporal itself. */
const SIGNAL_MS = 10_000;

export class FleetClient {
  constructor(readonly client: Client) {}

  /** Starts the ledger if it isn't there, and registers this instance with it. */
  async register(msg: InstanceMsg): Promise<void> {
    await this.client.workflow.signalWithStart('fleet', {
      workflowId: FLEET_ID,
      taskQueue: WORKFLOW_QUEUE,
      workflowTaskTimeout: TASK_TIMEOUT,
      args: [],
      signal: 'instance',
      signalArgs: [msg],
    });
  }

  /** The node's own workflow learns of it, and answers with what Welcome says. */
  async hello(nodeId: string, hello: NodeHello): Promise<WelcomeInfo> {
    await this.client.connection.withDeadline(Date.now() + SIGNAL_MS, () =>
      this.client.workflow.signalWithStart('node', {
        workflowId: nodeWorkflowId(nodeId),
        taskQueue: WORKFLOW_QUEUE,
        args: [],
        signal: 'hello',
        signalArgs: [hello],
      }),
    );
    return this.welcome(nodeId);
  }

  /** A query sees every signal that was accepted before it. */
  welcome = (nodeId: string): Promise<WelcomeInfo> =>
    this.query<WelcomeInfo>(nodeWorkflowId(nodeId), 'welcome');

  gone = (nodeId: string, msg: NodeGone): Promise<void> => this.signal(nodeWorkflowId(nodeId), 'gone', msg);
  digest = (nodeId: string, msg: NodeDigest): Promise<void> =>
    this.signal(nodeWorkflowId(nodeId), 'digest', msg);
  inventory = (nodeId: string, msg: NodeInventory): Promise<void> =>
    this.signal(nodeWorkflowId(nodeId), 'inventory', msg);
  progress = (replica: string, msg: ProgressMsg): Promise<void> =>
    this.signal(replicaWorkflowId(replica), 'progress', msg);

  /**
   * An engine's exit goes straight to its replica. Closed or unknown: to the ledger as unclaimed. Rejects only when
   * Temporal can't be reached; then the agent keeps it and sends it again. `nodeId`: whose certificate told of it;
   * replica, fence and rank are the peer's word, and a node may speak for its own members only (INV-8).
   */
  async engineEvent(nodeId: string, told: EngineEvent): Promise<'told' | 'unclaimed'> {
    const event: EngineEvent = { ...told, node: nodeId };
    try {
      await this.signal(replicaWorkflowId(event.replica), 'engine_event', event);
      return 'told';
    } catch (err) {
      if (!(err instanceof WorkflowNotFoundError)) throw err;
      await this.signal(FLEET_ID, 'unclaimed', { event, why: err.message });
      return 'unclaimed';
    }
  }

  routes = (): Promise<RouteTable> => this.query(FLEET_ID, 'routes');
  nodes = (): Promise<NodeRow[]> => this.query(FLEET_ID, 'nodes');
  ledger = (): Promise<LedgerState> => this.query(FLEET_ID, 'ledger');
  node = (nodeId: string): Promise<NodeState> => this.query(nodeWorkflowId(nodeId), 'status');

  /**
   * Asked a second time after a third of the time: a query that meets a workflow's first task, or a worker that has just
   * died, is sometimes never answered, while the same one a moment later is answered in milliseconds.
   */
  async query<T>(workflowId: string, type: string, within: number = QUERY_MS): Promise<T> {
    const end = Date.now() + within;
    const ask = (until: number): Promise<T> =>
      this.client.connection.withDeadline(until, () =>
        this.client.workflow.getHandle(workflowId).query<T>(type),
      );
    try {
      return await ask(Date.now() + within / 3).catch(err => {
        if (err instanceof WorkflowNotFoundError || Date.now() > end) throw err;
        return ask(end);
      });
    } catch (err) {
      if (err instanceof WorkflowNotFoundError && workflowId !== FLEET_ID) throw err;
      throw new LlmgwError(
        'UNAVAILABLE',
        `${workflowId} did not answer within ${within / 1000} s: Temporal or its worker is down or behind`,
        { cause: err },
      );
    }
  }

  private async signal(workflowId: string, name: string, msg: unknown): Promise<void> {
    await this.client.connection.withDeadline(Date.now() + SIGNAL_MS, () =>
      this.client.workflow.getHandle(workflowId).signal(name, msg),
    );
  }
}
