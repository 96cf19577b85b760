// Run as a process of its own: `node temporal-download.js DIR VERSION` has the SDK download the CLI into DIR, as
// DIR/temporal-VERSION. The SDK offers that only as part of starting the server, which is ended at once.
import { TestWorkflowEnvironment } from '@temporalio/testing';

const [downloadDir, version] = process.argv.slice(2);
if (downloadDir === undefined || version === undefined)
  throw new Error('usage: temporal-download.js DIR VERSION');
const environment = await TestWorkflowEnvironment.createLocal({
  server: { executable: { type: 'cached-download', downloadDir, version } },
});
await environment.teardown();
