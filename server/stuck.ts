// Why a workflow that is open doesn't answer, from what Temporal itself knows: no worker takes its tasks, or each try of
// its task fails (a build that can't replay it). Needs no worker.
import type { Client } from '@temporalio/client';
import { WORKFLOW_QUEUE } from '../contracts/ids.js';

const WITHIN_MS = 2_000;
/** A poll lasts a minute: a poller that asked before that is gone. */
const POLLER_GONE_MS = 70_000;
/** temporal.api.enums.v1.TaskQueueType. */
const WORKFLOW_TASKS = 1;
/** Events that are looked through for the last failed task. */
const LAST = 20;

/** One clause for people; null: nothing that Temporal knows of. Never rejects. */
export async function whyStuck(client: Client, workflowId: string, now = Date.now()): Promise<string | null> {
  try {
    return await client.connection.withDeadline(now + WITHIN_MS, async () =>
      (await hasWorker(client, now))
        ? await failingTask(client, workflowId)
        : 'no control plane worker takes the tasks of workflows: see whether `llmgw server` runs',
    );
  } catch {
    return null;
  }
}

async function hasWorker(client: Client, now: number): Promise<boolean> {
  const { pollers } = await client.workflowService.describeTaskQueue({
    namespace: client.options.namespace,
    taskQueue: { name: WORKFLOW_QUEUE },
    taskQueueType: WORKFLOW_TASKS,
  });
  return (pollers ?? []).some(p => now - Number(p.lastAccessTime?.seconds ?? 0) * 1_000 < POLLER_GONE_MS);
}

async function failingTask(client: Client, workflowId: string): Promise<string | null> {
  const execution = { workflowId };
  const { namespace } = client.options;
  const { raw } = await client.workflow.getHandle(workflowId).describe();
  const attempt = raw.pendingWorkflowTask?.attempt ?? 0;
  if (attempt < 2) return null;
  const { history } = await client.workflowService.getWorkflowExecutionHistoryReverse({
    namespace,
    execution,
    maximumPageSize: LAST,
  });
  const failed = (history?.events ?? []).find(e => e.workflowTaskFailedEventAttributes != null);
  const cause = failed?.workflowTaskFailedEventAttributes?.failure?.message ?? 'it is not answered in time';
  return `stuck: its workflow task fails (attempt ${attempt}): ${cause.slice(0, 300)}`;
}
