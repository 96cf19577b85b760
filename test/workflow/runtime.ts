// The SDK's own log, once a process and before any worker: tests provoke what it would warn of.
import { DefaultLogger, makeTelemetryFilterString, Runtime } from '@temporalio/worker';

export function quietRuntime(): void {
  Runtime.install({
    logger: new DefaultLogger('ERROR'),
    telemetryOptions: {
      logging: { filter: makeTelemetryFilterString({ core: 'ERROR', other: 'ERROR' }) },
    },
  });
}
