// The closing line of CI, from vitest's JSON report: `N passed, N failed`. Arguments: report, vitest's exit code, the
// exit code of `npm run check`. A run that broke before it could report counts as one failure, as does a failed check.
import { readFileSync } from 'node:fs';

const [file, tested, checked] = process.argv.slice(2);
let report = { numPassedTests: 0, numFailedTests: 0 };
try {
  report = JSON.parse(readFileSync(file, 'utf8'));
} catch {
  console.log('vitest wrote no report');
}
const broken = tested !== '0' && report.numFailedTests === 0 ? 1 : 0;
const failed = report.numFailedTests + broken + (checked === '0' ? 0 : 1);
console.log(`${report.numPassedTests} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
