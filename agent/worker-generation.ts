// One native connection with one Temporal worker on it: made together, ended together. The core keeps the certificate
// and the socket that it was given, so whatever changes makes another generation (agent/worker.ts says when).
import type { NativeConnection, Worker } from '@temporalio/worker';
import { nodeQueue } from '../contracts/ids.js';
import { formatHostPort, type ServerUrl } from '../lib/address.js';
import type { Logger } from '../lib/log.js';
import { NODE_ID_HEADER } from '../lib/tls/identity.js';
import type { TlsFiles } from '../lib/tls/load.js';

/** A connection that hangs half-open is given up: the control plane answers in milliseconds or is away. */
const START_WITHIN = 10_000;
/** Activities are told, and end as to be retried elsewhere; the engines don't notice. */
const GRACE = '200ms';
/** An activity hears of its cancellation with a heartbeat: this bounds how late. Well below their timeout (10 s). */
const HEARTBEAT_EVERY = '2s';
/** Load, ready and stop waits of all engines of a node run at the same time, each little work. */
const MAX_ACTIVITIES = 200;
/**
 * gRPC's CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE come from this side. UNAUTHENTICATED is the control plane's answer
 * to a certificate that it refuses, which the core would poll with for ever. All others say that somebody serves us.
 */
const NOT_SERVED = [1, 4, 14, 16];

export interface GenerationOptions {
  nodeId: string;
  server: ServerUrl;
  namespace: string;
  /** null: plain. */
  files: TlsFiles | null;
  activities: object;
  log: Logger;
}

export class WorkerGeneration {
  /** Why it ended, the error itself where there was one; never rejects. */
  readonly ended: Promise<unknown>;
  /** Monotonic ms of its last sign of life. */
  private heardAt = performance.now();

  private constructor(
    private readonly connection: NativeConnection,
    private readonly worker: Worker,
  ) {
    this.ended = worker.run().then(
      () => 'it was shut down',
      error => error,
    );
  }

  /** Rejects when there is no such connection within 10 s; one that comes later is ended. */
  static async start(opts: GenerationOptions): Promise<WorkerGeneration> {
    const { files, nodeId } = opts;
    const { NativeConnection, Worker } = await temporal(opts.log);
    const starting = (async () => {
      const connection = await NativeConnection.connect({
        address: formatHostPort(opts.server),
        ...(files === null
          ? { metadata: { [NODE_ID_HEADER]: nodeId } }
          : {
              tls: {
                serverRootCACertificate: files.ca,
                clientCertPair: { crt: files.cert, key: files.key },
              },
            }),
      });
      try {
        const worker = await Worker.create({
          connection,
          namespace: opts.namespace,
          taskQueue: nodeQueue(nodeId),
          identity: nodeId,
          activities: opts.activities,
          // One long poll a node: the frontend bounds polls per namespace (frontend.namespaceCount). SDK 1.24 ignores
          // maxConcurrentActivityTaskPolls.
          activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
          maxConcurrentActivityTaskExecutions: MAX_ACTIVITIES,
          maxHeartbeatThrottleInterval: HEARTBEAT_EVERY,
          defaultHeartbeatThrottleInterval: HEARTBEAT_EVERY,
          shutdownGraceTime: GRACE,
        });
        return new WorkerGeneration(connection, worker);
      } catch (error) {
        await connection.close().catch(() => {});
        throw error;
      }
    })();
    return within(START_WITHIN, starting, late => late.drain());
  }

  /**
   * Whether the connection serves: asked for the gRPC health service unless it was heard within `everyMs`. That
   * costs Temporal nothing, and any answer is a sign of life, "unimplemented" too. Nothing is concluded from a time
   * in which this process slept itself.
   */
  async answers(everyMs: number, withinMs: number): Promise<boolean> {
    const asked = performance.now();
    if (asked - this.heardAt < everyMs) return true;
    const { connection } = this;
    const answer = connection
      .withDeadline(Date.now() + withinMs, () => connection.healthService.check({}))
      .then(() => true)
      .catch(error => !NOT_SERVED.includes(error?.code));
    // The core's deadline alone would be counted anew with each of its retries.
    let timer: NodeJS.Timeout | undefined;
    const silence = new Promise<boolean>(resolve => {
      timer = setTimeout(() => resolve(false), withinMs);
    });
    const alive = await Promise.race([answer, silence]).finally(() => clearTimeout(timer));
    const slept = performance.now() - asked > 2 * withinMs;
    if (alive || slept) this.heardAt = performance.now();
    return alive || slept;
  }

  /** Ends the worker, then its connection; takes as long as activities that can't be told. */
  async drain(): Promise<void> {
    if (this.worker.getState() === 'RUNNING') this.worker.shutdown();
    await this.ended;
    // Refused while the core still uses it; then the process's end closes it.
    await this.connection.close().catch(() => {});
  }
}

let loaded: Promise<typeof import('@temporalio/worker')> | null = null;

/** Loaded when first needed: an agent without a control plane does without its memory. */
function temporal(log: Logger): Promise<typeof import('@temporalio/worker')> {
  loaded ??= import('@temporalio/worker').then(sdk => {
    sdk.Runtime.install({
      // The SDK would end its workers on SIGTERM by itself; when the agent stops is the agent's to say.
      shutdownSignals: [],
      logger: new sdk.DefaultLogger('WARN', entry => {
        if (entry.message.startsWith('No workflows registered')) return; // an activity worker has none
        log[entry.level === 'ERROR' ? 'error' : 'warn']({ sdk: entry.meta?.sdkComponent }, entry.message);
      }),
      telemetryOptions: { logging: { filter: sdk.makeTelemetryFilterString({ core: 'WARN' }), forward: {} } },
    });
    return sdk;
  });
  return loaded;
}

/** What comes too late is handed to `tooLate`. */
async function within<T>(ms: number, work: Promise<T>, tooLate: (value: T) => Promise<void>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  let expired = false;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      expired = true;
      reject(new Error(`the control plane did not answer within ${ms / 1000} s`));
    }, ms);
  });
  work.then(value => (expired ? tooLate(value) : undefined)).catch(() => {});
  return Promise.race([work, limit]).finally(() => clearTimeout(timer));
}
