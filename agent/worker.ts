// The node's Temporal worker: activities only, on the queue `node-<node_id>`, over the control plane's address. It is
// started again whenever it ends, when a certificate file has changed and when its connection has gone dead: the new
// one first, then the old one is drained. Its end never ends the agent: it is the node condition `worker`.
import { createHash } from 'node:crypto';
import { nodeQueue } from '../contracts/ids.js';
import { formatHostPort } from '../lib/address.js';
import type { Logger } from '../lib/log.js';
import { tlsFaultSentence } from '../lib/tls/faults.js';
import { TlsKeeper } from '../lib/tls/keeper.js';
import { TlsFileError, type TlsFiles } from '../lib/tls/load.js';
import type { Conditions } from './conditions.js';
import { Backoff, pause } from './stream/backoff.js';
import type { StreamConfig } from './stream/types.js';
import { WorkerGeneration } from './worker-generation.js';

/** How often the certificate files are looked at. */
const LOOK_EVERY = 2_000;
/**
 * The core's own pings find a connection whose bytes vanish after 45 s, and SDK 1.24 has no setting for that; within
 * 30 s a launch has gone to another node. So the connection is asked as often as the stream's is (15 s in all).
 */
const PROBE_EVERY = 10_000;
const PROBE_WITHIN = 5_000;
/** A worker that ran this long makes the next wait short again. */
const HELD_AFTER = 30_000;
/** Of the agent's own second (agent/stop.ts). */
const STOP_WITHIN = 700;

export interface NodeWorkerOptions {
  config: Pick<StreamConfig, 'nodeId' | 'server' | 'tls' | 'reconnectBaseMs' | 'reconnectMaxMs'>;
  activities: object;
  conditions: Conditions;
  log: Logger;
  /** How often the certificate files are looked at, ms; default 2 s. */
  lookEveryMs?: number;
  /** How often the connection is asked for a sign of life, and how long that may take, ms; default 10 s and 5 s. */
  probeEveryMs?: number;
  probeWithinMs?: number;
}

/** What the agent needs of a worker. */
export interface RunningWorker {
  /** From Welcome; a changed one means a new worker. The first call starts it. */
  use(namespace: string): void;
  /** Resolves when all of it has ended, after `stop` has aborted; what can't end by itself is left. */
  run(stop: AbortSignal): Promise<void>;
}

interface Generation {
  worker: WorkerGeneration;
  fingerprint: string;
}

export class NodeWorker implements RunningWorker {
  private namespace: string | null = null;
  /** Ends the wait for the next look. */
  private wake: () => void = () => {};
  private welcomed = false;
  private readonly drains = new Set<Promise<void>>();
  private readonly certificate: TlsKeeper | null;
  /** The pair that was refused, and when it is tried again. */
  private failed: { fingerprint: string; backoff: Backoff; until: number } | null = null;

  constructor(private readonly opts: NodeWorkerOptions) {
    const { tls } = opts.config;
    // One that is out of its dates by this clock is shown all the same: the peer judges by its own, and says so.
    this.certificate = tls === null ? null : new TlsKeeper(tls, 'client', { anyDate: true });
  }

  use(namespace: string): void {
    this.namespace = namespace;
    this.welcomed = true;
    this.wake();
  }

  async run(stop: AbortSignal): Promise<void> {
    const { conditions, log } = this.opts;
    const backoff = this.backoff();
    while (this.namespace === null && !stop.aborted) await this.nextLook(stop);
    while (!stop.aborted) {
      const since = performance.now();
      const why = await this.serve(stop);
      if (stop.aborted) break;
      if (performance.now() - since > HELD_AFTER) backoff.reset();
      const wait = backoff.next();
      conditions.set('worker', `The Temporal worker does not run: ${why}`);
      log.warn({ in_ms: wait }, `the Temporal worker does not run: ${why}`);
      await this.waitToRetry(wait, stop);
    }
    const drained = new AbortController();
    void Promise.all(this.drains).then(() => drained.abort());
    await pause(STOP_WITHIN, drained.signal);
  }

  /** Runs workers, one after the other as certificates change, until one ends by itself or the agent stops. */
  private async serve(stop: AbortSignal): Promise<string> {
    let current: Generation;
    try {
      current = await this.start();
    } catch (error) {
      return this.sentenceOf(error);
    }
    this.opts.conditions.clear('worker');
    this.opts.log.info({ queue: nodeQueue(this.opts.config.nodeId) }, 'the Temporal worker runs');
    for (;;) {
      const why = await Promise.race([current.worker.ended, this.nextLook(stop)]);
      if (stop.aborted || why !== null) {
        this.retire(current);
        return why === null ? 'the agent stops' : this.sentenceOf(why);
      }
      const next = (await this.answers(current)) ? await this.replace(current) : await this.revive(current);
      if (next === null) continue;
      this.retire(current);
      current = next;
    }
  }

  /** Whatever ended it, its connection is closed; the next one doesn't wait for activities that hang in it. */
  private retire(generation: Generation): void {
    const drain = generation.worker.drain().finally(() => this.drains.delete(drain));
    this.drains.add(drain);
  }

  private answers(generation: Generation): Promise<boolean> {
    const { probeEveryMs = PROBE_EVERY, probeWithinMs = PROBE_WITHIN } = this.opts;
    return generation.worker.answers(probeEveryMs, probeWithinMs);
  }

  /**
   * A connection that doesn't answer is replaced only when a new one does: while the control plane is away the core
   * goes on trying by itself, and activities go on.
   */
  private async revive(dead: Generation): Promise<Generation | null> {
    const { conditions, log } = this.opts;
    let next: Generation;
    try {
      next = await this.start();
    } catch (error) {
      this.tell(`The Temporal worker is not heard: ${this.sentenceOf(error)}`);
      return null;
    }
    conditions.clear('worker');
    if (await this.answers(dead)) {
      this.retire(next); // the control plane was away for a moment, and is there again
      return null;
    }
    log.warn('the Temporal worker has a new connection: the old one had gone dead without a word');
    return next;
  }

  /** A worker with the certificates and namespace of now; null: they are the same, or not usable. */
  private async replace(current: Generation): Promise<Generation | null> {
    const { conditions, log } = this.opts;
    const unusable = (why: string): null => {
      // The old one goes on for as long as its connection does, whatever its certificate's end.
      this.tell(`The changed certificate can't be used: ${why}`);
      return null;
    };
    const fingerprint = this.fingerprint(this.certificate?.current() ?? null);
    if (fingerprint === current.fingerprint) {
      this.failed = null;
      const problem = this.certificate?.problem ?? null;
      if (problem !== null) return unusable(problem.message);
      conditions.clear('worker');
      return null;
    }
    if (this.failed?.fingerprint !== fingerprint)
      this.failed = { fingerprint, backoff: this.backoff(), until: 0 };
    if (performance.now() < this.failed.until) return null;
    try {
      const next = await this.start();
      conditions.clear('worker');
      log.info('the Temporal worker has a new connection: certificate or namespace changed');
      return next;
    } catch (error) {
      this.failed.until = performance.now() + this.failed.backoff.next();
      return unusable(this.sentenceOf(error));
    }
  }

  /** The condition `worker`, and a line when it is another one. */
  private tell(sentence: string): void {
    const { conditions, log } = this.opts;
    if (!conditions.list().some(c => c.code === 'worker' && c.message === sentence)) log.warn(sentence);
    conditions.set('worker', sentence);
  }

  private async start(): Promise<Generation> {
    const { config, activities, log } = this.opts;
    const files = this.certificate?.current() ?? null;
    const fingerprint = this.fingerprint(files);
    const namespace = this.namespace ?? 'default';
    const { nodeId, server } = config;
    const worker = await WorkerGeneration.start({ nodeId, server, namespace, files, activities, log });
    return { worker, fingerprint };
  }

  private fingerprint(files: TlsFiles | null): string {
    const hash = createHash('sha256').update(this.namespace ?? '');
    if (files !== null) for (const part of [files.ca, files.cert, files.key]) hash.update('\0').update(part);
    return hash.digest('hex');
  }

  /** After a while, or when `use` was called, or at the agent's stop. */
  private nextLook(stop: AbortSignal): Promise<null> {
    return pause(this.opts.lookEveryMs ?? LOOK_EVERY, stop, wake => {
      this.wake = wake;
    }).then(() => null);
  }

  /** The wait before the next attempt: over when the control plane has welcomed the stream, or the pair has changed. */
  private async waitToRetry(ms: number, stop: AbortSignal): Promise<void> {
    const { lookEveryMs = LOOK_EVERY } = this.opts;
    const end = performance.now() + ms;
    this.welcomed = false;
    for (let left = ms; left > 0 && !stop.aborted; left = end - performance.now()) {
      await pause(Math.min(left, lookEveryMs), stop, wake => {
        this.wake = wake;
      });
      if (this.welcomed || this.certificate?.look()) return;
    }
  }

  private backoff(): Backoff {
    const { reconnectBaseMs, reconnectMaxMs } = this.opts.config;
    return new Backoff(reconnectBaseMs, reconnectMaxMs);
  }

  /** One sentence; about certificates where the error is. */
  private sentenceOf(error: unknown): string {
    const { server, tls } = this.opts.config;
    const own = this.certificate?.files ?? null;
    if (tls !== null && own !== null && error instanceof Error && !(error instanceof TlsFileError)) {
      const context = { server: formatHostPort(server), caFile: tls.ca, certFile: tls.cert, own };
      const fault = tlsFaultSentence(error, context);
      if (fault !== null) return fault;
    }
    if (!(error instanceof Error)) return String(error);
    const cause = error.cause instanceof Error ? `: ${error.cause.message}` : '';
    return `${error.message}${cause}`;
  }
}
