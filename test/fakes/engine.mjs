// A tiny engine for the supervisor's tests: /health and /v1/models on its port, and the faults that FAKE_* ask for.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import http from 'node:http';

const env = process.env;
const say = text => process.stdout.write(`${text}\n`);
say(`INFO starting pid ${process.pid}`);
if (env.FAKE_SECRET_LINE) say(`token is ${env.FAKE_SECRET_LINE}`);
if (env.FAKE_IGNORE_TERM) process.on('SIGTERM', () => {});
if (env.FAKE_STRAY) {
  // In a session of its own, without a mark in its environment, deaf to SIGTERM: only descent and its log tell.
  const code = "process.on('SIGTERM',()=>{});setInterval(()=>{},1e6)";
  const stray = spawn(process.execPath, ['-e', code], {
    detached: true,
    env: {},
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  stray.unref();
  say(`STRAY ${stray.pid}`);
}
if (env.FAKE_EXIT) {
  say(env.FAKE_LAST_WORDS ?? 'ending');
  process.exit(Number(env.FAKE_EXIT));
}
if (env.FAKE_STALL) {
  setInterval(() => say('WARNING No available shared memory broadcast block found in 60 seconds'), 20);
} else if (env.FAKE_NO_SERVER) {
  setInterval(() => {}, 1e6);
} else {
  const answer = (req, res) => {
    if (req.url === '/health') {
      res.statusCode = env.FAKE_DEAD_FILE && existsSync(env.FAKE_DEAD_FILE) ? 503 : 200;
      return res.end();
    }
    if (env.FAKE_KEY && req.headers.authorization !== `Bearer ${env.FAKE_KEY}`) {
      res.statusCode = 401;
      return res.end();
    }
    res.end(JSON.stringify({ object: 'list', data: [{ id: 'fake-model' }] }));
  };
  const server = http.createServer(answer);
  server.on('error', e => {
    say(`OSError: [Errno 98] Address already in use: ${e.message}`);
    process.exit(1);
  });
  setTimeout(() => server.listen(Number(env.FAKE_PORT), '127.0.0.1'), Number(env.FAKE_LOAD_MS ?? 0));
  if (!env.FAKE_IGNORE_TERM) process.on('SIGTERM', () => process.exit(0));
}
