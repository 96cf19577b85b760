// The control plane's activities. Thin: what they need is declared here and given by the server.
import { Context } from '@temporalio/activity';
import type { ControlActivities, PlanActivities } from '../../contracts/activities.js';
import { TIMING } from '../../contracts/timing.js';
import type { LedgerState } from '../../domain/ledger/state.js';
import { candidates } from '../../domain/ledger/state.js';
import { place } from '../../domain/placement.js';

export interface ControlPorts {
  refreshRoutes(): Promise<void>;
  awaitDrained: ControlActivities['await_drained'];
}

export function controlActivities(ports: ControlPorts): ControlActivities {
  return {
    push_routes: () => ports.refreshRoutes(),
    await_drained: input => heartbeating(() => ports.awaitDrained(input)),
  };
}

export function planActivities(ledger: () => Promise<LedgerState>): PlanActivities {
  return {
    plan: async ({ replica, shape }) => {
      const placed = place(shape, candidates(await ledger(), replica), [], null);
      return placed.fits ? { fits: true, reason: placed.why } : { fits: false, reason: placed.reason };
    },
  };
}

async function heartbeating<T>(body: () => Promise<T>): Promise<T> {
  const beat = setInterval(() => Context.current().heartbeat(), TIMING.activityHeartbeat);
  try {
    return await body();
  } finally {
    clearInterval(beat);
  }
}
