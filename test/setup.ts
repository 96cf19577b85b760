// `vi.waitFor` waits for a condition; how long a busy machine may take for it is no part of any test. Its default of one
// second is met by chance where two cores run everything at once.
import { vi } from 'vitest';

const PATIENCE_MS = 15_000;
const waitFor = vi.waitFor;
vi.waitFor = (callback, options) =>
  waitFor(callback, typeof options === 'number' ? options : { timeout: PATIENCE_MS, ...options });
