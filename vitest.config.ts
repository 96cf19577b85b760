import { defineConfig } from 'vitest/config';

// Tests start real processes and servers: the timeouts bound a hang, they are no measurement.
export default defineConfig({
  test: {
    maxWorkers: 2,
    projects: [
      {
        test: {
          name: 'parts',
          setupFiles: ['test/setup.ts'],
          expect: { poll: { timeout: 15_000 } },
          include: ['test/**/*.test.ts'],
          exclude: ['test/e2e/**', 'test/fault/**', 'test/vllm/**'],
          testTimeout: 30_000,
          hookTimeout: 60_000,
        },
      },
      {
        test: {
          // Each file runs a whole installation, so one at a time, after everything else.
          name: 'e2e',
          include: ['test/e2e/**/*.test.ts', 'test/fault/**/*.test.ts'],
          globalSetup: 'test/e2e/setup.mjs',
          setupFiles: ['test/setup.ts'],
          expect: { poll: { timeout: 15_000 } },
          maxWorkers: 1,
          sequence: { groupOrder: 1 },
          testTimeout: 90_000,
          hookTimeout: 90_000,
        },
      },
    ],
  },
});
