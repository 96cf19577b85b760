// The workflow of real-server.test.ts: one activity on the queue given, cancelled on the signal `stop`.

import {
  ActivityCancellationType,
  CancellationScope,
  defineSignal,
  isCancellation,
  proxyActivities,
  setHandler,
} from '@temporalio/workflow';

export const stopSignal = defineSignal('stop');

export async function callNode(queue: string, activity: string): Promise<string> {
  const activities = proxyActivities<Record<string, () => Promise<string>>>({
    taskQueue: queue,
    startToCloseTimeout: '30s',
    heartbeatTimeout: '10s',
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    retry: { maximumAttempts: 1 },
  });
  const scope = new CancellationScope();
  setHandler(stopSignal, () => scope.cancel());
  try {
    return await scope.run(async () => (await activities[activity]?.()) ?? 'no such activity');
  } catch (error) {
    if (isCancellation(error)) return 'canceled';
    throw error;
  }
}
