// What all members of a gang, whatever their engine, are told of the network (facts of NCCL and Gloo).
import type { Peer } from '../../contracts/activities.js';
import type { RenderInput } from './types.js';

/**
 * NCCL takes a beginning of a name for the name, and `=` makes it exact; Gloo takes exact names only. Without them both
 * follow the default route or the host's name, which on many distributions is 127.0.1.1.
 */
export function networkEnv({
  peers,
  mgmtInterface,
  fabricHcas,
}: Pick<RenderInput, 'peers' | 'mgmtInterface' | 'fabricHcas'>): Record<string, string> {
  // One port for all jobs of a host, on by default: of two engines the second one logs that it can't have it.
  const env: Record<string, string> = { NCCL_RAS_ENABLE: '0' };
  if (peers.length < 2) return env;
  if (mgmtInterface !== null) {
    env.NCCL_SOCKET_IFNAME = `=${mgmtInterface}`;
    env.GLOO_SOCKET_IFNAME = mgmtInterface;
  }
  if (fabricHcas.length > 0) env.NCCL_IB_HCA = `=${fabricHcas.join(',')}`;
  return env;
}

/** `host:port` with an IPv6 address in brackets. */
export const hostPort = (host: string, port: number): string =>
  `${host.includes(':') ? `[${host}]` : host}:${port}`;

/** Rank 0, where the gang meets. @throws Error when the peers of a gang are missing: the order's members have prepared. */
export function leaderOf(peers: Peer[]): Peer {
  const leader = peers.find(peer => peer.rank === 0);
  if (leader === undefined) throw new Error('the order has no peers: spawn of a gang brings them');
  return leader;
}

/** The port that prepare has reserved by that name. */
export function portOf(ports: Record<string, number>, name: string): number {
  const port = ports[name];
  if (port === undefined) throw new Error(`the order has no ${name} port: prepare reserves it`);
  return port;
}

/** Calls to the members' own addresses must not go by a proxy that the node has for the model hub. */
export function withoutProxy(env: Record<string, string>, addresses: string[]): Record<string, string> {
  if (!Object.keys(env).some(name => /^https?_proxy$/i.test(name))) return {};
  const listed = env.no_proxy ?? env.NO_PROXY ?? '';
  const all = [
    ...listed.split(',').filter(entry => entry.trim() !== ''),
    ...addresses,
    '127.0.0.1',
    'localhost',
  ];
  const value = [...new Set(all)].join(',');
  return { no_proxy: value, NO_PROXY: value };
}
