// What happens when an engine is over: the digest is made and the event is on disk and out, before anything else is
// done about it. An exit that was ordered is the answer of that order and no event; one by the host is marked.
import type { EngineEvent, ExitStatus } from '../../contracts/engine.js';
import { type EngineRef, engineKeyOf } from '../../contracts/ids.js';
import { type Handle, refOf } from '../state/handle.js';
import type { Outbox } from '../state/outbox.js';
import { type Context, update } from './context.js';
import { byHost, completeEvidence, describeFailure, type FailureInput } from './failure.js';
import { clearLeftovers } from './leftovers.js';
import { explainOom } from './oom.js';
import { proof } from './stopping.js';

export class Endings {
  private readonly listeners = new Set<(event: EngineEvent) => void>();

  constructor(
    private readonly ctx: Context,
    private readonly outbox: Outbox,
  ) {}

  /** `listener` hears of each new event when it is on disk. */
  onEvent(listener: (event: EngineEvent) => void): void {
    this.listeners.add(listener);
  }

  exited(ref: EngineRef, exit: ExitStatus): void {
    const { ctx } = this;
    ctx.opts.fault?.('after_exit_seen');
    const handle = ctx.handles.get(ref)!;
    // `--stop-engines` may have marked it since this agent read it.
    const marks = { ...handle.marks, ...onlySet(ctx.handles.marksOnDisk(ref)) };
    const done: Partial<Handle> = { state: 'exited', exit, marks };
    ctx.opts.log.info({ ...refOf(ref), ...exit, requested: marks.requested_stop !== null }, 'engine ended');
    if (marks.host_stop) {
      this.tell(handle, { exit, known: byHost('the host stopped the engine on purpose') }, done);
    } else if (marks.requested_stop !== null || marks.failure_told) {
      update(ctx, ref, done);
    } else {
      const oom = explainOom(ctx, handle);
      this.tell(handle, { exit, ...(oom === null ? {} : { known: oom }) }, done);
    }
  }

  /** Another boot: its pids are other people's processes now, and its GPUs are clean (INV-2). */
  rebooted(handle: Handle): void {
    const ran = handle.state === 'running' || handle.state === 'spawning';
    const done: Partial<Handle> = { state: 'stopped', proof: proof('rebooted', []) };
    this.ctx.ports.release(engineKeyOf(handle));
    if (ran) {
      this.tell(
        handle,
        { exit: null, known: byHost('the node was rebooted, the engine ended with it') },
        done,
      );
    } else update(this.ctx, handle, done);
    void clearLeftovers(this.ctx, handle);
    this.ctx.runtimes.forget(handle);
  }

  /** It lives, but serves no more; its own exit won't be news. */
  dead(ref: EngineRef, failure: FailureInput): void {
    const handle = this.ctx.handles.get(ref)!;
    this.tell(handle, failure, { marks: { ...handle.marks, failure_told: true } });
  }

  private tell(handle: Handle, input: FailureInput, change: Partial<Handle>): void {
    const requested = handle.marks.requested_stop !== null;
    const failure = describeFailure(this.ctx, handle, input);
    const event = this.outbox.add(handle, { requested, failure }, { ...change, last_failure: failure });
    for (const listener of this.listeners) listener(event);
    void completeEvidence(this.ctx, handle);
  }
}

/** Marks only ever get set. */
function onlySet(marks: Handle['marks'] | null): Partial<Handle['marks']> {
  if (marks === null) return {};
  return Object.fromEntries(Object.entries(marks).filter(([, v]) => v !== false && v !== null));
}
