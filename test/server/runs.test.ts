// What the control plane asks of Temporal itself, on the real dev server: no worker runs here, the tests answer the
// workflows' tasks by hand.
import temporalProto from '@temporalio/proto';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { FLEET_ID, WORKFLOW_QUEUE } from '../../contracts/ids.js';
import { findTemporal } from '../../dev/temporal-binary.js';
import { FleetClient, isLedgerGone } from '../../server/fleet.js';
import { Runs } from '../../server/runs.js';
import { exitOf } from '../stream/support.js';
import { quietRuntime } from '../workflow/runtime.js';

let env: TestWorkflowEnvironment;
let fleet: FleetClient;
let runs: Runs;
const namespace = 'default';
const { CommandType } = temporalProto.temporal.api.enums.v1;

beforeAll(async () => {
  quietRuntime();
  const { path } = await findTemporal();
  env = await TestWorkflowEnvironment.createLocal({
    server: { executable: { type: 'existing-path', path }, log: { format: 'pretty', level: 'never' } },
  });
  fleet = new FleetClient(env.client);
  runs = new Runs(env.client);
});
afterAll(() => env?.teardown());

const startReplica = (name: string) =>
  env.client.workflow.start('replica', { taskQueue: `tasks-${name}`, workflowId: `replica/${name}` });

/** Completes the next workflow task of the queue, with a continue-as-new if asked. */
async function task(queue: string, continueAs?: string): Promise<void> {
  const { workflowService } = env.client;
  const taskQueue = { name: queue };
  const { taskToken } = await env.connection.withDeadline(Date.now() + 15_000, () =>
    workflowService.pollWorkflowTaskQueue({ namespace, taskQueue }),
  );
  const commands =
    continueAs === undefined
      ? []
      : [
          {
            commandType: CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION,
            continueAsNewWorkflowExecutionCommandAttributes: {
              workflowType: { name: continueAs },
              taskQueue,
            },
          },
        ];
  await workflowService.respondWorkflowTaskCompleted({ namespace, taskToken, commands });
}

async function reset(workflowId: string): Promise<string> {
  const { runId } = await env.client.workflowService.resetWorkflowExecution({
    namespace,
    workflowExecution: { workflowId },
    reason: 'a person in the UI',
    workflowTaskFinishEventId: 4 as never,
    requestId: `reset-${workflowId}`,
  });
  return runId;
}

test('open replicas and nodes are listed with their runs; closed ones, and the ledger, are not', async () => {
  const open = await startReplica('open');
  const closed = await startReplica('closed');
  await closed.terminate();
  await env.client.workflow.start('node', { taskQueue: 'none', workflowId: 'node/gpu-a-01' });
  await env.client.workflow.start('fleet', { taskQueue: 'none', workflowId: FLEET_ID });
  await expect
    .poll(() => runs.open(), { timeout: 15_000 })
    .toEqual({ replicas: new Map([['open', open.firstExecutionRunId]]), nodes: new Set(['gpu-a-01']) });
  expect(await runs.nodeIsOpen('gpu-a-01')).toBe(true);
  await env.client.workflow.getHandle('node/gpu-a-01').terminate();
  expect(await runs.nodeIsOpen('gpu-a-01')).toBe(false);
  expect(await runs.nodeIsOpen('gpu-b-02')).toBe(false);
});

test('the latest run of a replica is described with how it ended and the first run of its chain', async () => {
  const handle = await startReplica('latest');
  const first = handle.firstExecutionRunId;
  expect(await runs.latest('latest')).toMatchObject({ status: 'RUNNING', firstRunId: first, closedAt: null });
  await task('tasks-latest', 'replica');
  const next = await runs.latest('latest');
  expect(next).toMatchObject({ status: 'RUNNING', firstRunId: first });
  expect(next?.runId).not.toBe(first);
  await env.client.workflow.getHandle('replica/latest').terminate();
  const ended = await runs.latest('latest');
  expect(ended).toMatchObject({ status: 'TERMINATED', runId: next?.runId, firstRunId: first });
  expect(ended?.closedAt).toBeGreaterThan(0);
  expect(await runs.latest('never-was')).toBeNull();
});

test('a reset run shows by its first event, and a continued one what it continues', async () => {
  const workflowId = 'replica/begun';
  const { firstExecutionRunId: first } = await startReplica('begun');
  expect(await runs.start(workflowId, first)).toEqual({ originalRunId: first, continuedRunId: null });
  await task('tasks-begun', 'replica');
  const second = (await runs.latest('begun'))!.runId;
  expect(await runs.start(workflowId, second)).toEqual({ originalRunId: second, continuedRunId: first });
  await task('tasks-begun');
  const third = await reset(workflowId);
  expect(third).not.toBe(second);
  expect(await runs.start(workflowId, third)).toEqual({ originalRunId: second, continuedRunId: first });
  expect((await runs.latest('begun'))?.firstRunId).toBe(first);
  expect(await runs.start(workflowId, '00000000-0000-0000-0000-000000000000')).toBeNull();
});

test('a ledger that was terminated counts as gone, and the next who has something for it starts it', async () => {
  await env.client.workflow.getHandle(FLEET_ID).terminate();
  const asked = fleet.routes().catch(err => err);
  expect(isLedgerGone(await asked)).toBe(true);
  expect(await asked).toMatchObject({ code: 'UNAVAILABLE', message: expect.stringContaining('no ledger') });
  // An exit that no replica takes is acknowledged: Temporal has it.
  expect(await fleet.engineEvent('gpu-a-01', exitOf('nobody'))).toBe('unclaimed');
  const { status, taskQueue } = await env.client.workflow.getHandle(FLEET_ID).describe();
  expect([status.name, taskQueue]).toEqual(['RUNNING', WORKFLOW_QUEUE]);
});

test('a node whose workflow was terminated answers nothing that it knew', async () => {
  await expect(fleet.node('gpu-a-01')).rejects.toThrow(/closed/);
});
