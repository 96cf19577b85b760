// Logs of this node's engines: kept within log_max, and shown without secrets.
import { spawn } from 'node:child_process';
import { LlmgwError } from '../../contracts/errors.js';
import { LOG_BEAT, type LogPiece } from '../../contracts/logs.js';
import type { Handle } from '../state/handle.js';
import { aligned, type Context, knownSecrets, loadSecrets, pause } from './context.js';
import { LogFollow } from './log-follow.js';
import { logFile, sizeOf, tailLines } from './logs.js';
import { shown } from './redact.js';
import { cutArgs, readExit } from './shim.js';

/** INV-10: shown instead of lines that can't be redacted. */
const WITHHELD =
  '[llmgw: this log is not shown: a secret of this engine (env_from_files, engine_key_file) can not be read on the node, so it can not be taken out]';

const NOT_OURS =
  '[llmgw: there is no log of this engine: it was adopted while it ran, and its output goes where whoever started it has sent it]';

/** What `tail` may be asked for; newest generation and rank 0 unless told. */
export interface TailQuery {
  generation?: number;
  rank?: number;
  lines?: number;
}

/** How often a log that is followed is looked at, and while it has more than one look takes. */
const LOOK_MS = 200;
const MORE_MS = 50;
/** A progress bar is shown anew so often at most. */
const BAR_MS = 500;
/** Each costs a look every LOOK_MS; the requests of a stream are bounded too. */
const MAX_FOLLOWERS = 16;
/** A log is looked at so often at least while it grows fast. */
const FLOOD_LOOK_MS = 100;

export class LogKeeper {
  private readonly cutting = new Set<string>();
  private readonly seen = new Map<string, { size: number; at: number }>();
  private timer: NodeJS.Timeout | null = null;
  private followers = 0;
  private closed = false;

  constructor(private readonly ctx: Context) {}

  start(): void {
    const look = (): void => {
      const next = this.bound();
      if (this.closed) return;
      this.timer = setTimeout(look, next);
      this.timer.unref();
    };
    look();
  }

  close(): void {
    this.closed = true;
    if (this.timer !== null) clearTimeout(this.timer);
  }

  /** Last lines, redacted, oldest first. Throws ENGINE_UNKNOWN. */
  async tail(replica: string, query: TailQuery): Promise<string[]> {
    const { ctx } = this;
    const log = await this.open(replica, query);
    if ('withheld' in log) return [log.withheld];
    const lines = tailLines(ctx.handles.runDir(log.of), query.lines ?? ctx.opts.logLines);
    return lines.map(line => shown(line, log.secrets));
  }

  /**
   * The tail, then what comes, redacted, until the engine's generation has ended or `signal` aborts. Nothing is read ahead
   * of who asks for it. Throws ENGINE_UNKNOWN, and UNAVAILABLE when too many follow.
   */
  async *follow(replica: string, query: TailQuery, signal: AbortSignal): AsyncGenerator<LogPiece[]> {
    const { ctx } = this;
    if (this.followers >= MAX_FOLLOWERS)
      throw new LlmgwError('UNAVAILABLE', `${MAX_FOLLOWERS} logs of this node are followed already.`);
    this.followers++;
    try {
      const log = await this.open(replica, query);
      if ('withheld' in log) {
        yield [{ end: 'lost', note: log.withheld }];
        return;
      }
      const { of, secrets } = log;
      const follow = new LogFollow(ctx.handles.runDir(of), query.lines ?? ctx.opts.logLines);
      let barSeen: string | null = null;
      let barShown: string | null = null;
      let barAt = 0;
      // The first look is told in any case: that there is a log at all.
      let beatAt = Number.NEGATIVE_INFINITY;
      const ends = AbortSignal.any([signal, ctx.closed]);
      while (!ends.aborted) {
        // Before the look: what was written before the end is found by it.
        const over = this.endOf(of);
        const { pieces, bar, more } = follow.look();
        const out: LogPiece[] = pieces.map(p =>
          p.kind === 'note' ? { note: p.text } : { line: shown(p.text, secrets) },
        );
        const now = performance.now();
        // One that stands still: half a state could be half a secret.
        if (bar !== null && bar !== '' && bar === barSeen && bar !== barShown && now - barAt >= BAR_MS) {
          out.push({ bar: shown(bar, secrets) });
          barShown = bar;
          barAt = now;
        }
        barSeen = bar;
        if (over !== null && !more) {
          const last = follow.last();
          if (last !== '') out.push({ line: shown(last, secrets) });
          yield [...out, { end: 'engine', note: over }];
          return;
        }
        if (out.length > 0 || now - beatAt >= LOG_BEAT) {
          yield out;
          beatAt = performance.now();
        }
        await pause(more ? MORE_MS : LOOK_MS, ends);
      }
    } finally {
      this.followers--;
    }
  }

  /** The engine whose log is asked for; `withheld`: why nothing of it is shown. */
  private async open(
    replica: string,
    query: TailQuery,
  ): Promise<{ of: Handle; secrets: string[] } | { withheld: string }> {
    const { ctx } = this;
    const rank = query.rank ?? 0;
    const h = ctx.handles
      .ofReplica(replica)
      .filter(x => x.order !== null && x.rank === rank)
      .findLast(x => query.generation === undefined || x.generation === query.generation);
    if (h === undefined) {
      const which = query.generation === undefined ? '' : `, generation ${query.generation}`;
      throw new LlmgwError(
        'ENGINE_UNKNOWN',
        `this node has no log of replica ${replica}${which}, rank ${rank}`,
      );
    }
    if (h.process !== null) return { withheld: NOT_OURS };
    await loadSecrets(ctx, h);
    const secrets = knownSecrets(ctx, h);
    return secrets === null ? { withheld: WITHHELD } : { of: h, secrets };
  }

  /** How it ended; null: it has not. */
  private endOf(of: Handle): string | null {
    const h = this.ctx.handles.get(of);
    if (h !== undefined && h.state !== 'exited' && h.state !== 'stopped') return null;
    const exit = h?.exit ?? readExit(this.ctx.handles.runDir(of));
    const how =
      exit?.signal != null ? `signal ${exit.signal}` : exit?.code != null ? `exit code ${exit.code}` : null;
    return `generation ${of.generation} of ${of.replica} has ended${how === null ? '' : ` (${how})`}`;
  }

  /**
   * The agent cuts at three quarters of log_max, the shim (no agent there) at all of it: they never meet. Returns when to
   * look again, ms: sooner where a log would be full before the usual time.
   */
  private bound(): number {
    const { ctx } = this;
    const limit = (ctx.opts.logMaxBytes / 4) * 3;
    let next = aligned(ctx.opts.healthIntervalMs);
    const now = performance.now();
    const live = ctx.handles.all().filter(h => h.state === 'running');
    const dirs = live.map(h => ctx.handles.runDir(h));
    for (const runDir of this.seen.keys()) if (!dirs.includes(runDir)) this.seen.delete(runDir);
    for (const runDir of dirs) {
      const size = sizeOf(logFile(runDir));
      const before = this.seen.get(runDir);
      this.seen.set(runDir, { size, at: now });
      // Bytes a millisecond; after a cut it has begun anew.
      const grown = before === undefined ? 0 : size >= before.size ? size - before.size : size;
      const rate = grown / Math.max(1, now - (before?.at ?? now));
      if (rate > 0) next = Math.min(next, Math.max(FLOOD_LOOK_MS, (limit - size) / rate / 2));
      if (size > limit) this.cut(runDir);
    }
    return next;
  }

  private cut(runDir: string): void {
    if (this.cutting.has(runDir)) return;
    this.cutting.add(runDir);
    const child = spawn('/bin/sh', cutArgs(runDir, this.ctx.opts.logMaxBytes), { stdio: 'ignore' });
    const done = () => this.cutting.delete(runDir);
    child.once('exit', done);
    child.once('error', done);
    child.unref();
  }
}
