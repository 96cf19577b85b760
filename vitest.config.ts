import { defineConfig } from 'vitest/config';

// Tests start real processes and servers: 30 s bounds a hang, it is no measurement.
export default defineConfig({
  test: { include: ['test/**/*.test.ts'], testTimeout: 30_000, hookTimeout: 60_000, maxWorkers: 2 },
});
