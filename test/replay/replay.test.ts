import { Worker } from '@temporalio/worker';
import { DeterminismViolationError } from '@temporalio/workflow';
import { beforeAll, expect, it } from 'vitest';
import { workflowBundle } from '../workflow/bundle.js';
import { quietRuntime } from '../workflow/runtime.js';
import { type HistoryJson, historyFiles, readHistory, startedOf } from './histories.js';

let bundle: { code: string };
beforeAll(async () => {
  quietRuntime();
  bundle = await workflowBundle();
});

const replay = (history: HistoryJson) =>
  Worker.runReplayHistory({ workflowBundle: bundle }, history, startedOf(history).workflowId);

it.each(historyFiles())('%s replays with the present workflows', async file => {
  await replay(readHistory(file)).catch(err => {
    throw new Error(
      `${file} no longer replays, so workflows that are running would stop at their next task. Shipped: put the change ` +
        'behind `patched`. Before the first tagged release: node scripts/record-histories.mjs records them anew.',
      { cause: err },
    );
  });
});

it('there is a history of every workflow type, and of each one of a run that continues an earlier one', () => {
  const started = historyFiles().map(file => startedOf(readHistory(file)));
  const types = ['replica', 'fleet', 'node'];
  expect(new Set(started.map(s => s.workflowType.name))).toEqual(new Set(types));
  const later = started.filter(s => 'continuedExecutionRunId' in s && s.continuedExecutionRunId !== '');
  expect(new Set(later.map(s => s.workflowType.name))).toEqual(new Set(types));
});

it.each([
  [
    'replica',
    ['launch', 'prepare', 'spawn', 'await_ready', 'stop', 'await_drained', 'plan', 'check', 'adopt', 'look'],
  ],
  ['fleet', ['push_routes', 'survey', 'stop']],
  ['node', ['watch_silent']],
])('there is a history of %s in which each of its activities was ordered', (type, activities) => {
  const ordered = historyFiles()
    .map(readHistory)
    .filter(history => startedOf(history).workflowType.name === type)
    .flatMap(history => history.events)
    .map(e => e.activityTaskScheduledEventAttributes?.activityType.name);
  expect([...new Set(ordered)]).toEqual(expect.arrayContaining(activities));
});

it('a history that these workflows would not have made is refused', async () => {
  const file = historyFiles().find(f => f.startsWith('replica-crash-cancel'))!;
  const altered = readHistory(file);
  const stop = altered.events.find(e => e.activityTaskScheduledEventAttributes?.activityType.name === 'stop');
  stop!.activityTaskScheduledEventAttributes!.activityType.name = 'inspect';
  await expect(replay(altered)).rejects.toThrow(DeterminismViolationError);
});
