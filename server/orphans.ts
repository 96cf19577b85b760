// Nodes whose stream was at an instance that died: it told nobody of their end. Those that have come to another one
// hold a newer session there; the rest are told as gone, and judged from then on like any silent node.
import type { Logger } from '../lib/log.js';
import type { FleetClient } from './fleet.js';

export interface OrphansOptions {
  fleet: Pick<FleetClient, 'nodes' | 'node' | 'gone'>;
  /** This instance has the node's stream. */
  holds: (nodeId: string) => boolean;
  log: Logger;
}

/** `instance`: which one died (or is this one, started again). Never rejects: it is said again at the next death. */
export async function tellOrphans(o: OrphansOptions, instance: string, reason: string): Promise<void> {
  try {
    for (const row of await o.fleet.nodes()) {
      if (row.state !== 'connected' || o.holds(row.node_id)) continue;
      const node = await o.fleet.node(row.node_id);
      if (node.instance !== instance || node.session === null) continue;
      await o.fleet.gone(row.node_id, { session: node.session, instance, reason });
    }
  } catch (err) {
    o.log.warn(
      { instance, err: err instanceof Error ? err.message : String(err) },
      'nodes that nobody hears any more could not be told',
    );
  }
}
