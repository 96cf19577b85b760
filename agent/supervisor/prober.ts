// The probes of a loading engine: one in flight, at its own pace beside the watch of its log. An engine whose health
// costs it a generation says so (Probe.periodMs), and is asked that seldom once it listens.
import { performance } from 'node:perf_hooks';
import type { Handle } from '../state/handle.js';
import type { Context } from './context.js';
import { httpGet, modelIds } from './probe.js';
import { describePid, isListening, listenerAmong } from './proc.js';

/** The first looks come quickly (a warm engine is up in well under a second), later ones every health_interval. */
const FIRST_MS = 20;
const GROWTH = 1.2;
const FAST_MS = 100;
/** Looks at the fast pace; after that the engine is one that loads for minutes. */
const FAST_LOOKS = 50;
/** An answer that comes sooner was made without a generation, which takes a second, and has cost nothing. */
const CHEAP_MS = 500;

export type Seen = { kind: 'loading' | 'stranger' } | { kind: 'ready'; models: string[] };

export class LoadProber {
  private looks = 0;
  private delay = FIRST_MS;
  private next = 0;
  private inFlight = false;
  private answer: Seen | null = null;

  /** A member without a probe is never asked. */
  constructor(
    private readonly ctx: Context,
    private readonly handle: Handle,
    private readonly onAnswer: () => void,
  ) {}

  /** Asks when it is time to. */
  poll(signal: AbortSignal): void {
    if (this.handle.probe === null || this.inFlight || performance.now() < this.next) return;
    this.inFlight = true;
    const asked = performance.now();
    void probeOnce(this.ctx, this.handle, signal).then(({ seen, reached }) => {
      this.inFlight = false;
      this.looks++;
      const { healthIntervalMs } = this.ctx.opts;
      this.delay = Math.min(this.delay * GROWTH, this.looks < FAST_LOOKS ? FAST_MS : healthIntervalMs);
      const now = performance.now();
      const dear = reached && now - asked >= CHEAP_MS;
      const period = dear ? (this.handle.probe?.period_ms ?? 0) : 0;
      this.next = now + Math.max(period, Math.min(this.delay, healthIntervalMs));
      this.answer = seen;
      this.onAnswer();
    });
  }

  /** The latest answer, once; null: nothing new. */
  take(): Seen | null {
    const seen = this.answer;
    this.answer = null;
    return seen;
  }

  get answered(): boolean {
    return this.answer !== null;
  }

  /** ms until it is to be polled again. */
  get dueMs(): number {
    if (this.handle.probe === null || this.inFlight) return Number.POSITIVE_INFINITY;
    return Math.max(1, this.next - performance.now());
  }
}

/** Ready: 200 from /health, by a listener of our own tree, and /v1/models answers too. `reached`: somebody listens. */
async function probeOnce(
  ctx: Context,
  handle: Handle,
  signal: AbortSignal,
): Promise<{ seen: Seen; reached: boolean }> {
  const port = handle.ports.http;
  const probe = handle.probe!;
  const loading: Seen = { kind: 'loading' };
  if (port === undefined) return { seen: loading, reached: false };
  // Without the key: whoever listens there isn't known yet. Refused connections, the usual answer, cost nothing.
  const health = await httpGet(probe.health_url, null, signal, probe.timeout_ms);
  if (health.status === null) return { seen: loading, reached: isListening(port) };
  if (!listensInTree(ctx, handle, port)) {
    const listens = isListening(port);
    return { seen: listens ? { kind: 'stranger' } : loading, reached: false };
  }
  if (health.status !== 200) return { seen: loading, reached: true };
  const models = await httpGet(probe.models_url, ctx.runtimes.of(handle).bearer ?? null, signal);
  const ids = models.status === 200 ? modelIds(models.body) : null;
  return { seen: ids === null ? loading : { kind: 'ready', models: ids }, reached: true };
}

/** The engine's own process first; all of its tree only if that isn't it. */
export function listensInTree(ctx: Context, handle: Handle, port: number): boolean {
  const { tree } = ctx.runtimes.of(handle);
  const known = [handle.engine!.pid, ...tree.seen().map(p => p.pid)];
  return (
    listenerAmong(port, known) !== null ||
    listenerAmong(
      port,
      tree.scan().map(p => p.pid),
    ) !== null
  );
}

export function strangerSentence(handle: Handle): string {
  const port = handle.ports.http!;
  return `port ${port}, reserved for this engine, is listened on by another process, which is not of its tree (engine pid ${handle.engine?.pid}, ${describePid(handle.engine?.pid ?? 0)})`;
}
