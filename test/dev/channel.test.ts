import { execFileSync, spawn } from 'node:child_process';
import { closeSync, constants, openSync } from 'node:fs';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { temporalCommand, temporalEnv } from '../../dev/temporal-server.js';
import { DEV_CHANNEL_ENV, endWithParent } from '../../lib/dev-channel.js';
import { killGroup, script, tempDir, textOf, until } from './support.js';

test('a part ends when the other end of its channel is gone, and not before', async () => {
  const fifo = path.join(tempDir(), 'channel');
  execFileSync('mkfifo', [fifo]);
  const dev = openSync(fifo, constants.O_RDWR);
  process.env[DEV_CHANNEL_ENV] = String(openSync(fifo, constants.O_RDONLY));
  let ends = 0;
  endWithParent(() => {
    ends++;
  });
  expect(process.env[DEV_CHANNEL_ENV]).toBeUndefined();
  await new Promise(resolve => setImmediate(resolve));
  expect(ends).toBe(0);
  closeSync(dev);
  await until(() => ends > 0);
  await new Promise(resolve => setImmediate(resolve));
  expect(ends).toBe(1);
});

test('a part that no dev has started never ends by a channel', () => {
  endWithParent(() => {
    throw new Error('there is no channel');
  });
});

/** A server that notes its pid and arguments and ends on SIGTERM, saying so. */
const SERVER = `#!/bin/sh
trap 'echo ended; exit 0' TERM
echo "pid $$"
for word in "$@"; do echo "$word"; done
[ -e /proc/self/fd/3 ] && echo "has the channel"
echo up
while :; do sleep 0.05; done
`;

function startTemporal() {
  const dir = tempDir();
  const binary = script(path.join(dir, 'temporal'), SERVER);
  const ports = { temporal: 17_001, ui: 17_002, agent: 1, http: 1, router: 1 };
  const [program = '', ...args] = temporalCommand(binary, ports, path.join(dir, 'db'));
  const log = path.join(dir, 'log');
  const fd = openSync(log, 'a');
  const child = spawn(program, args, { detached: true, stdio: ['ignore', fd, fd, 'pipe'] });
  closeSync(fd);
  onTestFinished(() => killGroup(child.pid));
  const exit = new Promise<number | null>(resolve => child.once('exit', resolve));
  return { dir, child, log, exit };
}

test("Temporal's server is the very process that dev started, and ends with dev's channel", async () => {
  const { dir, child, log, exit } = startTemporal();
  await until(() => textOf(log).includes('up'));
  expect(textOf(log)).toContain(`pid ${child.pid}\n`);
  expect(textOf(log)).not.toContain('has the channel');
  expect(textOf(log)).toContain(`--port\n17001\n--ui-port\n17002\n--db-filename\n${path.join(dir, 'db')}\n`);
  child.stdio[3]!.destroy();
  expect(await exit).toBe(0);
  expect(textOf(log)).toContain('ended');
});

test("the user's own Temporal address and profile don't reach dev's server", () => {
  expect(temporalEnv({ TEMPORAL_ADDRESS: 'prod:7233', TEMPORAL_PROFILE: 'x', PATH: '/bin' })).toEqual({
    PATH: '/bin',
  });
});
