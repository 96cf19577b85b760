// The recorded histories: `<behaviour>_<SDK version>.json`, as Temporal exports them.
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';

export const HISTORIES = path.join(import.meta.dirname, 'histories');

/** The parts of an exported history that tests look at. */
export interface HistoryJson {
  events: {
    eventType: string;
    workflowExecutionStartedEventAttributes?: { workflowId: string; workflowType: { name: string } };
    activityTaskScheduledEventAttributes?: { activityType: { name: string } };
    workflowExecutionContinuedAsNewEventAttributes?: object;
  }[];
}

export const historyFiles = (): string[] =>
  readdirSync(HISTORIES)
    .filter(f => f.endsWith('.json'))
    .sort();

export const readHistory = (file: string): HistoryJson =>
  JSON.parse(readFileSync(path.join(HISTORIES, file), 'utf8'));

export const startedOf = (history: HistoryJson) =>
  history.events[0]!.workflowExecutionStartedEventAttributes!;
