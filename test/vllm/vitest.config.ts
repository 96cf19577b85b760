import { defineConfig } from 'vitest/config';

// One installation and one engine at a time: vLLM takes 5 GB of memory and, to get ready, two minutes of two cores.
export default defineConfig({
  test: {
    include: ['test/vllm/**/*.test.ts'],
    globalSetup: 'test/e2e/setup.mjs',
    maxWorkers: 1,
    testTimeout: 900_000,
    hookTimeout: 900_000,
  },
});
