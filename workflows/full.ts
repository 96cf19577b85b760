// When a run has become long enough to continue as new (INV-11).
import { workflowInfo } from '@temporalio/workflow';
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
