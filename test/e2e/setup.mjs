// Before the first end-to-end test: they run what is in dist, so dist must be that of the present sources. Nothing is
// built here: another run may be under way, and a build takes dist away under its processes.
import { isFresh } from '../../scripts/lib/build-steps.mjs';

export default function setup() {
  if (!isFresh()) {
    throw new Error('dist is missing or older than its sources: run `npm run build` first (npm test does).');
  }
}
