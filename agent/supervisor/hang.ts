// Engines that have been ready and hang: the process lives, /health says 200, and nothing comes out any more. Found by
// their own figures and, where those stand still, by a request for one token (see pulse.ts). A hang is told as a
// failure with its evidence; ending the process is the workflow's order (INV-5), by SIGKILL if need be.

import { formatDuration } from '../../contracts/duration.js';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import type { LifeSigns } from '../engines/types.js';
import { type Handle, refOf } from '../state/handle.js';
import { type Context, loadSecrets, pause, rendererOf } from './context.js';
import type { FailureInput } from './failure.js';
import { httpGet, httpPost } from './probe.js';
import { describePid } from './proc.js';
import { type Look, PulseJudge, type TokenAnswer } from './pulse.js';

/**
 * Longer than vLLM's first requests take where kernels are compiled for them, shorter than its own limit of a step (5
 * minutes), which doesn't see every hang.
 */
const HANG_MS = 180_000;
/** Figures are read this often within that time: a read costs the API process some milliseconds. */
const LOOKS = 20;

export class HangWatch {
  private readonly watched = new Map<string, AbortController>();

  constructor(
    private readonly ctx: Context,
    private readonly onHung: (ref: EngineRef, failure: FailureInput) => void,
  ) {}

  /** From ready on, until it ends or is to be stopped. */
  add(ref: EngineRef): void {
    const key = engineKeyOf(ref);
    if (this.watched.has(key)) return;
    const handle = this.ctx.handles.get(ref);
    if (handle?.order == null || handle.probe === null) return;
    const signs = rendererOf(this.ctx, handle)?.lifeSigns(handle.order) ?? null;
    if (signs === null) return;
    const end = new AbortController();
    this.watched.set(key, end);
    const watching = this.watch(refOf(ref), signs, AbortSignal.any([end.signal, this.ctx.closed]));
    void watching.finally(() => this.watched.delete(key));
  }

  private async watch(ref: EngineRef, signs: LifeSigns, signal: AbortSignal): Promise<void> {
    const judge = new PulseJudge(this.hangMs, performance.now());
    for (let goOn = true; goOn; ) {
      await pause(this.hangMs / LOOKS, signal);
      if (signal.aborted) return;
      try {
        goOn = await this.step(ref, signs, judge, signal);
      } catch (error) {
        // A full disk, most likely: what can't be told now is found again at the next look.
        this.ctx.opts.log.warn({ ...ref, err: error }, 'an engine could not be looked at for a hang');
      }
    }
  }

  /** false: nothing more to watch. */
  private async step(
    ref: EngineRef,
    signs: LifeSigns,
    judge: PulseJudge,
    signal: AbortSignal,
  ): Promise<boolean> {
    const handle = this.serving(ref);
    if (handle === null) return false;
    const next = judge.looked(await look(handle, signs, judge.probeMs, signal), performance.now());
    if (signal.aborted || this.serving(ref) === null) return false;
    if (next === 'hung') {
      this.onHung(ref, this.describe(handle, judge));
      return false;
    }
    if (next === 'wait') return true;
    const askedAt = performance.now();
    judge.asked(await this.ask(handle, signs, judge.probeMs, signal), askedAt, performance.now());
    return true;
  }

  private get hangMs(): number {
    return this.ctx.opts.hangTimeoutMs ?? HANG_MS;
  }

  /** null: it has ended, is to end, or its failure has been told: nothing more to watch. */
  private serving(ref: EngineRef): Handle | null {
    const handle = this.ctx.handles.get(ref);
    const over = handle?.marks.failure_told === true || handle?.marks.requested_stop != null;
    return handle?.state === 'running' && !over ? handle : null;
  }

  private async ask(
    handle: Handle,
    signs: LifeSigns,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<TokenAnswer> {
    const { bearer } = await loadSecrets(this.ctx, handle);
    // A key that can't be read: whatever it answers without one says nothing of its core.
    if (bearer === undefined) return 'other';
    const url = urlOf(handle, signs.oneToken.path);
    // An open request keeps vLLM from ending at SIGTERM: this one must not be what a stop waits for.
    const stopped = new AbortController();
    const looking = setInterval(() => {
      if (this.serving(handle) === null) stopped.abort();
    }, this.ctx.opts.healthIntervalMs);
    try {
      const { status } = await httpPost(url, bearer, signs.oneToken.body, {
        signal: AbortSignal.any([signal, stopped.signal]),
        timeoutMs,
      });
      return status === null ? 'none' : status === 200 ? 'token' : 'other';
    } finally {
      clearInterval(looking);
    }
  }

  private describe(handle: Handle, judge: PulseJudge): FailureInput {
    const { stillMs, probes, requests } = judge.verdict(performance.now());
    const at =
      requests === null
        ? 'its API process answers nothing'
        : `its API process answers, with ${requests} ${requests === 1 ? 'request' : 'requests'} at work`;
    const stuck = this.ctx.runtimes
      .of(handle)
      .tree.scan()
      .filter(p => p.state === 'T' || p.state === 't' || p.state === 'D')
      .map(p => `pid ${p.pid} (${describePid(p.pid)}) is in state ${p.state}`);
    return {
      exit: null,
      known: {
        class: 'retry',
        code: 'ENGINE_HUNG',
        sentence: `the engine hangs: it has produced nothing for ${seconds(stillMs)} and answered none of ${probes} requests for one token; ${[at, ...stuck.slice(0, 3)].join('; ')}`,
      },
    };
  }

  close(): void {
    for (const end of this.watched.values()) end.abort();
    this.watched.clear();
  }
}

const seconds = (ms: number): string => formatDuration(Math.max(1, Math.round(ms / 1000)) * 1000);

async function look(handle: Handle, signs: LifeSigns, timeoutMs: number, signal: AbortSignal): Promise<Look> {
  const { status, body } = await httpGet(urlOf(handle, signs.metricsPath), null, signal, timeoutMs);
  if (status === null) return { kind: 'silent' };
  const pulse = status === 200 ? signs.read(body) : null;
  return pulse === null ? { kind: 'unreadable' } : { kind: 'pulse', pulse };
}

const urlOf = (handle: Handle, path: string): string => new URL(path, handle.probe!.health_url).href;
