// For scripts/record-histories.mjs only: the recorder isn't a test, so the tests' own pattern doesn't match it.
import { defineConfig } from 'vitest/config';

export default defineConfig({ test: { include: ['test/replay/record.ts'], testTimeout: 120_000 } });
