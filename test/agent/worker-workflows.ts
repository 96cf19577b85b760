// The workflows of worker.test.ts: one activity of a node, once or until it succeeds.
import { proxyActivities } from '@temporalio/workflow';

export { callNode } from '../proxy/worker-workflows.js';

export async function callNodeUntilDone(queue: string, activity: string): Promise<string> {
  const activities = proxyActivities<Record<string, () => Promise<string>>>({
    taskQueue: queue,
    startToCloseTimeout: '30s',
    heartbeatTimeout: '2s',
    retry: { initialInterval: '50ms', backoffCoefficient: 1 },
  });
  return (await activities[activity]?.()) ?? 'no such activity';
}
