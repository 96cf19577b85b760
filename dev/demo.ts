// The demo replica: started through Temporal like anybody's, and followed until it serves.
import type { Client } from '@temporalio/client';
import { replicaWorkflowId, WORKFLOW_QUEUE } from '../contracts/ids.js';
import type { ReplicaStatus } from '../contracts/status.js';
import { routerOffers } from './api.js';
import type { Hardware } from './hardware.js';

export const DEMO = 'demo';
export const DEMO_MODEL = 'qwen3-8b';
const FOLLOW_MS = 250;
/** A query hangs while no worker is up; the next one is asked instead. */
const QUERY_MS = 3_000;

export interface DemoOptions {
  /** Temporal's. */
  address: string;
  routerPort: number;
  hardware: Hardware;
  say: (line: string) => void;
  signal: AbortSignal;
}

export interface DemoFollower {
  /** Resolves when it is ready, has ended, or can't be started; never rejects. */
  settled: Promise<void>;
  close(): Promise<void>;
}

export function demoSpec(hardware: Hardware) {
  return {
    model: 'Qwen/Qwen3-8B',
    served_model_name: DEMO_MODEL,
    engine: 'vllm',
    tensor_parallel: hardware.simulated || hardware.gpus >= 2 ? 2 : 1,
  };
}

/** Starts replica/demo unless it is open already, and says its phases as they change. */
export function runDemo(options: DemoOptions): DemoFollower {
  let close = async () => {};
  const settled = (async () => {
    // Loaded here: the parts are up sooner without it.
    const { Client, Connection } = await import('@temporalio/client');
    const connection = await Connection.connect({ address: options.address });
    close = () => connection.close();
    const client = new Client({ connection });
    const started = await startDemo(client, options.hardware);
    const id = replicaWorkflowId(DEMO);
    options.say(started ? `${id} is deployed.` : `${id} is there already and is picked up.`);
    await follow(client, options);
  })().catch(error => {
    if (!options.signal.aborted)
      options.say(`The demo replica can't be started: ${(error as Error).message}`);
  });
  return { settled, close: () => close() };
}

/** True when it was started, false when it is open already. */
async function startDemo(client: Client, hardware: Hardware): Promise<boolean> {
  try {
    await client.workflow.start('replica', {
      workflowId: replicaWorkflowId(DEMO),
      taskQueue: WORKFLOW_QUEUE,
      args: [demoSpec(hardware)],
      workflowIdConflictPolicy: 'FAIL',
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
    });
    return true;
  } catch (error) {
    if ((error as Error).name === 'WorkflowExecutionAlreadyStartedError') return false;
    throw error;
  }
}

async function follow(client: Client, { say, signal, routerPort }: DemoOptions): Promise<void> {
  const id = replicaWorkflowId(DEMO);
  let last = '';
  while (!signal.aborted) {
    const status = await queryStatus(client, id);
    if (status !== null && status.phase !== last) {
      last = status.phase;
      say(`${id}: ${status.phase}${status.reason === '' ? '' : ` (${status.reason})`}`);
    }
    if (last === 'failed' || last === 'stopped') return;
    // The commands that are printed next ask the router.
    if (last === 'ready' && (await routerOffers(routerPort, DEMO_MODEL))) return;
    await new Promise(resolve => setTimeout(resolve, FOLLOW_MS));
  }
}

/** null: the server or its worker isn't there just now. */
async function queryStatus(client: Client, id: string): Promise<ReplicaStatus | null> {
  try {
    return await client.connection.withDeadline(Date.now() + QUERY_MS, () =>
      client.workflow.getHandle(id).query<ReplicaStatus>('status'),
    );
  } catch {
    return null;
  }
}
