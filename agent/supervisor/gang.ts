// What is different for a member of a gang: it starts with the addresses of all members, and a follower serves nothing,
// so that nothing but its process, its log and its GPUs tells how it is (INV-7).
import type { MemberOrder, Peer, SpawnOrder } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import { canonicalJson } from '../../contracts/spec.js';
import type { Handle } from '../state/handle.js';

const nameOf = (o: MemberOrder): string => `replica ${o.replica}, fence ${o.fence}, rank ${o.rank}`;

/** A gang is prepared on every node before any member starts: one that starts alone would wait for nobody. */
export function refuseAlone(order: MemberOrder): void {
  if (order.nodes === 1) return;
  throw new LlmgwError(
    'BAD_REQUEST',
    `${nameOf(order)} is one of ${order.nodes} members: prepare comes first on all of them, then spawn with their addresses`,
  );
}

/** All members in rank order, this one as it was prepared here; none: it is the only one. Throws BAD_REQUEST. */
export function peersOf(handle: Handle, order: SpawnOrder): Peer[] {
  const peers = order.peers ?? [];
  if (order.nodes === 1) return [];
  if (peers.length !== order.nodes || peers.some((peer, i) => peer.rank !== i)) {
    throw new LlmgwError(
      'BAD_REQUEST',
      `${nameOf(order)}: the order names ${peers.length} members of ${order.nodes}, each by its rank`,
    );
  }
  const own = peers[order.rank];
  // The others would be told to meet it where it isn't.
  if (own?.mgmt_addr !== handle.mgmt_addr || canonicalJson(own.ports) !== canonicalJson(handle.ports)) {
    throw new LlmgwError(
      'BAD_REQUEST',
      `${nameOf(order)}: the order has this member at ${own?.mgmt_addr} with the ports ${JSON.stringify(own?.ports)}, and it was prepared at ${handle.mgmt_addr} with ${JSON.stringify(handle.ports)}`,
    );
  }
  return peers;
}
