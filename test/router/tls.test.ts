import fs from 'node:fs';
import https from 'node:https';
import path from 'node:path';
import { expect, it } from 'vitest';
import { initCa } from '../../lib/pki/ca.js';
import { issueServer } from '../../lib/pki/issue.js';
import { FakeEngine } from '../fakes/router-engine.js';
import { backend, call, errorOf, startRouter, tempDir, using } from './harness.js';

it('serves clients by TLS, and trusts no engine whose certificate it cannot check', async () => {
  const dir = tempDir();
  await initCa(dir);
  await issueServer(dir, 'router');
  const engine = await using(FakeEngine.start());
  const tls = { cert: path.join(dir, 'router.pem'), key: path.join(dir, 'router-key.pem') };
  const secure = await startRouter({ backends: [backend(engine.url)], tls });
  const ca = fs.readFileSync(path.join(dir, 'ca.pem'));
  const status = await new Promise((resolve, reject) => {
    const options = {
      port: secure.port,
      host: '127.0.0.1',
      method: 'POST',
      path: '/v1/completions',
      ca,
      agent: false as const,
    };
    const req = https.request(options, res => resolve(res.resume().statusCode));
    req.on('error', reject);
    req.end('{"model":"m"}');
  });
  expect(status).toBe(200);

  const plain = await startRouter(
    { backends: [backend(`https://127.0.0.1:${secure.port}`)] },
    { queueTimeout: 100 },
  );
  const refused = await call(plain.port);
  expect(refused.status).toBe(429);
  expect(errorOf(refused).message).toMatch(/self-signed certificate|unable to (verify|get)/);
  expect(engine.seen).toHaveLength(1);
});
