// Reads of a workflow what people see of it in the Temporal UI.
import type { WorkflowHandle } from '@temporalio/client';
import { defaultPayloadConverter } from '@temporalio/common';
import temporalProto from '@temporalio/proto';

const { EventType } = temporalProto.temporal.api.enums.v1;

/** `activity type: summary` of every activity of the run, in order. */
export async function activitySummaries(handle: WorkflowHandle): Promise<string[]> {
  const { events } = await handle.fetchHistory();
  return (events ?? [])
    .filter(e => e.eventType === EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
    .map(e => {
      const type = e.activityTaskScheduledEventAttributes?.activityType?.name;
      const summary = e.userMetadata?.summary;
      return `${type}: ${summary == null ? '(none)' : defaultPayloadConverter.fromPayload<string>(summary)}`;
    });
}

export async function currentDetails(handle: WorkflowHandle): Promise<string> {
  const metadata = await handle.query<{ currentDetails?: string }>('__temporal_workflow_metadata');
  return metadata.currentDetails ?? '';
}

/** How many runs the workflow id has had, and how long the longest of the closed ones grew (events). */
export async function runsOf(
  handle: WorkflowHandle,
  first: string,
): Promise<{ runs: number; longest: number }> {
  let runs = 0;
  let longest = 0;
  let next: string | null = first;
  while (next) {
    runs++;
    const run: WorkflowHandle = handle.client.getHandle(handle.workflowId, next);
    const events: temporalProto.temporal.api.history.v1.IHistoryEvent[] =
      (await run.fetchHistory()).events ?? [];
    const continued:
      | temporalProto.temporal.api.history.v1.IWorkflowExecutionContinuedAsNewEventAttributes
      | null
      | undefined = events.at(-1)?.workflowExecutionContinuedAsNewEventAttributes;
    if (continued) longest = Math.max(longest, events.length);
    next = continued?.newExecutionRunId ?? null;
  }
  return { runs, longest };
}

/** How many events of each type a run has. */
export async function eventCounts(handle: WorkflowHandle): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const e of (await handle.fetchHistory()).events ?? []) {
    const name = EventType[e.eventType ?? 0]!.replace('EVENT_TYPE_', '');
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}
