// Cases temporal-01 to -13 where their expectation is a number of the product's; what they say of behaviour is tested
// where each test here names it. temporal-11 is test/proxy/long-poll.test.ts.
import { expect, it } from 'vitest';
import { SIGNALS } from '../../contracts/signals.js';
import { TIMING } from '../../contracts/timing.js';
import { readCase } from '../config/case.js';
import { historyFiles } from '../replay/histories.js';

const MB = 1_000_000;

it('01: a run ends long before Temporal ends it, by events, signals or bytes (test/workflow: history, flood, continue)', () => {
  const { input, expect: wanted } = readCase('temporal-01-history-limits');
  expect(input.node_workflow).toContain('60,000 status signals');
  expect(wanted.continue_as_new_when).toMatch(/own limit \(<= 10,000\) or bytes >= 8 MB/);
  expect(TIMING.maxEvents).toBeLessThanOrEqual(10_000);
  expect(TIMING.maxHistoryBytes).toBeLessThanOrEqual(8 * MB);
  // Its 60,000 signals are 40 runs at least. Sent to a real server they take minutes, so the tests send hundreds to short
  // runs; the time-skipping server isn't used (its clock was seen to run ahead of signals).
  expect(60_000 / TIMING.maxSignals).toBeGreaterThanOrEqual(2);
});

it('03: nothing that comes early is lost (test/workflow/early.test.ts)', () => {
  const { input, expect: wanted } = readCase('temporal-03-signal-before-start');
  expect(input.order).toHaveLength(3);
  expect(wanted).toMatchObject({
    lost: 0,
    handlers_use_initialised_state: true,
    order_per_signal_type: 'kept',
  });
});

it('05: there are recorded histories of each phase that the case names (test/replay, test/workflow/takeover.test.ts)', () => {
  const { expect: wanted } = readCase('temporal-05-nondeterminism-on-upgrade');
  expect(wanted.replay_errors).toBe(0);
  const has = (start: string) => expect(historyFiles().some(f => f.startsWith(start))).toBe(true);
  // replica (starting, running, stopping), node (connected, unreachable), ledger.
  for (const start of ['replica-crash-cancel', 'replica-continued', 'node-silent-back', 'fleet-']) has(start);
  // "workflow task failing" and its cause: test/server/stuck.test.ts.
  expect(wanted.if_broken).toContain('workflow task failing');
});

it('06: the next attempt begins within the time that the case gives it (test/workflow: early, lost; test/supervisor)', () => {
  const { expect: wanted } = readCase('temporal-06-activity-worker-gone');
  const within = Number.parseInt(wanted.retry_begins_within, 10) * 1_000;
  // A lost attempt is found by its heartbeat timeout; retries wait 5 s at most (workflows/profiles.ts).
  expect(TIMING.activityHeartbeatTimeout + 5_000).toBeLessThanOrEqual(within);
  expect(wanted.engines_started).toBe(1);
});

it('08: what is said of a workflow that cannot answer (test/server/stuck.test.ts)', () => {
  const { input, expect: wanted } = readCase('temporal-08-query-closed-or-no-worker');
  expect(input.cases).toHaveLength(5);
  // "answers from cached data": told from Temporal's own description, which is never older than the question.
  expect(wanted.cli_status).toHaveLength(5);
});

it('10: claims and heartbeats are no updates (test/domain/at-once.test.ts, test/workflow/flood.test.ts)', () => {
  const { expect: wanted } = readCase('temporal-10-limits-pending');
  expect(wanted).toMatchObject({
    all_placed: true,
    double_claims: 0,
    continue_as_new_before: '2,000 updates',
  });
  for (const signal of ['reserve', 'renew', 'release']) expect(SIGNALS.fleet).toHaveProperty(signal);
  // Each update is two events at least beside its task's three.
  expect(TIMING.maxEvents / 5).toBeLessThan(2_000);
});

it('13: a clock that is off changes no decision (test/workflow/early.test.ts, test/stream/clock.test.ts)', () => {
  const { input, expect: wanted } = readCase('temporal-13-clock-skew');
  expect(input.skew).toEqual(['-10m', '+10m']);
  expect(wanted.node_unreachable_decision).toContain('by receive time');
  // The worker's clock: workflow time is the server's, and no activity is given a time to end by.
});
