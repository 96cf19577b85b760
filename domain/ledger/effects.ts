// What the ledger's decisions ask of its workflow.
import type { StopOrder } from '../../contracts/activities.js';
import type { LedgerReply } from '../../contracts/messages.js';
import { TIMING } from '../../contracts/timing.js';
import type { LedgerState } from './state.js';

export type LedgerEffect =
  | { do: 'reply'; replica: string; reply: LedgerReply }
  /** The route table has a new version: every live instance is told. */
  | { do: 'routes'; version: number; queues: string[] }
  /** Which replicas and nodes have open workflows? */
  | { do: 'survey' }
  /** Each of these node workflows tells its facts again. */
  | { do: 'report'; nodes: string[] }
  /** The ledger's own stop order, for what its replica gave up. */
  | { do: 'stop'; node: string; order: StopOrder };

export const liveQueues = (state: LedgerState, now: number): string[] =>
  Object.values(state.instances)
    .filter(i => now - i.at < TIMING.instanceGone)
    .map(i => i.queue);

export const ackReply = (state: LedgerState, key: string, now: number): LedgerReply => ({
  kind: 'ack',
  key,
  version: state.version,
  queues: liveQueues(state, now),
});
