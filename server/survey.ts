// Which replicas and nodes have an open workflow, by visibility: what a ledger that begins anew must hear of before it
// grants (INV-1). Visibility is seconds behind; what started since then asks the ledger itself.
import type { Client } from '@temporalio/client';
import { replicaNameOf } from '../contracts/ids.js';
import type { Survey } from '../contracts/messages.js';

const OPEN = `ExecutionStatus = 'Running' AND (WorkflowType = 'replica' OR WorkflowType = 'node')`;
/** Temporal's own bound of a page; the largest fleet that is planned for (10,000 GPUs) is a dozen of them. */
const PAGE = 1_000;
const PAGES = 100;
const WITHIN_MS = 30_000;

export async function survey(client: Client): Promise<Survey> {
  const replicas: Survey['replicas'] = [];
  const nodes: string[] = [];
  let left = PAGE * PAGES;
  await client.connection.withDeadline(Date.now() + WITHIN_MS, async () => {
    for await (const run of client.workflow.list({ query: OPEN, pageSize: PAGE })) {
      // Half of an answer would let it grant what a replica that was left out holds.
      if (left-- === 0) throw new Error(`there are more than ${PAGE * PAGES} open replicas and nodes`);
      const name = run.type === 'replica' ? replicaNameOf(run.workflowId) : null;
      if (name !== null) replicas.push({ name, run_id: run.runId, node: nodeOf(run.memo) });
      else if (run.type === 'node' && run.workflowId.startsWith('node/'))
        nodes.push(run.workflowId.slice('node/'.length));
    }
  });
  return { replicas, nodes };
}

const nodeOf = (memo: Record<string, unknown> | undefined): string | null =>
  typeof memo?.node === 'string' && memo.node !== '' ? memo.node : null;
