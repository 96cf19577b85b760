// Which replicas and nodes have an open workflow, by visibility: what a ledger that begins anew must hear of before it
// grants (INV-1). Visibility is seconds behind; what started since then asks the ledger itself.
import type { Client } from '@temporalio/client';
import { replicaNameOf } from '../contracts/ids.js';
import type { Survey } from '../contracts/messages.js';

const OPEN = `ExecutionStatus = 'Running' AND (WorkflowType = 'replica' OR WorkflowType = 'node')`;
/** An entry has 210 bytes at most, so a page stays below 64 KiB (INV-11). */
export const SURVEY_PAGE = 300;
const WITHIN_MS = 30_000;

/** One page; `next` is what the following one is asked with, null: it was the last. */
export async function survey(
  client: Client,
  page: string | null = null,
): Promise<Survey & { next: string | null }> {
  const replicas: Survey['replicas'] = [];
  const nodes: string[] = [];
  const { executions, nextPageToken } = await client.connection.withDeadline(Date.now() + WITHIN_MS, () =>
    client.workflowService.listWorkflowExecutions({
      namespace: client.options.namespace,
      query: OPEN,
      pageSize: SURVEY_PAGE,
      nextPageToken: page === null ? null : Buffer.from(page, 'base64'),
    }),
  );
  for (const run of executions ?? []) {
    const workflowId = run.execution?.workflowId ?? '';
    const name = run.type?.name === 'replica' ? replicaNameOf(workflowId) : null;
    if (name !== null)
      replicas.push({
        name,
        run_id: run.execution?.runId ?? '',
        node: nodeOf(client, run.memo?.fields?.node),
      });
    else if (run.type?.name === 'node' && workflowId.startsWith('node/'))
      nodes.push(workflowId.slice('node/'.length));
  }
  const more = nextPageToken != null && nextPageToken.length > 0;
  return { replicas, nodes, next: more ? Buffer.from(nextPageToken).toString('base64') : null };
}

type Converter = Client['options']['loadedDataConverter']['payloadConverter'];

function nodeOf(client: Client, memo: Parameters<Converter['fromPayload']>[0] | null | undefined) {
  if (memo == null) return null;
  const node = client.options.loadedDataConverter.payloadConverter.fromPayload<unknown>(memo);
  return typeof node === 'string' && node !== '' ? node : null;
}
