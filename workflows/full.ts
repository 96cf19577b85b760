// When a run has become long enough to continue as new (INV-11).
import { type WorkflowInfo, workflowInfo } from '@temporalio/workflow';
import { TIMING } from '../contracts/timing.js';

/** The server suggests it too where its own limits are nearer. */
export function isFull(signals: number): boolean {
  const { historyLength, historySize, continueAsNewSuggested } = workflowInfo();
  return (
    historyLength > TIMING.maxEvents ||
    signals > TIMING.maxSignals ||
    historySize > TIMING.maxHistoryBytes ||
    continueAsNewSuggested
  );
}

/** What a run that continues none is given as its state was another run's, and is over ("start workflow like this one"). */
export const continues = (info: WorkflowInfo): boolean => info.continuedFromExecutionRunId !== undefined;
