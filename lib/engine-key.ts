// Keys between router and engine. Routers hold the master, a node only its own secret, an engine only its own
// key: a burnt node can't ask the engines of another, a stale route can't reach the next generation (INV-6).
// Agent and router both derive here, so that they can't disagree.

import { createHash, createHmac, hkdfSync } from 'node:crypto';

/** HMAC-SHA256(master, node id) as 64 hex digits: the content of a node's `engine_key_file`. */
export function nodeSecret(masterHex: string, nodeId: string): string {
  return createHmac('sha256', key32(masterHex)).update(nodeId, 'utf8').digest('hex');
}

/** The API key of one generation's engines: HKDF-SHA256(node secret, `replica|fence`) as 64 hex digits. */
export function engineKey(nodeSecretHex: string, replica: string, fence: number): string {
  const bytes = hkdfSync('sha256', key32(nodeSecretHex), Buffer.alloc(0), `${replica}|${fence}`, 32);
  return Buffer.from(bytes).toString('hex');
}

/**
 * A public name of a node's secret (first 8 hex digits of its SHA-256): a node, which never sees a master, says with it
 * which master its secret came from, so that routers that hold two during a rotation take the right one.
 */
export function keyId(nodeSecretHex: string): string {
  return createHash('sha256').update(key32(nodeSecretHex)).digest('hex').slice(0, 8);
}

function key32(hex: string): Buffer {
  // Buffer.from drops what isn't hex without a word, which would give everyone the same short key.
  if (!/^[0-9a-fA-F]{64}$/.test(hex)) throw new TypeError('expected a key of 64 hex digits');
  return Buffer.from(hex, 'hex');
}
