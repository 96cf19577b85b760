// Logs of this node's engines: kept within log_max, and shown without secrets.
import { spawn } from 'node:child_process';
import { LlmgwError } from '../../contracts/errors.js';
import { type Context, knownSecrets, loadSecrets } from './context.js';
import { logFile, sizeOf, tailLines } from './logs.js';
import { printable, redact } from './redact.js';
import { cutArgs } from './shim.js';

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

export class LogKeeper {
  private readonly cutting = new Set<string>();
  private timer: NodeJS.Timeout | null = null;

  constructor(private readonly ctx: Context) {}

  start(): void {
    this.timer = setInterval(() => this.bound(), this.ctx.opts.healthIntervalMs);
    this.timer.unref();
  }

  close(): void {
    if (this.timer !== null) clearInterval(this.timer);
  }

  /** Last lines, redacted, oldest first. Throws ENGINE_UNKNOWN. */
  async tail(replica: string, query: TailQuery): Promise<string[]> {
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
    if (h.process !== null) return [NOT_OURS];
    await loadSecrets(ctx, h);
    const secrets = knownSecrets(ctx, h);
    if (secrets === null) return [WITHHELD];
    return tailLines(ctx.handles.runDir(h), query.lines ?? ctx.opts.logLines).map(line =>
      redact(printable(line), secrets),
    );
  }

  /** The agent cuts at three quarters of log_max, the shim (no agent there) at all of it: they never meet. */
  private bound(): void {
    const { ctx } = this;
    for (const h of ctx.handles.all()) {
      if (h.state !== 'running') continue;
      const runDir = ctx.handles.runDir(h);
      if (sizeOf(logFile(runDir)) <= (ctx.opts.logMaxBytes / 4) * 3 || this.cutting.has(runDir)) continue;
      this.cutting.add(runDir);
      const child = spawn('/bin/sh', cutArgs(ctx.shim, runDir, ctx.opts.logMaxBytes), { stdio: 'ignore' });
      const done = () => this.cutting.delete(runDir);
      child.once('exit', done);
      child.once('error', done);
      child.unref();
    }
  }
}
