// Binds a task token to the node that polled it, by an HMAC in front of it. All control plane instances share the
// key file, so a task polled through one may be completed through another; the previous key is accepted while a
// rotation is under way.

import { createHmac, timingSafeEqual } from 'node:crypto';

const VERSION = 1;
const MAC_LENGTH = 32;
const HEADER_LENGTH = 1 + MAC_LENGTH;

/** The token as the node sees it. `keyHex` is 64 hex digits. */
export function bindToken(keyHex: string, nodeId: string, token: Uint8Array): Buffer {
  return Buffer.concat([Buffer.from([VERSION]), mac(keyHex, nodeId, token), token]);
}

/** The upstream's token, or null when `bound` was not given to this node under any of the keys. */
export function unbindToken(keysHex: readonly string[], nodeId: string, bound: Uint8Array): Buffer | null {
  if (bound.length <= HEADER_LENGTH || bound[0] !== VERSION) return null;
  const given = bound.subarray(1, HEADER_LENGTH);
  const token = Buffer.from(bound.subarray(HEADER_LENGTH));
  return keysHex.some(key => timingSafeEqual(given, mac(key, nodeId, token))) ? token : null;
}

function mac(keyHex: string, nodeId: string, token: Uint8Array): Buffer {
  // The id's rule leaves no NUL in it, so that id and token can't be cut at another place.
  return createHmac('sha256', Buffer.from(keyHex, 'hex'))
    .update(nodeId, 'utf8')
    .update('\0')
    .update(token)
    .digest();
}
