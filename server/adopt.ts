// `ctl replica adopt`: a process that llmgw didn't start becomes the first generation of a replica. What can be judged
// here is refused here; whether the process is what it is said to be, its node looks up for the workflow.
import { z } from 'zod';
import { LlmgwError } from '../contracts/errors.js';
import { replicaWorkflowId, WORKFLOW_QUEUE } from '../contracts/ids.js';
import type { AdoptRequest } from '../contracts/messages.js';
import { parseReplicaSpec, specFaultText } from '../contracts/spec.js';
import { answered } from './answer.js';
import type { FleetClient } from './fleet.js';

const Request = z.strictObject({
  node: z.string().min(1),
  /** 1 is the machine's init. */
  pid: z.number().int().min(2),
  port: z.number().int().min(1).max(65_535),
  spec: z.unknown(),
});

export interface Adopted {
  result: 'created';
  name: string;
  reason: string;
}

export async function adopt(fleet: FleetClient, name: string, body: unknown): Promise<Adopted> {
  const given = Request.safeParse(body);
  if (!given.success)
    throw new LlmgwError(
      'BAD_REQUEST',
      given.error.issues.map(i => `${i.path.join('.') || 'the body'}: ${i.message}`).join('; '),
    );
  const { node, pid, port, spec } = given.data;
  const parsed = parseReplicaSpec(spec, name);
  if (!parsed.ok)
    throw new LlmgwError('SPEC_INVALID', specFaultText(parsed.faults), { details: parsed.faults });
  await connected(fleet, node);
  const workflowId = replicaWorkflowId(name);
  const process: AdoptRequest = { node, pid, port };
  const asked = { what: workflowId, workflowId };
  try {
    await answered(fleet.client, asked, () =>
      fleet.client.workflow.start('replica', {
        workflowId,
        taskQueue: WORKFLOW_QUEUE,
        args: [spec, { adopt: process }],
        workflowIdConflictPolicy: 'FAIL',
        workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      }),
    );
  } catch (err) {
    if ((err as Error).name !== 'WorkflowExecutionAlreadyStartedError') throw err;
    throw new LlmgwError(
      'ADOPT_REFUSED',
      `${workflowId} runs already and has an engine of its own: stop it first (llmgw ctl replica stop ${name}), or give the process another name`,
    );
  }
  return { result: 'created', name, reason: `the workflow is started, ${node} looks at pid ${pid}` };
}

/** Only a node that is there can look at the process. */
async function connected(fleet: FleetClient, node: string): Promise<void> {
  const row = (await fleet.nodes()).find(r => r.node_id === node);
  if (row === undefined) throw new LlmgwError('NODE_NOT_FOUND', `there is no node ${node}`);
  if (row.state !== 'connected')
    throw new LlmgwError('NODE_UNREACHABLE', `${node} is ${row.state} (${row.reason})`);
}
