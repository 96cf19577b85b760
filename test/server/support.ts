// What the control plane's parts are given in place of Temporal: calls are kept, answers are the test's.
import type { EngineEvent } from '../../contracts/engine.js';
import type { NodeGone, NodeInventory, ProgressMsg, WelcomeInfo } from '../../contracts/messages.js';
import type { FleetClient } from '../../server/fleet.js';

export interface FakeFleet {
  fleet: FleetClient;
  /** While set, everything rejects. */
  away: boolean;
  attempts: number;
  gone: NodeGone[];
  inventories: NodeInventory[];
  events: { nodeId: string; event: EngineEvent }[];
  progress: { replica: string; msg: ProgressMsg }[];
  slots: WelcomeInfo['slots'];
}

export function fakeFleet(): FakeFleet {
  const fake: FakeFleet = {
    fleet: null as unknown as FleetClient,
    away: false,
    attempts: 0,
    gone: [],
    inventories: [],
    events: [],
    progress: [],
    slots: {},
  };
  const taking = async (take: () => void): Promise<void> => {
    fake.attempts += 1;
    if (fake.away) throw new Error('Temporal is away');
    take();
  };
  const calls: Partial<FleetClient> = {
    gone: (_node, msg) => taking(() => void fake.gone.push(msg)),
    inventory: (_node, msg) => taking(() => void fake.inventories.push(msg)),
    welcome: async () => {
      await taking(() => {});
      return { highest_session: 0, slots: fake.slots };
    },
    engineEvent: async (nodeId, event) => {
      await taking(() => void fake.events.push({ nodeId, event }));
      return 'told';
    },
    progress: (replica, msg) => taking(() => void fake.progress.push({ replica, msg })),
    digest: () => taking(() => {}),
  };
  fake.fleet = calls as FleetClient;
  return fake;
}
