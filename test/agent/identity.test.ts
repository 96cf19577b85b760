import { symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { lockWorkDir, readBootId, SessionCounter } from '../../agent/identity.js';
import { silentLogger } from '../../lib/log.js';
import { tempDir } from '../stream/support.js';

test('session numbers grow over restarts, even when the clock went back', () => {
  const dir = tempDir();
  const future = Date.now() + 86_400_000;
  writeFileSync(join(dir, 'session.json'), JSON.stringify({ session: future }));
  const first = new SessionCounter(dir, silentLogger()).next();
  expect(first).toBe(future + 1);
  expect(new SessionCounter(dir, silentLogger()).next()).toBe(future + 2);
});

test('a session number jumps above what the control plane has seen, and stays there', () => {
  const dir = tempDir();
  const seen = Date.now() + 3_600_000;
  expect(new SessionCounter(dir, silentLogger()).next(seen)).toBe(seen + 1);
  expect(new SessionCounter(dir, silentLogger()).next()).toBe(seen + 2);
});

test('a session number far above the clock is not believed: it would lock the node out for as long', () => {
  const dir = tempDir();
  writeFileSync(join(dir, 'session.json'), JSON.stringify({ session: Number.MAX_SAFE_INTEGER - 1 }));
  expect(new SessionCounter(dir, silentLogger()).next()).toBeLessThan(Date.now() + 60_000);
});

test('a session file that was cut off or is gone costs nothing: the clock is above it', () => {
  const dir = tempDir();
  const before = Date.now();
  writeFileSync(join(dir, 'session.json'), '{"sess');
  expect(new SessionCounter(dir, silentLogger()).next()).toBeGreaterThanOrEqual(before);
});

test('a work_dir that cannot be written does not cut the node off', () => {
  const counter = new SessionCounter(join(tempDir(), 'not-there'), silentLogger());
  expect(counter.next()).toBeLessThan(counter.next());
});

test('a work_dir is locked by what it is, not by how it is spelt; the lock ends with release', async () => {
  const dir = join(tempDir(), 'work');
  const locked = await lockWorkDir(dir);
  if (!('lock' in locked)) throw new Error(locked.problem);
  const link = join(tempDir(), 'link');
  symlinkSync(dir, link);
  expect(await lockWorkDir(link)).toMatchObject({ problem: expect.stringContaining(`pid ${process.pid}`) });
  await locked.lock.release();
  const again = await lockWorkDir(link);
  if (!('lock' in again)) throw new Error(again.problem);
  await again.lock.release();
});

test('the boot id is the kernel’s', () => {
  expect(readBootId()).toMatch(/^[0-9a-f-]{36}$/);
});
