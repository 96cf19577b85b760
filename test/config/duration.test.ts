import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import {
  durationMs,
  formatDuration,
  parseGoDuration,
  parseSize,
  sizeBytes,
} from '../../contracts/duration.js';
import { formatFault, zodFaults } from '../../contracts/faults.js';
import { readCase } from './case.js';

const { input } = readCase('config-yaml-01-go-durations-table');

describe('parseGoDuration', () => {
  it.each(Object.entries<string>(input.accept_ns))('reads %j as Go does', (text, ns) => {
    expect(parseGoDuration(text)).toBe(BigInt(ns));
  });
  it.each<[string]>(input.reject.map((text: string) => [text]))('refuses %j as Go does', text => {
    expect(parseGoDuration(text)).toHaveProperty('error');
  });
  it('says which unit it does not know', () => {
    expect(parseGoDuration('1d')).toEqual({ error: expect.stringContaining('"d"') });
  });
  it('knows no unit that is a name of Object.prototype', () => {
    expect(parseGoDuration('5constructor')).toHaveProperty('error');
  });
});

describe('formatDuration', () => {
  it.each([
    [0, '0s'],
    [500, '500ms'],
    [1500, '1.5s'],
    [90_000, '1m30s'],
    [3_600_000, '1h'],
    [5_400_001, '1h30m0.001s'],
    [-5000, '-5s'],
  ])('writes %d ms as %j, which reads back the same', (ms, text) => {
    expect(formatDuration(ms)).toBe(text);
    expect(parseGoDuration(text)).toBe(BigInt(ms) * 1_000_000n);
  });
});

function faultOf(schema: z.ZodType, value: unknown): string | undefined {
  const root = z.strictObject({ every: schema });
  const parsed = root.safeParse({ every: value });
  return parsed.success ? undefined : formatFault(zodFaults(parsed.error, { every: value }, root)[0]!);
}

describe('durationMs', () => {
  it('gives integer milliseconds', () => {
    expect(durationMs().parse('1m30s')).toBe(90_000);
    expect(durationMs({ allowZero: true }).parse('0')).toBe(0);
  });
  it('names the key, the value and an example', () => {
    expect(faultOf(durationMs(), '5 s')).toMatch(
      /^every: expected a duration such as "5s", got "5 s", which /,
    );
    expect(faultOf(durationMs({ example: '1m' }), 5)).toBe('every: expected a duration such as "1m", got 5');
  });
  it('refuses zero, negatives, fractions of a millisecond and what no timer can wait for', () => {
    expect(faultOf(durationMs(), '0s')).toContain('must be at least 1ms');
    expect(faultOf(durationMs({ allowZero: true, min: 1000 }), '5ms')).toContain('at least 1s, or "0s"');
    expect(faultOf(durationMs(), '-1s')).toContain('must not be negative');
    expect(faultOf(durationMs(), '100us')).toContain('whole number of milliseconds');
    expect(faultOf(durationMs(), '2562047h')).toContain('must be at most 596h');
  });
});

describe('sizes', () => {
  it('reads binary and decimal units', () => {
    expect(parseSize('64MiB')).toBe(64 * 2 ** 20);
    expect(parseSize('1.5GB')).toBe(1.5e9);
    expect(sizeBytes().parse('512B')).toBe(512);
  });
  it('refuses what does not say which unit it means', () => {
    for (const text of ['64M', '64', '64 MiB', '64mib', '-1MiB', '', '99999999TiB'])
      expect(parseSize(text)).toBeNull();
    expect(faultOf(sizeBytes(), '64M')).toContain('got "64M", which is not a size');
    expect(faultOf(sizeBytes(), 64)).toContain('expected a size such as "64MiB"');
  });
});
