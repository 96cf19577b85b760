// What a node serves, as this instance sees it: the endpoints in the route table, what routers report of them, and
// whether they take a connection.
import { connect } from 'node:net';
import type { DataPlane } from './liveness.js';
import type { RouteHub } from './routes.js';

/** An engine's host is on the same network: one that takes longer isn't there. */
const CONNECT_MS = 2_000;

export const dataPlaneOf = (routes: RouteHub): DataPlane => ({
  endpointsOf: node => routes.endpointsOf(node),
  lastSuccess: (replica, fence) => routes.lastSuccess(replica, fence),
  unanswered: (replica, fence) => routes.unanswered(replica, fence),
  accepts,
});

/** Whether a TCP connection to the URL's host and port is taken. */
export function accepts(url: string): Promise<boolean> {
  return new Promise(resolve => {
    if (!URL.canParse(url)) return resolve(false);
    const { hostname, port, protocol } = new URL(url);
    const socket = connect({
      // As URLs have them, IPv6 addresses are in brackets.
      host: hostname.replace(/^\[|\]$/g, ''),
      port: Number(port || (protocol === 'https:' ? 443 : 80)),
      timeout: CONNECT_MS,
    });
    const end = (taken: boolean) => (): void => {
      socket.destroy();
      resolve(taken);
    };
    socket.once('connect', end(true));
    socket.once('timeout', end(false));
    socket.on('error', end(false));
  });
}
