import { expect, it } from 'vitest';
import { TIMING as T } from '../../contracts/timing.js';

it('keeps the inequalities between the times', () => {
  // Three chances to be heard before a task counts as lost.
  expect(T.activityHeartbeat * 3).toBeLessThanOrEqual(T.activityHeartbeatTimeout);
  // A digest arrives before the node workflow looks by itself.
  expect(T.nodeDigestInterval * 2).toBeLessThan(T.nodeLookInterval);
  // An instance registers at least three times before it counts as gone.
  expect(T.instanceRegister * 3).toBeLessThanOrEqual(T.instanceGone);
  // A lost push is made up by the pull soon after.
  expect(T.pushTimeout).toBeLessThanOrEqual(T.routesPull);
  // Temporal warns at 10,240 events and ends a run at 10,000 signals.
  expect(T.maxEvents).toBeLessThan(10_240 / 2);
  expect(T.maxSignals).toBeLessThan(10_000 / 2);
});
