// Where the other instances reach this one: `peer_addr`, else `listen` where that is an address that can be dialled.
import { isWildcardHost, parseHostPort } from '../../lib/address.js';
import type { Logger } from '../../lib/log.js';
import type { ServerConfig } from '../config.js';

/** null: this instance forwards, and nobody can forward to it. */
export function peerAddrOf(config: Pick<ServerConfig, 'listen' | 'peer_addr'>, log: Logger): string | null {
  if (config.peer_addr !== null) return config.peer_addr;
  const listen = parseHostPort(config.listen, { portZero: true });
  if ('host' in listen && listen.port !== 0 && !isWildcardHost(listen.host)) return config.listen;
  log.info(
    { listen: config.listen },
    'peer_addr is not set and listen names no address: fine for one instance; with several, the others cannot reach the agents of this one',
  );
  return null;
}
