import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { tempDir } from './support.js';

const SUMMARY = new URL('../../.ci/summary.mjs', import.meta.url).pathname;

function summary(report: object | null, tested: number, checked: number) {
  const file = path.join(tempDir(), 'report.json');
  if (report !== null) writeFileSync(file, JSON.stringify(report));
  const { status, stdout } = spawnSync(process.execPath, [SUMMARY, file, String(tested), String(checked)], {
    encoding: 'utf8',
  });
  return { status, last: stdout.trim().split('\n').at(-1) };
}

test("CI's closing line counts what passed and failed", () => {
  expect(summary({ numPassedTests: 12, numFailedTests: 0 }, 0, 0)).toEqual({
    status: 0,
    last: '12 passed, 0 failed',
  });
  expect(summary({ numPassedTests: 11, numFailedTests: 1 }, 1, 0)).toEqual({
    status: 1,
    last: '11 passed, 1 failed',
  });
});

test('a run that broke, a missing report and a failed check are failures', () => {
  expect(summary({ numPassedTests: 3, numFailedTests: 0 }, 1, 0)).toEqual({
    status: 1,
    last: '3 passed, 1 failed',
  });
  expect(summary(null, 1, 0)).toEqual({ status: 1, last: '0 passed, 1 failed' });
  expect(summary({ numPassedTests: 3, numFailedTests: 0 }, 0, 1)).toEqual({
    status: 1,
    last: '3 passed, 1 failed',
  });
});
