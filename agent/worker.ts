// The node's Temporal worker: activities only, on the queue `node-<node_id>`, over the control plane's address. It is
// started again whenever it ends and when a certificate file has changed (its core keeps the pair that it was given).
// Its end never ends the agent: it is the node condition `worker`.
import { createHash } from 'node:crypto';
import type { NativeConnection, Worker } from '@temporalio/worker';
import { nodeQueue } from '../contracts/ids.js';
import { formatHostPort } from '../lib/address.js';
import type { Logger } from '../lib/log.js';
import { NODE_ID_HEADER } from '../lib/tls/identity.js';
import { loadTlsFiles, type TlsFiles } from '../lib/tls/load.js';
import type { Conditions } from './conditions.js';
import { Backoff, pause } from './stream/backoff.js';
import type { StreamConfig } from './stream/types.js';

/** A connection that hangs half-open is given up: the control plane answers in milliseconds or is away. */
const START_WITHIN = 15_000;
/** How often the certificate files are compared. */
const LOOK_EVERY = 30_000;
/** A worker that ran this long makes the next wait short again. */
const HELD_AFTER = 30_000;
/** Activities are told, and end as to be retried elsewhere; the engines don't notice. */
const GRACE = '200ms';
/** An activity hears of its cancellation with a heartbeat: this bounds how late. Well below their timeout (10 s). */
const HEARTBEAT_EVERY = '2s';
/** Load, ready and stop waits of all engines of a node run at the same time, each little work. */
const MAX_ACTIVITIES = 200;

export interface NodeWorkerOptions {
  config: Pick<StreamConfig, 'nodeId' | 'server' | 'tls' | 'reconnectBaseMs' | 'reconnectMaxMs'>;
  activities: object;
  conditions: Conditions;
  log: Logger;
  /** How often the certificate files are compared, ms. */
  lookEveryMs?: number;
}

/** What the agent needs of a worker. */
export interface RunningWorker {
  /** From Welcome; a changed one means a new worker. The first call starts it. */
  use(namespace: string): void;
  /** Resolves when all of it has ended, after `stop` has aborted. */
  run(stop: AbortSignal): Promise<void>;
}

interface Generation {
  connection: NativeConnection;
  worker: Worker;
  fingerprint: string;
  /** Why it ended; never rejects. */
  ended: Promise<string>;
}

export class NodeWorker implements RunningWorker {
  private namespace: string | null = null;
  private changed: () => void = () => {};
  private readonly drains = new Set<Promise<void>>();

  constructor(private readonly opts: NodeWorkerOptions) {}

  use(namespace: string): void {
    this.namespace = namespace;
    this.changed();
  }

  async run(stop: AbortSignal): Promise<void> {
    const { config, conditions, log } = this.opts;
    const backoff = new Backoff(config.reconnectBaseMs, config.reconnectMaxMs);
    while (this.namespace === null && !stop.aborted) await this.nextLook(stop);
    while (!stop.aborted) {
      const since = performance.now();
      const why = await this.serve(stop);
      if (stop.aborted) break;
      if (performance.now() - since > HELD_AFTER) backoff.reset();
      const wait = backoff.next();
      conditions.set('worker', `The Temporal worker does not run: ${why}`);
      log.warn({ in_ms: wait }, `the Temporal worker does not run: ${why}`);
      await pause(wait, stop);
    }
    await Promise.all(this.drains);
  }

  /** Runs workers, one after the other as certificates change, until one ends by itself or the agent stops. */
  private async serve(stop: AbortSignal): Promise<string> {
    let current: Generation;
    try {
      current = await this.start();
    } catch (error) {
      return sentenceOf(error);
    }
    this.opts.conditions.clear('worker');
    this.opts.log.info({ queue: nodeQueue(this.opts.config.nodeId) }, 'the Temporal worker runs');
    for (;;) {
      const why = await Promise.race([current.ended, this.nextLook(stop)]);
      if (stop.aborted || why !== null) {
        this.retire(current);
        return why ?? 'the agent stops';
      }
      const next = await this.replace(current);
      if (next === null) continue;
      this.retire(current);
      current = next;
    }
  }

  /** Whatever ended it, its connection is closed; the next one doesn't wait for activities that hang in it. */
  private retire(generation: Generation): void {
    const drain = this.drain(generation).finally(() => this.drains.delete(drain));
    this.drains.add(drain);
  }

  /** A worker with the certificates and namespace of now; null: they are the same, or not usable. */
  private async replace(current: Generation): Promise<Generation | null> {
    const { conditions, log } = this.opts;
    try {
      const same = this.fingerprint(this.files()) === current.fingerprint;
      const next = same ? null : await this.start();
      conditions.clear('worker');
      if (next === null) return null;
      log.info('the Temporal worker has a new connection: certificate or namespace changed');
      return next;
    } catch (error) {
      // The old one goes on for as long as its certificate is good.
      conditions.set('worker', `The changed certificate can't be used: ${sentenceOf(error)}`);
      return null;
    }
  }

  private async start(): Promise<Generation> {
    const files = this.files();
    const namespace = this.namespace ?? 'default';
    const fingerprint = this.fingerprint(files);
    const { NativeConnection, Worker } = await temporal(this.opts.log);
    const { config, activities } = this.opts;
    const starting = (async (): Promise<Generation> => {
      const connection = await NativeConnection.connect({
        address: formatHostPort(config.server),
        ...(files === null
          ? { metadata: { [NODE_ID_HEADER]: config.nodeId } }
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
          namespace,
          taskQueue: nodeQueue(config.nodeId),
          identity: config.nodeId,
          activities,
          // One long poll a node: the frontend bounds polls per namespace (frontend.namespaceCount). SDK 1.24 ignores
          // maxConcurrentActivityTaskPolls.
          activityTaskPollerBehavior: { type: 'simple-maximum', maximum: 1 },
          maxConcurrentActivityTaskExecutions: MAX_ACTIVITIES,
          maxHeartbeatThrottleInterval: HEARTBEAT_EVERY,
          defaultHeartbeatThrottleInterval: HEARTBEAT_EVERY,
          shutdownGraceTime: GRACE,
        });
        const ended = worker.run().then(() => 'it was shut down', sentenceOf);
        return { connection, worker, ended, fingerprint };
      } catch (error) {
        await connection.close().catch(() => {});
        throw error;
      }
    })();
    return within(START_WITHIN, starting, late => this.drain(late));
  }

  private async drain(generation: Generation): Promise<void> {
    if (generation.worker.getState() === 'RUNNING') generation.worker.shutdown();
    await generation.ended;
    // Refused while the core still uses it; then the process's end closes it.
    await generation.connection.close().catch(() => {});
  }

  private files(): TlsFiles | null {
    return this.opts.config.tls === null ? null : loadTlsFiles(this.opts.config.tls, 'client');
  }

  private fingerprint(files: TlsFiles | null): string {
    const hash = createHash('sha256').update(this.namespace ?? '');
    if (files !== null) for (const part of [files.ca, files.cert, files.key]) hash.update('\0').update(part);
    return hash.digest('hex');
  }

  /** After a while, or when `use` was called, or at the agent's stop. */
  private nextLook(stop: AbortSignal): Promise<null> {
    const woken = new AbortController();
    this.changed = () => woken.abort();
    return pause(this.opts.lookEveryMs ?? LOOK_EVERY, AbortSignal.any([stop, woken.signal])).then(() => null);
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

function sentenceOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const cause = error.cause instanceof Error ? `: ${error.cause.message}` : '';
  return `${error.message}${cause}`;
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
