// Operators' requests against a Temporal that takes calls and never answers.
import { Client, Connection } from '@temporalio/client';
import temporalProto from '@temporalio/proto';
import { expect, onTestFinished, test } from 'vitest';
import { FleetClient } from '../../server/fleet.js';
import { Replicas } from '../../server/replicas.js';
import { startFakeUpstream } from '../fakes/temporal-upstream.js';

const { DescribeWorkflowExecutionResponse } = temporalProto.temporal.api.workflowservice.v1;
const RUNNING = Buffer.from(
  DescribeWorkflowExecutionResponse.encode({
    workflowExecutionInfo: {
      execution: { workflowId: 'replica/demo', runId: 'run-1' },
      type: { name: 'replica' },
      status: temporalProto.temporal.api.enums.v1.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
      startTime: { seconds: 1_790_000_000 as never },
    },
  }).finish(),
);

async function stuck(...methods: string[]): Promise<Replicas> {
  const upstream = await startFakeUpstream();
  upstream.answers.set('DescribeWorkflowExecution', RUNNING);
  for (const method of methods) upstream.answers.set(method, 'hang');
  const connection = await Connection.connect({ address: upstream.address });
  onTestFinished(async () => {
    await connection.close();
    upstream.close();
  });
  return new Replicas(new FleetClient(new Client({ connection })), () => [], 200);
}

const spec = { name: 'demo', model: 'Qwen/Qwen3-8B', engine: 'vllm' };
const unanswered = {
  code: 'UNAVAILABLE',
  message: expect.stringContaining('llmgw temporal workflow describe --workflow-id replica/demo'),
};

test('an update that a stuck worker does not answer ends as UNAVAILABLE, and says where it shows', async () => {
  const replicas = await stuck('UpdateWorkflowExecution', 'PollWorkflowExecutionUpdate');
  await expect(replicas.restart('demo')).rejects.toMatchObject(unanswered);
});

test('a start and a cancel that Temporal does not answer end as UNAVAILABLE', async () => {
  const replicas = await stuck('StartWorkflowExecution', 'RequestCancelWorkflowExecution');
  await expect(replicas.deploy(spec)).rejects.toMatchObject(unanswered);
  await expect(replicas.stop('demo')).rejects.toMatchObject(unanswered);
});

test('a listing that Temporal does not answer ends as UNAVAILABLE', async () => {
  const replicas = await stuck('ListWorkflowExecutions');
  await expect(replicas.list()).rejects.toMatchObject({ code: 'UNAVAILABLE' });
});
