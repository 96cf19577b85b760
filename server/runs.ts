// What Temporal itself knows of runs: by visibility, by description, by a history's first event. Needs no worker, so it
// answers while workflows are stuck or gone; "not found" is an answer of its own (INV-5).
import { type Client, type WorkflowExecutionStatusName, WorkflowNotFoundError } from '@temporalio/client';
import { nodeWorkflowId, replicaNameOf, replicaWorkflowId } from '../contracts/ids.js';

const LIST_MS = 10_000;
const DESCRIBE_MS = 3_000;
const PAGE = 1_000;

/** Open runs. Visibility lags behind by a second or more: what is missing here is described before it is believed. */
export interface OpenRuns {
  /** Replica → run id. */
  replicas: Map<string, string>;
  nodes: Set<string>;
}

export interface LatestRun {
  runId: string;
  /** First run of its chain of continuations and resets. */
  firstRunId: string;
  status: WorkflowExecutionStatusName;
  closedAt: number | null;
  /** First run of the chain, as far as it is known: this run's own start. */
  startedAt: number;
}

/** How a run began. */
export interface RunStart {
  /** Another id than the run's own: it was reset. */
  originalRunId: string;
  /** null: it continues none. */
  continuedRunId: string | null;
}

export class Runs {
  constructor(private readonly client: Client) {}

  /** One list of all open replicas and nodes. */
  open = (): Promise<OpenRuns> =>
    this.client.connection.withDeadline(Date.now() + LIST_MS, async () => {
      const open: OpenRuns = { replicas: new Map(), nodes: new Set() };
      const query = `ExecutionStatus = 'Running' AND WorkflowType IN ('replica', 'node')`;
      for await (const w of this.client.workflow.list({ query, pageSize: PAGE })) {
        const replica = replicaNameOf(w.workflowId);
        if (replica !== null) open.replicas.set(replica, w.runId);
        else open.nodes.add(w.workflowId.slice(nodeWorkflowId('').length));
      }
      return open;
    });

  /** The latest run of the replica's id; null: there is none that Temporal remembers. */
  latest = (replica: string): Promise<LatestRun | null> => this.describe(replicaWorkflowId(replica));

  nodeIsOpen = async (nodeId: string): Promise<boolean> =>
    (await this.describe(nodeWorkflowId(nodeId)))?.status === 'RUNNING';

  /** null: its history can't be read any more. */
  start = async (workflowId: string, runId: string): Promise<RunStart | null> => {
    try {
      const { history } = await this.client.connection.withDeadline(Date.now() + DESCRIBE_MS, () =>
        this.client.workflowService.getWorkflowExecutionHistory({
          namespace: this.client.options.namespace,
          execution: { workflowId, runId },
          maximumPageSize: 1,
        }),
      );
      const began = history?.events?.[0]?.workflowExecutionStartedEventAttributes;
      if (began == null) return null;
      return {
        originalRunId: began.originalExecutionRunId || runId,
        continuedRunId: began.continuedExecutionRunId || null,
      };
    } catch (err) {
      // gRPC's NOT_FOUND: the run is past its retention.
      if ((err as { code?: unknown }).code === 5) return null;
      throw err;
    }
  };

  private async describe(workflowId: string): Promise<LatestRun | null> {
    try {
      const d = await this.client.connection.withDeadline(Date.now() + DESCRIBE_MS, () =>
        this.client.workflow.getHandle(workflowId).describe(),
      );
      return {
        runId: d.runId,
        firstRunId: d.raw.workflowExecutionInfo?.firstRunId ?? '',
        status: d.status.name,
        closedAt: d.closeTime?.getTime() ?? null,
        startedAt: d.startTime.getTime(),
      };
    } catch (err) {
      if (err instanceof WorkflowNotFoundError) return null;
      throw err;
    }
  }
}
