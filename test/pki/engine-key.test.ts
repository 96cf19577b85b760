import { createHash, createHmac } from 'node:crypto';
import { expect, test } from 'vitest';
import { engineKey, keyId, nodeSecret } from '../../lib/engine-key.js';

const MASTER = '00112233445566778899aabbccddeeff'.repeat(2);

test('the derivations are the documented ones, so that other tools can repeat them', () => {
  const master = Buffer.from(MASTER, 'hex');
  const secret = createHmac('sha256', master).update('gpu-a-01').digest();
  expect(nodeSecret(MASTER, 'gpu-a-01')).toBe(secret.toString('hex'));
  // HKDF (RFC 5869) with an empty salt, written out.
  const prk = createHmac('sha256', Buffer.alloc(32)).update(secret).digest();
  const okm = createHmac('sha256', prk)
    .update('demo|1700000000000')
    .update(Buffer.from([1]))
    .digest('hex');
  expect(engineKey(secret.toString('hex'), 'demo', 1_700_000_000_000)).toBe(okm);
  expect(keyId(MASTER)).toBe(createHash('sha256').update(master).digest('hex').slice(0, 8));
});

test('another node, replica or fence has another key', () => {
  const keys = [
    engineKey(nodeSecret(MASTER, 'a'), 'demo', 1),
    engineKey(nodeSecret(MASTER, 'b'), 'demo', 1),
    engineKey(nodeSecret(MASTER, 'a'), 'demo', 2),
    engineKey(nodeSecret(MASTER, 'a'), 'demo2', 1),
    engineKey(nodeSecret('ff'.repeat(32), 'a'), 'demo', 1),
  ];
  expect(new Set(keys).size).toBe(keys.length);
});

test.each(['', 'abcd', 'zz'.repeat(32), `${'a'.repeat(64)}\n`])('%j is not taken for a key', bad => {
  expect(() => nodeSecret(bad, 'a')).toThrow('expected a key of 64 hex digits');
  expect(() => engineKey(bad, 'demo', 1)).toThrow('expected a key of 64 hex digits');
});
