import { expect, test } from 'vitest';
import { ClockSkew } from '../../agent/stream/clock.js';

test('clocks within 5 s agree; beyond that the step is said, and on which side', () => {
  expect(new ClockSkew().judge(5_000)).toBeNull();
  expect(new ClockSkew().judge(6_400)).toContain('more than 5 s ahead of');
  expect(new ClockSkew().judge(-61_000)).toContain('more than 1 min behind');
  expect(new ClockSkew().judge(10 * 86_400_000)).toContain('more than 24 h ahead of');
});

test('a clock that drifts and trembles is said once a step', () => {
  const clock = new ClockSkew();
  const said = new Set<string | null>();
  for (let s = 4; s < 70; s += 0.5)
    for (const jitter of [-0.4, 0.4]) said.add(clock.judge((s + jitter) * 1_000));
  expect(said.size).toBe(5); // none, 5 s, 10 s, 30 s, 1 min
  const at30 = new ClockSkew();
  at30.judge(31_000);
  const steady = [29, 31, 25, 30].map(s => at30.judge(s * 1_000));
  expect(new Set(steady)).toEqual(new Set([at30.judge(30_500)]));
  expect(at30.judge(23_000)).toContain('more than 10 s');
  expect(at30.judge(-23_000)).toContain('more than 10 s behind');
  expect(at30.judge(1_000)).toBeNull();
});
