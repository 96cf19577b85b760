import { afterEach, expect, test, vi } from 'vitest';
import { elapsed, withProgress } from '../../lib/progress.mjs';

afterEach(() => void vi.useRealTimers());

function out(live = false) {
  let text = '';
  return {
    live,
    write(t: string) {
      text += t;
    },
    text: () => text,
  };
}

test('what takes two seconds or less is not told', async () => {
  vi.useFakeTimers();
  const to = out();
  const done = withProgress('building', () => new Promise<void>(resolve => setTimeout(resolve, 1_900)), {
    out: to,
  });
  await vi.advanceTimersByTimeAsync(1_900);
  await done;
  expect(to.text()).toBe('');
});

test('what takes longer is told with what it is, how long it has taken, and its end', async () => {
  vi.useFakeTimers();
  const to = out();
  const work = () => new Promise<string>(resolve => setTimeout(resolve, 20_000, 'built'));
  const done = withProgress('building', work, { out: to, detail: () => 'linking' });
  await vi.advanceTimersByTimeAsync(20_000);
  expect(await done).toBe('built');
  expect(to.text().split('\n')).toEqual([
    'building … 2.0 s (linking)',
    'building … 4.0 s (linking)',
    'building … 8.0 s (linking)',
    'building … 16 s (linking)',
    'building: done in 20 s',
    '',
  ]);
});

test('a failure is handed on and no longer told as going on', async () => {
  vi.useFakeTimers();
  const to = out();
  const failing = withProgress('building', async () => Promise.reject(new Error('no')), { out: to });
  await expect(failing).rejects.toThrow('no');
  await vi.advanceTimersByTimeAsync(60_000);
  expect(to.text()).toBe('');
});

test('times are short', () => {
  expect([400, 9_949, 12_300, 185_000].map(elapsed)).toEqual(['0.4 s', '9.9 s', '12 s', '3 min 05 s']);
});
