import { statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { end, identify, isAlive, signal } from '../../dev/identity.js';
import { endLeftovers, lockDataDir } from '../../dev/leftovers.js';
import { type DevState, readState, writeState } from '../../dev/state.js';
import { runNode, tempDir, until } from './support.js';

const LOCK_MODULE = new URL('../../lib/lock.mjs', import.meta.url).href;
const HOLD = `
  const { tryLock } = await import(process.argv[1]);
  await tryLock(process.argv[2]);
  console.log('held');
  setInterval(() => {}, 1000);`;

function stateWith(parts: DevState['parts']): DevState {
  return {
    dev: { pid: process.pid, start: 'not this one' },
    started_at: new Date(0).toISOString(),
    temporal_address: '127.0.0.1:7233',
    ports: { temporal: 1, ui: 2, agent: 3, http: 4, router: 5 },
    parts,
  };
}

test('a second dev on one data directory is refused with the pid of the first', async () => {
  const dir = tempDir();
  const holder = runNode(HOLD, [LOCK_MODULE, `dev:${dir}`]);
  await holder.ready;
  await expect(lockDataDir(dir)).rejects.toThrow(
    `llmgw dev (pid ${holder.pid}) is running on ${dir}: stop it with Ctrl-C there (or kill ${holder.pid})`,
  );
});

test('the lock of a dev that was killed with -9 is free', async () => {
  const dir = tempDir();
  const holder = runNode(HOLD, [LOCK_MODULE, `dev:${dir}`]);
  await holder.ready;
  holder.child.kill('SIGKILL');
  await until(() => identify(holder.pid) === null);
  const lock = await lockDataDir(dir);
  await lock.release();
});

test('two data directories do not shut each other out', async () => {
  const locks = [await lockDataDir(tempDir()), await lockDataDir(tempDir())];
  for (const lock of locks) await lock.release();
});

test('leftovers of an earlier dev are ended, also one that ignores SIGTERM', async () => {
  const file = path.join(tempDir(), 'dev.json');
  const stubborn = runNode(
    `process.on('SIGTERM', () => {}); console.log('up'); setInterval(() => {}, 1000);`,
  );
  await stubborn.ready;
  const who = identify(stubborn.pid)!;
  writeState(file, stateWith({ server: who }));
  expect(await endLeftovers(file)).toEqual(['server']);
  expect(isAlive(who)).toBe(false);
  expect(readState(file)).toBeNull();
});

test('a process that merely has the pid of a leftover is left alone', async () => {
  const file = path.join(tempDir(), 'dev.json');
  const bystander = runNode(`console.log('up'); setInterval(() => {}, 1000);`);
  await bystander.ready;
  writeState(file, stateWith({ router: { pid: bystander.pid, start: '1' } }));
  expect(await endLeftovers(file)).toEqual([]);
  expect(identify(bystander.pid)).not.toBeNull();
});

test('signals go to the identity, not to the pid', async () => {
  const bystander = runNode(`console.log('up'); setInterval(() => {}, 1000);`);
  await bystander.ready;
  expect(signal({ pid: bystander.pid, start: '1' }, 'SIGKILL')).toBe(false);
  expect(identify(bystander.pid)).not.toBeNull();
});

test('what ends on SIGTERM in time is not killed', async () => {
  const polite = runNode(
    `process.on('SIGTERM', () => process.exit(7)); console.log('up'); setInterval(() => {}, 1000);`,
  );
  await polite.ready;
  const exit = new Promise(resolve => polite.child.once('exit', resolve));
  await end(identify(polite.pid)!, 10_000);
  expect(await exit).toBe(7);
});

test('dev.json is readable by its owner only and comes back as it was written', () => {
  const file = path.join(tempDir(), 'dev.json');
  writeFileSync(file, 'old', { mode: 0o644 });
  const state = stateWith({ agent: { pid: 5, start: '77' } });
  writeState(file, state);
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(readState(file)).toEqual(state);
});

test('a torn dev.json counts as none', () => {
  const file = path.join(tempDir(), 'dev.json');
  writeFileSync(file, '{"dev": {"pid"');
  expect(readState(file)).toBeNull();
});
