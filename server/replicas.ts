// What operators ask of replicas: list, show, deploy, stop, restart. The answer comes from the workflow; where its
// worker is stuck, from Temporal's own description of it.
import { type Client, WorkflowFailedError, WorkflowNotFoundError } from '@temporalio/client';
import { LlmgwError } from '../contracts/errors.js';
import { replicaNameOf, replicaWorkflowId, WORKFLOW_QUEUE } from '../contracts/ids.js';
import { parseReplicaSpec, specFaultText } from '../contracts/spec.js';
import type { ReplicaStatus } from '../contracts/status.js';
import { type MemberLoad, shown, slowest } from '../domain/replica/progress.js';
import type { LiveEngine } from '../proto/codec.js';
import { ANSWER_MS, answered, updated } from './answer.js';
import { type FleetClient, QUERY_MS } from './fleet.js';
import { whyStuck } from './stuck.js';

/** A row of `ctl replicas`; `source: describe` when the workflow itself could not answer. */
export type ReplicaRow = Pick<ReplicaStatus, 'name' | 'phase' | 'reason' | 'since' | 'generation'> & {
  node: string;
  model: string;
  /** Of the member that answers clients. */
  engine_pid: number | null;
  endpoint: string | null;
  source: 'workflow' | 'describe';
};

interface FoundRun {
  name: string;
  status: string;
  memo: Record<string, unknown>;
  closed: Date | undefined;
  started: Date;
}

export type DeployResult = { result: 'created' | 'changed' | 'unchanged'; name: string; reason: string };

const LIST_LIMIT = 1_000;
const ASK_AT_ONCE = 20;
/** Closed replicas are listed for as long as someone may wonder where they went. */
const CLOSED_SHOWN_MS = 24 * 3_600_000;

export class Replicas {
  constructor(
    private readonly fleet: FleetClient,
    private readonly live: (node: string) => LiveEngine[] | Promise<LiveEngine[]>,
    private readonly answerMs = ANSWER_MS,
  ) {}

  private get client(): Client {
    return this.fleet.client;
  }

  async list(): Promise<ReplicaRow[]> {
    const end = Date.now() + this.answerMs;
    const asked = { what: 'the list of replicas', workflowId: null, within: this.answerMs, end };
    const found = await answered(this.client, asked, () => this.latestRuns());
    const rows: ReplicaRow[] = [];
    for (let i = 0; i < found.length; i += ASK_AT_ONCE) {
      rows.push(
        ...(await Promise.all(
          found.slice(i, i + ASK_AT_ONCE).map(async f => {
            // With a worker that is stuck, each of them costs QUERY_MS: the rest is described.
            const ask = f.status === 'RUNNING' && Date.now() + QUERY_MS <= end;
            const status = ask
              ? await this.fleet.query<ReplicaStatus>(replicaWorkflowId(f.name), 'status').catch(() => null)
              : null;
            if (status !== null) return rowOf(status);
            const ended = f.status !== 'RUNNING' && Date.now() + QUERY_MS <= end;
            return describedRow(ended ? { ...f, end: await this.endOf(f.name, f.status) } : f);
          }),
        )),
      );
    }
    return rows.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** The latest run of each id. */
  private async latestRuns(): Promise<FoundRun[]> {
    const found: FoundRun[] = [];
    const seen = new Set<string>();
    for await (const w of this.client.workflow.list({ query: `WorkflowType = 'replica'` })) {
      const name = replicaNameOf(w.workflowId);
      // Newest first: the first of an id is its latest run.
      if (name === null || seen.has(name)) continue;
      seen.add(name);
      if (w.status.name === 'CONTINUED_AS_NEW') continue;
      if (w.closeTime !== undefined && Date.now() - w.closeTime.getTime() > CLOSED_SHOWN_MS) continue;
      found.push({
        name,
        status: w.status.name,
        memo: w.memo ?? {},
        closed: w.closeTime,
        started: w.startTime,
      });
      if (found.length >= LIST_LIMIT) break;
    }
    return found;
  }

  /** The status with the live figures of the stream in it; of a closed workflow, how it ended. */
  async show(name: string): Promise<ReplicaStatus & { source: 'workflow' | 'describe' }> {
    const row = await this.describe(name);
    const status = await this.fleet.query<ReplicaStatus>(replicaWorkflowId(name), 'status').catch(err => {
      // A spec that was refused never had a status: its end says all.
      if (row.closed || err instanceof LlmgwError) return null;
      throw err;
    });
    if (status === null) {
      const why = row.closed ? null : await whyStuck(this.client, replicaWorkflowId(name));
      return { ...nothingKnown, ...row.row, ...(why === null ? {} : { reason: why }) };
    }
    // What a closed workflow answers is how it was when it closed; terminated ones closed in the middle of something.
    if (row.closed)
      return {
        ...status,
        phase: row.row.phase,
        reason: row.row.reason,
        since: row.row.since,
        source: 'workflow',
      };
    return { ...(await this.withLive(status)), source: 'workflow' };
  }

  async deploy(raw: unknown): Promise<DeployResult> {
    const given = (raw as { name?: unknown } | null)?.name;
    if (typeof given !== 'string') {
      throw new LlmgwError(
        'SPEC_INVALID',
        'name: missing required key (a file that is deployed names its replica)',
      );
    }
    const parsed = parseReplicaSpec(raw, given);
    if (!parsed.ok)
      throw new LlmgwError('SPEC_INVALID', specFaultText(parsed.faults), { details: parsed.faults });
    const workflowId = replicaWorkflowId(given);
    try {
      await this.asked(given, () =>
        this.client.workflow.start('replica', {
          workflowId,
          taskQueue: WORKFLOW_QUEUE,
          args: [raw],
          workflowIdConflictPolicy: 'FAIL',
          workflowIdReusePolicy: 'ALLOW_DUPLICATE',
        }),
      );
      return { result: 'created', name: given, reason: 'the workflow is started' };
    } catch (err) {
      if ((err as Error).name !== 'WorkflowExecutionAlreadyStartedError') throw err;
    }
    const answer = await this.update<{ result: 'accepted' | 'unchanged'; reason: string }>(given, 'apply', [
      raw,
    ]);
    return {
      result: answer.result === 'accepted' ? 'changed' : 'unchanged',
      name: given,
      reason: answer.reason,
    };
  }

  async stop(name: string): Promise<{ result: 'accepted' | 'unchanged'; reason: string }> {
    const { closed, row } = await this.describe(name);
    if (closed) return { result: 'unchanged', reason: `it has ended already (${row.reason})` };
    try {
      await this.asked(name, () => this.client.workflow.getHandle(replicaWorkflowId(name)).cancel());
      return { result: 'accepted', reason: 'it drains, stops, proves the stop and releases its GPUs' };
    } catch (err) {
      if (err instanceof WorkflowNotFoundError) throw notFound(name);
      throw err;
    }
  }

  restart = (name: string): Promise<{ result: 'accepted'; reason: string }> =>
    this.update(name, 'restart', []);

  private async update<T>(name: string, update: string, args: unknown[]): Promise<T> {
    try {
      return await updated<T>(this.client, replicaWorkflowId(name), update, args, this.answerMs);
    } catch (err) {
      if (err instanceof WorkflowNotFoundError) throw notFound(name);
      throw err;
    }
  }

  private asked<T>(name: string, call: () => Promise<T>): Promise<T> {
    const id = replicaWorkflowId(name);
    return answered(this.client, { what: id, workflowId: id, within: this.answerMs }, call);
  }

  /**
   * Heartbeats on the stream are seconds old; the workflow hears of progress at most twice a minute. Of a gang, whose
   * members are at work at the same time, it is the slowest of those that are heard.
   */
  private async withLive(status: ReplicaStatus): Promise<ReplicaStatus> {
    if (status.phase !== 'loading') return status;
    const known = (await Promise.all(status.members.map(m => this.loadOf(status, m)))).flat();
    if (known.length === 0) return status;
    const progress = { ...slowest(status, known, known[0]!), at: new Date().toISOString() };
    return { ...status, progress: shown(progress) };
  }

  /** Empty: its node isn't heard, or tells of no stage. */
  private async loadOf(
    { name, fence }: ReplicaStatus,
    { node, rank }: { node: string; rank: number },
  ): Promise<MemberLoad[]> {
    const engines = await this.live(node);
    const engine = engines.find(e => e.replica === name && e.fence === fence && e.rank === rank);
    if (engine === undefined || engine.stage === null) return [];
    const { stage, percent, eta_ms } = engine;
    return [{ node, rank, stage, percent, ...(eta_ms === undefined ? {} : { eta_ms }) }];
  }

  /** Why a closed workflow ended, in its own words. */
  private async endOf(name: string, status: string): Promise<string> {
    if (status === 'CANCELLED') return 'stopped as asked';
    if (status === 'TERMINATED')
      return 'workflow terminated: an engine that it left is stopped within a minute or two unless a new run of this id claims it';
    if (status !== 'FAILED') return `workflow ${status.toLowerCase()}`;
    try {
      await this.client.connection.withDeadline(Date.now() + QUERY_MS, () =>
        this.client.workflow.getHandle(replicaWorkflowId(name)).result(),
      );
      return 'workflow failed';
    } catch (err) {
      return err instanceof WorkflowFailedError && err.cause instanceof Error
        ? err.cause.message
        : 'workflow failed';
    }
  }

  /** Temporal's own description: needs no worker. Throws REPLICA_NOT_FOUND. */
  private async describe(
    name: string,
  ): Promise<{ closed: boolean; row: ReplicaRow & { source: 'describe' } }> {
    try {
      const d = await this.client.connection.withDeadline(Date.now() + QUERY_MS, () =>
        this.client.workflow.getHandle(replicaWorkflowId(name)).describe(),
      );
      const closed = d.status.name !== 'RUNNING';
      const end = closed ? await this.endOf(name, d.status.name) : '';
      const row = describedRow({
        name,
        status: d.status.name,
        memo: d.memo ?? {},
        closed: d.closeTime,
        started: d.startTime,
        end,
      });
      return { closed, row };
    } catch (err) {
      if (err instanceof WorkflowNotFoundError) throw notFound(name);
      throw err;
    }
  }
}

/** What a workflow that doesn't answer leaves open. */
const nothingKnown: Omit<ReplicaStatus, keyof ReplicaRow> & { members: [] } = {
  deadline: null,
  fence: null,
  spec_hash: '',
  progress: null,
  members: [],
  placement: { why: null },
  restarts: { in_window: 0, left: 0 },
  last_failure: null,
  journal: [],
  spec: { model: '', served_model_name: '', engine: '' },
};

function notFound(name: string): LlmgwError {
  return new LlmgwError('REPLICA_NOT_FOUND', `there is no replica/${name}`);
}

const rowOf = (s: ReplicaStatus): ReplicaRow => ({
  name: s.name,
  phase: s.phase,
  reason: s.reason,
  since: s.since,
  generation: s.generation,
  node: s.members.map(m => m.node).join(','),
  model: s.spec.served_model_name,
  engine_pid: s.members.find(m => m.rank === 0)?.pid ?? null,
  endpoint: s.endpoint,
  source: 'workflow',
});

function describedRow(w: {
  name: string;
  status: string;
  memo: Record<string, unknown>;
  closed: Date | undefined;
  started: Date;
  /** Why it ended, of a closed one. */
  end?: string;
}): ReplicaRow & { source: 'describe' } {
  const text = (v: unknown): string => (typeof v === 'string' ? v : '');
  const phase =
    w.status === 'RUNNING'
      ? text(w.memo.phase)
      : w.status === 'CANCELLED' || w.status === 'COMPLETED'
        ? 'stopped'
        : 'failed';
  return {
    name: w.name,
    phase: (phase || 'pending') as ReplicaRow['phase'],
    reason:
      w.status === 'RUNNING'
        ? 'its workflow does not answer; this is what Temporal has of it'
        : (w.end ?? `workflow ${w.status.toLowerCase()}`),
    since: (w.closed ?? w.started).toISOString(),
    generation: 0,
    node: text(w.memo.node),
    model: text(w.memo.model),
    engine_pid: null,
    endpoint: null,
    source: 'describe',
  };
}
