// The control plane's two workers: the workflows (and what any instance can do for them) on `llmgw`, and what only
// this instance can do on its own queue.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { type NativeConnection, Runtime, type Logger as SdkLogger, Worker } from '@temporalio/worker';
import {
  type ControlPorts,
  controlActivities,
  type PlanPorts,
  planActivities,
} from '../activities/control/index.js';
import { controlQueue, WORKFLOW_QUEUE } from '../contracts/ids.js';
import { Fault } from '../lib/fault.js';
import type { Logger } from '../lib/log.js';

/** Built ahead (npm run build): bundling at start costs seconds and memory. */
export const BUNDLE = join(import.meta.dirname, '../workflow-bundle.js');

/**
 * How long one task of a workflow may run. Time on the clock, not of work: the SDK's 5 s pass on a machine that is busy or
 * was stopped for a while, and a script that is ended then takes the process with it (Node's async hooks don't survive
 * that). The SDK takes it and doesn't list it among its options.
 */
export const ONE_TASK = { isolateExecutionTimeout: '10 minutes' };

export interface WorkersOptions {
  native: NativeConnection;
  namespace: string;
  instance: string;
  ports: ControlPorts;
  plan: PlanPorts;
  log: Logger;
  bundle?: string;
}

export interface Workers {
  /** Rejects when a worker has failed for good. */
  ended: Promise<void>;
  shutdown(): Promise<void>;
}

/** Once a process, before any native connection: the core would otherwise start with its own settings. */
export function installRuntime(log: Logger): void {
  Runtime.install({
    shutdownSignals: [],
    telemetryOptions: { logging: { forward: {}, filter: 'WARN' } },
    logger: sdkLogger(log),
  });
}

/** The SDK's lines in our log; what it informs of is detail here. */
export function sdkLogger(log: Logger): SdkLogger {
  const write = (level: string, message: string, meta?: object): void => {
    // This instance's own queue has activities only, and the SDK warns of each such worker.
    const known = message.startsWith('No workflows registered');
    log[known ? 'debug' : coreLevel(level)]({ ...meta }, message);
  };
  return {
    log: write,
    trace: (m, meta) => write('trace', m, meta),
    debug: (m, meta) => write('debug', m, meta),
    info: (m, meta) => write('info', m, meta),
    warn: (m, meta) => write('warn', m, meta),
    error: (m, meta) => write('error', m, meta),
  };
}

export async function startWorkers(o: WorkersOptions): Promise<Workers> {
  const bundle = o.bundle ?? BUNDLE;
  if (!existsSync(bundle))
    throw new Fault(`The workflow bundle ${bundle} is missing: run \`npm run build\`.`);
  const common = {
    connection: o.native,
    namespace: o.namespace,
    identity: o.instance,
    shutdownGraceTime: '500ms',
  } as const;
  const workflows = await Worker.create({
    ...common,
    taskQueue: WORKFLOW_QUEUE,
    workflowBundle: { codePath: bundle },
    activities: planActivities(o.plan),
    // A watch a silent node, and each takes a place while it lasts: a hall that goes dark must not keep a plan waiting.
    maxConcurrentActivityTaskExecutions: 5_000,
    maxCachedWorkflows: 500,
    ...ONE_TASK,
    // After a kill -9 Temporal goes on offering the next task of each workflow to the dead process for this long (10 s by
    // default), and until then no exit is answered. A task that waits longer for a living worker costs one replay.
    stickyQueueScheduleToStartTimeout: '2s',
    // An idle poll costs next to nothing, and one task takes milliseconds; but a fleet that comes back at once is a task a
    // node, each poll is a round trip, and of three pollers one is for workflows that aren't cached: the Hellos would time
    // out. The SDK's autoscaling comes too late for that, and it takes no notice of maxConcurrent…TaskPolls.
    workflowTaskPollerBehavior: { type: 'simple-maximum', maximum: 12 },
    activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
  });
  const control = await Worker.create({
    ...common,
    taskQueue: controlQueue(o.instance),
    activities: controlActivities(o.ports),
    activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
  });
  const runs = [workflows.run(), control.run()];
  return {
    ended: Promise.all(runs).then(() => undefined),
    shutdown: async () => {
      for (const w of [workflows, control]) if (w.getState() === 'RUNNING') w.shutdown();
      await Promise.allSettled(runs);
    },
  };
}

function coreLevel(level: string): 'trace' | 'debug' | 'warn' | 'error' {
  const l = level.toLowerCase();
  return l === 'error' || l === 'warn' || l === 'trace' ? l : 'debug';
}
