// What things cost in history events: counted on the server in test/workflow/history.test.ts, added up over a week in
// idle-week.test.ts.
export const COST = {
  signal: 1,
  /** Scheduled, started, completed. */
  task: 3,
  timerStarted: 1,
  timerFired: 1,
  timerCancelled: 1,
  activityScheduled: 1,
  /** Started, completed; attempts that failed and were retried leave none. */
  activityDone: 2,
  /** A signal to another workflow: initiated, and delivered. */
  signalOut: 2,
} as const;
