// Operators' requests against a Temporal that takes calls and never answers.
import { Client, Connection } from '@temporalio/client';
import temporalProto from '@temporalio/proto';
import { expect, onTestFinished, test } from 'vitest';
import type { MemberStatus, ReplicaStatus } from '../../contracts/status.js';
import type { LiveEngine } from '../../proto/codec.js';
import { FleetClient } from '../../server/fleet.js';
import { Replicas } from '../../server/replicas.js';
import { startFakeUpstream } from '../fakes/temporal-upstream.js';

const { DescribeWorkflowExecutionResponse, ListWorkflowExecutionsResponse, QueryWorkflowResponse } =
  temporalProto.temporal.api.workflowservice.v1;
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

const stuck = (...methods: string[]): Promise<Replicas> =>
  replicasAt(Object.fromEntries(methods.map(method => [method, 'hang'])), () => [], 200);

async function replicasAt(
  answers: Record<string, Buffer | 'hang'>,
  live: (node: string) => LiveEngine[] = () => [],
  answerMs?: number,
): Promise<Replicas> {
  const upstream = await startFakeUpstream();
  upstream.answers.set('DescribeWorkflowExecution', RUNNING);
  for (const [method, answer] of Object.entries(answers)) upstream.answers.set(method, answer);
  const connection = await Connection.connect({ address: upstream.address });
  onTestFinished(async () => {
    await connection.close();
    upstream.close();
  });
  return new Replicas(new FleetClient(new Client({ connection })), live, answerMs);
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

const statusAnswer = (over: Partial<ReplicaStatus>): Buffer => {
  const status = { name: 'demo', phase: 'loading', fence: 7, progress: null, spec: {}, ...over };
  const payload = {
    metadata: { encoding: Buffer.from('json/plain') },
    data: Buffer.from(JSON.stringify(status)),
  };
  return Buffer.from(QueryWorkflowResponse.encode({ queryResult: { payloads: [payload] } }).finish());
};
const member = (rank: number): MemberStatus => ({
  node: `n${rank}`,
  rank,
  gpus: [],
  pid: 100 + rank,
  ports: {},
  state: 'loading',
});
const loads = (rank: number, over: Partial<LiveEngine>): LiveEngine => ({
  replica: 'demo',
  fence: 7,
  rank,
  state: 'loading',
  pid: 100 + rank,
  gpus: [],
  ports: {},
  stage: 'loading weights',
  percent: null,
  ...over,
});

test('a load is shown as the streams tell it: of a gang the slowest member that tells a figure, by name', async () => {
  const engines: Record<string, LiveEngine[]> = {};
  const shows = async (...ranks: number[]) => {
    const QueryWorkflow = statusAnswer({ members: ranks.map(member), progress });
    const replicas = await replicasAt({ QueryWorkflow }, node => engines[node] ?? []);
    return (await replicas.show('demo')).progress;
  };
  const at = expect.any(String);
  const progress = { stage: 'by the workflow', percent: 3, eta_s: null, at: 'then' };
  expect(await shows(0, 1, 2)).toEqual(progress);
  engines.n0 = [loads(0, { fence: 6, percent: 1 }), loads(0, { stage: 'joining members' })];
  expect(await shows(0, 1, 2)).toEqual({
    stage: 'n0 (rank 0): joining members',
    percent: null,
    eta_s: null,
    at,
  });
  engines.n1 = [loads(1, { percent: 60, eta_ms: 4_000 })];
  engines.n2 = [loads(2, { percent: 35, eta_ms: 11_400 })];
  expect(await shows(0, 1, 2)).toEqual({
    stage: 'n2 (rank 2): loading weights',
    percent: 35,
    eta_s: 11,
    at,
  });
  expect(await shows(2)).toEqual({ stage: 'loading weights', percent: 35, eta_s: 11, at });
});

test('the list has the pid of the member that answers clients, whichever are left', async () => {
  const execution = { workflowId: 'replica/demo', runId: 'run-1' };
  const info = {
    execution,
    type: { name: 'replica' },
    status: 1,
    startTime: { seconds: 1_790_000_000 as never },
  };
  const listed = Buffer.from(ListWorkflowExecutionsResponse.encode({ executions: [info] }).finish());
  const pidAmong = async (...ranks: number[]) => {
    const QueryWorkflow = statusAnswer({ members: ranks.map(member) });
    const replicas = await replicasAt({ ListWorkflowExecutions: listed, QueryWorkflow });
    return (await replicas.list()).map(r => [r.source, r.node, r.engine_pid]);
  };
  expect(await pidAmong(0, 1)).toEqual([['workflow', 'n0,n1', 100]]);
  expect(await pidAmong(1)).toEqual([['workflow', 'n1', null]]);
});
