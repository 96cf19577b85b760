// What the control plane says to the workflows: signals and queries, each bounded. The one place that starts `fleet`
// and `node/<id>`; both starts are idempotent.
import { type Client, QueryRejectedError, WorkflowClient, WorkflowNotFoundError } from '@temporalio/client';
import type { EngineEvent } from '../contracts/engine.js';
import { LlmgwError } from '../contracts/errors.js';
import { FLEET_ID, nodeWorkflowId, replicaWorkflowId, WORKFLOW_QUEUE } from '../contracts/ids.js';
import type {
  ClosedMsg,
  Holders,
  InstanceMsg,
  LedgerReply,
  NodeDigest,
  NodeForget,
  NodeGone,
  NodeHello,
  NodeInventory,
  NodeNote,
  ProgressMsg,
  ProveAgain,
  WelcomeInfo,
} from '../contracts/messages.js';
import type { LedgerRoutes } from '../contracts/routes.js';
import type { BrakeStatus, FleetStatus, LeftHold, NodeRow, ProvenAgain } from '../contracts/status.js';
import {
  type PackedHolders,
  type PackedLedger,
  type PackedRoutes,
  unpackHolders,
  unpackLedger,
  unpackRoutes,
} from '../domain/ledger/pack.js';
import type { LedgerState } from '../domain/ledger/state.js';
import type { NodeState } from '../domain/node-state.js';
import { updated } from './answer.js';

/** A control plane that dies in the middle of a task holds its workflow up for this long (Temporal's default is 10 s). */
const TASK_TIMEOUT = '5s';

/** A query without a worker hangs for as long as it may: an operator waits 3 s at most. */
export const QUERY_MS = 3_000;
/**
 * A Hello is worth waiting for: after a kill -9 its node's task is offered to the dead worker first (worker.ts), and an
 * agent that is refused comes back after a back-off. Below the stream's own limit for a Hello (8 s).
 */
const HELLO_MS = 6_000;
/** A leaked GPU is looked at once, twice with a word; without figures of its driver a look is 10 s of waiting. */
const PROVE_MS = 30_000;
/** A signal needs no worker, only Temporal itself. */
const SIGNAL_MS = 10_000;

export class FleetClient {
  /** Made at the first query: it refuses those of closed runs. */
  private open: WorkflowClient | null = null;
  private polling: Promise<unknown> = Promise.resolve();

  constructor(readonly client: Client) {}

  /** This instance's workers start: a query that is asked before they poll may find none, and would use up its time. */
  holdQueries(until: Promise<unknown>): void {
    this.polling = until.catch(() => undefined);
  }

  /** Starts the ledger if it isn't there, and registers this instance with it. */
  register = (msg: InstanceMsg): Promise<void> => this.signalLedger('instance', msg);

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
    return this.query<WelcomeInfo>(nodeWorkflowId(nodeId), 'welcome', HELLO_MS);
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
      const told = { event, why: err.message };
      try {
        await this.signal(FLEET_ID, 'unclaimed', told);
      } catch (gone) {
        if (!(gone instanceof WorkflowNotFoundError)) throw gone;
        await this.signalLedger('unclaimed', told);
      }
      return 'unclaimed';
    }
  }

  routes = async (): Promise<LedgerRoutes> =>
    unpackRoutes(await this.query<PackedRoutes>(FLEET_ID, 'routes'));
  nodes = (): Promise<NodeRow[]> => this.query(FLEET_ID, 'nodes');
  ledger = async (): Promise<LedgerState> => unpackLedger(await this.query<PackedLedger>(FLEET_ID, 'ledger'));
  holders = async (): Promise<Holders> => unpackHolders(await this.query<PackedHolders>(FLEET_ID, 'holders'));
  status = (): Promise<FleetStatus> => this.query(FLEET_ID, 'status');
  /** Holds on a node that could not be proven to have ended. */
  left = (nodeId: string): Promise<LeftHold[]> => this.query(FLEET_ID, 'left', QUERY_MS, [nodeId]);
  node = (nodeId: string): Promise<NodeState> => this.query(nodeWorkflowId(nodeId), 'status');

  /** What the janitor found closed. */
  closed = (msg: ClosedMsg): Promise<void> => this.signal(FLEET_ID, 'closed', msg);
  /** The ledger was reset to an earlier point, which it can't know by itself. */
  rebuild = (msg: { why: string }): Promise<void> => this.signal(FLEET_ID, 'rebuild', msg);
  /** Asks a replica to tell the ledger what it holds. */
  askAssert = (replica: string): Promise<void> =>
    this.signal(replicaWorkflowId(replica), 'ledger', { kind: 'assert', key: '' } satisfies LedgerReply);

  brake = (on: boolean, by: string): Promise<BrakeStatus> => this.update<BrakeStatus>('brake', { on, by });

  /** The operator's word that the node's engines are dead. The ledger decides; the node's own workflow hears of it. */
  async forget(node: string, by: string): Promise<{ result: 'accepted'; reason: string }> {
    const done = await this.update<{ result: 'accepted'; reason: string }>('forget', { node, by });
    try {
      await this.signal(nodeWorkflowId(node), 'forget', { by } satisfies NodeForget);
    } catch (err) {
      if (!(err instanceof WorkflowNotFoundError)) throw err;
    }
    return done;
  }

  /** The node looks again at what is left there; the ledger ends what it proves, or what the operator's word ends. */
  proveLeft = (asked: ProveAgain): Promise<{ holds: ProvenAgain[] }> =>
    this.update('prove_left', asked, PROVE_MS);

  /** A line for the node's journal. One that is gone hears nothing. */
  async noteNode(nodeId: string, note: NodeNote): Promise<void> {
    await this.signal(nodeWorkflowId(nodeId), 'note', note).catch(err => {
      if (!(err instanceof WorkflowNotFoundError)) throw err;
    });
  }

  /**
   * Asked a second time after a third of the time: a query that meets a workflow's first task, or a worker that has just
   * died, is sometimes never answered, while the same one a moment later is answered in milliseconds.
   */
  async query<T>(workflowId: string, type: string, within = QUERY_MS, args: string[] = []): Promise<T> {
    await this.polling;
    const end = Date.now() + within;
    const ask = (until: number): Promise<T> =>
      this.client.connection.withDeadline(until, () =>
        this.queriesOf(workflowId).query<T, string[]>(type, ...args),
      );
    try {
      return await ask(Date.now() + within / 3).catch(err => {
        if (isNone(err) || Date.now() > end) throw err;
        return ask(end);
      });
    } catch (err) {
      if (isNone(err)) throw workflowId === FLEET_ID ? noLedger(err) : notFound(workflowId, err);
      throw new LlmgwError(
        'UNAVAILABLE',
        `${workflowId} did not answer within ${within / 1000} s: Temporal or its worker is down or behind`,
        { cause: err },
      );
    }
  }

  /**
   * What a closed replica last knew is worth showing. An entity that was terminated is gone: believing what it last knew
   * would keep everybody from starting it again.
   */
  private queriesOf(workflowId: string) {
    const isEntity = workflowId === FLEET_ID || workflowId.startsWith(nodeWorkflowId(''));
    if (!isEntity) return this.client.workflow.getHandle(workflowId);
    this.open ??= new WorkflowClient({
      connection: this.client.connection,
      namespace: this.client.options.namespace,
      queryRejectCondition: 'NOT_OPEN',
    });
    return this.open.getHandle(workflowId);
  }

  private async update<T>(update: string, arg: object, within?: number): Promise<T> {
    try {
      return await updated<T>(this.client, FLEET_ID, update, [arg], within);
    } catch (err) {
      if (!(err instanceof WorkflowNotFoundError)) throw err;
      throw noLedger(err);
    }
  }

  private async signal(workflowId: string, name: string, msg: unknown): Promise<void> {
    await this.client.connection.withDeadline(Date.now() + SIGNAL_MS, () =>
      this.client.workflow.getHandle(workflowId).signal(name, msg),
    );
  }

  /** Starts the ledger if it isn't there. */
  private async signalLedger(signal: string, msg: unknown): Promise<void> {
    await this.client.connection.withDeadline(Date.now() + SIGNAL_MS, () =>
      this.client.workflow.signalWithStart('fleet', {
        workflowId: FLEET_ID,
        taskQueue: WORKFLOW_QUEUE,
        workflowTaskTimeout: TASK_TIMEOUT,
        args: [],
        signal,
        signalArgs: [msg],
      }),
    );
  }
}

/** Temporal answers, and the ledger isn't there or is closed. */
export const isLedgerGone = (err: unknown): boolean => err instanceof LlmgwError && isNone(err.cause);

const isNone = (err: unknown): boolean =>
  err instanceof WorkflowNotFoundError || err instanceof QueryRejectedError;

const noLedger = (cause: unknown): LlmgwError =>
  new LlmgwError('UNAVAILABLE', 'there is no ledger (workflow fleet) just now: a control plane starts it', {
    cause,
  });

const notFound = (workflowId: string, err: unknown): WorkflowNotFoundError =>
  err instanceof WorkflowNotFoundError
    ? err
    : new WorkflowNotFoundError(`${workflowId} is closed`, workflowId, undefined);
