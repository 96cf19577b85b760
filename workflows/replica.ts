// `replica`: a saga in a loop. Steps and their undo:
//   reserve GPUs        ← release (with proof), or the hold is left to fleet and node
//   launch on the node, or of a gang: prepare on all nodes, spawn on all ← stop (with proof), all members
//   await ready         ← stop watching
//   publish endpoint    ← take it out of the table, drain
// Every decision is domain/replica; this file runs its effects and brings their results back as events.
import * as wf from '@temporalio/workflow';
import type { MemberOrder } from '../contracts/activities.js';
import type { EngineEvent } from '../contracts/engine.js';
import { replicaNameOf } from '../contracts/ids.js';
import { AdoptRequest, type LedgerMsg, type LedgerReply, type ProgressMsg } from '../contracts/messages.js';
import { SIGNALS, signalFault } from '../contracts/signals.js';
import { canonicalJson, parseReplicaSpec, type ReplicaSpec, specFaultText } from '../contracts/spec.js';
import type { ReplicaStatus } from '../contracts/status.js';
import { TIMING } from '../contracts/timing.js';
import { carried } from '../domain/replica/carried.js';
import { checkOrder, shapeOf } from '../domain/replica/make.js';
import {
  initialReplica,
  type ReplicaEffect,
  type ReplicaEvent,
  type ReplicaState,
} from '../domain/replica/state.js';
import { replicaStep } from '../domain/replica/step.js';
import { detailsOf, memoOf, statusOf } from '../domain/replica/view.js';
import { activityFault, failure } from './failures.js';
import { continues, isFull } from './full.js';
import { LedgerOutbox } from './outbox.js';
import { asking, planning } from './profiles.js';
import { ReplicaOps } from './replica-ops.js';

export interface ReplicaCarry {
  state: ReplicaState;
  outbox: LedgerMsg[];
}

export const status = wf.defineQuery<ReplicaStatus>('status');
export const ledgerReply = wf.defineSignal<[LedgerReply]>('ledger');
export const engineEvent = wf.defineSignal<[EngineEvent]>('engine_event');
export const progress = wf.defineSignal<[ProgressMsg]>('progress');
export const apply = wf.defineUpdate<{ result: 'accepted' | 'unchanged'; reason: string }, [unknown]>(
  'apply',
);
export const restart = wf.defineUpdate<{ result: 'accepted'; reason: string }, []>('restart');

/** `raw`: the spec as given. `more`: of the run that this one continues, or a process that is to be adopted. */
export async function replica(
  raw: unknown,
  more?: ReplicaCarry | { adopt: AdoptRequest },
): Promise<ReplicaStatus> {
  const given: object = typeof more === 'object' && more !== null ? more : {};
  const info = wf.workflowInfo();
  const carry = 'state' in given && continues(info) ? (given as ReplicaCarry) : undefined;
  const adopt = 'adopt' in given ? adoptOrFail(given.adopt) : null;
  const name = replicaNameOf(info.workflowId);
  // Under another id the ledger could not answer it, and nobody would find it.
  if (name === null)
    throw failure('SPEC_INVALID', `the workflow id is ${info.workflowId}: start it as replica/<name>`);
  const state =
    carry !== undefined
      ? carried(carry.state)
      : initialReplica(parseOrFail(raw, name), info.firstExecutionRunId, Date.now(), adopt);
  if (carry === undefined) state.given = { ...(raw as object) };
  state.run_id = info.runId;
  state.continued_run_id = info.continuedFromExecutionRunId ?? null;
  const driver = new Driver(state, carry?.outbox ?? []);
  return driver.run(raw, carry === undefined);
}

function adoptOrFail(given: unknown): AdoptRequest {
  const parsed = AdoptRequest.safeParse(given);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw failure(
    'SPEC_INVALID',
    `adopt.${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'not of its shape'}`,
  );
}

function parseOrFail(raw: unknown, name: string): ReplicaSpec {
  const parsed = parseReplicaSpec(raw, name);
  if (!parsed.ok) {
    throw failure('SPEC_INVALID', specFaultText(parsed.faults), parsed.faults);
  }
  return parsed.spec;
}

class Driver {
  private readonly queue: ReplicaEvent[] = [];
  private readonly outbox: LedgerOutbox;
  private readonly ops: ReplicaOps;
  private signals = 0;
  private shown = '';
  private memo = '';

  constructor(
    private readonly state: ReplicaState,
    carried: LedgerMsg[],
  ) {
    this.outbox = new LedgerOutbox(carried);
    this.ops = new ReplicaOps(ev => this.queue.push(ev));
    this.handlers();
  }

  async run(raw: unknown, fresh: boolean): Promise<ReplicaStatus> {
    this.queue.push({ type: fresh ? 'started' : 'resumed' });
    // A cancel that comes twice, or is known from the run before, is one cancel.
    void wf.CancellationScope.current().cancelRequested.catch(() => {
      this.queue.push({ type: 'cancel' });
    });
    await wf.CancellationScope.nonCancellable(() => this.loop(raw));
    return this.end();
  }

  private async loop(raw: unknown): Promise<void> {
    this.outbox.open();
    for (;;) {
      await wf.condition(() => this.queue.length > 0 || this.mayContinue());
      if (this.queue.length === 0) {
        await wf.continueAsNew<typeof replica>(raw, { state: this.state, outbox: this.outbox.pending });
      }
      this.step();
      if (this.state.outcome !== null) break;
    }
    await wf.CancellationScope.withTimeout(TIMING.stopMargin, () => this.settle()).catch(err => {
      if (!wf.isCancellation(err)) throw err;
    });
    await wf.condition(wf.allHandlersFinished);
  }

  private step(): void {
    for (const ev of this.queue.splice(0))
      for (const effect of replicaStep(this.state, ev, Date.now())) this.apply(effect);
    this.outbox.flush();
    this.show();
  }

  /**
   * The release is on its way, and a grant may be too; without the ledger's acknowledgement the GPUs would stay booked
   * until somebody looks. Cancelled when the ledger doesn't answer in time.
   */
  private async settle(): Promise<void> {
    for (;;) {
      await wf.condition(() => this.queue.length > 0 || this.outbox.pending.length === 0);
      if (this.queue.length === 0) return;
      this.step();
    }
  }

  /**
   * Continue-as-new only between steps: nothing under way, nothing queued, no handler running (INV-11). Never once it is
   * cancelled: the next run would know nothing of that, and end as failed instead of cancelled.
   */
  private mayContinue(): boolean {
    return (
      isFull(this.signals) &&
      !this.state.cancelled &&
      this.ops.idle() &&
      this.queue.length === 0 &&
      wf.allHandlersFinished()
    );
  }

  private apply(effect: ReplicaEffect): void {
    if (effect.do === 'ledger') this.outbox.put(effect.msg);
    else this.ops.start(effect, this.state);
  }

  private show(): void {
    const details = detailsOf(this.state);
    if (details !== this.shown) wf.setCurrentDetails(details);
    this.shown = details;
    const memo = memoOf(this.state);
    const text = canonicalJson(memo);
    // Each costs an event: only when people would see a difference.
    if (text !== this.memo) wf.upsertMemo(memo);
    this.memo = text;
  }

  private end(): ReplicaStatus {
    const { outcome } = this.state;
    if (outcome?.kind === 'failed') throw failure(outcome.code, outcome.sentence, outcome.digest);
    const holds = outcome?.kind === 'stopped' ? outcome.holds : [];
    throw new wf.CancelledFailure(holds.length > 0 ? `hold left on ${holds.join(', ')}` : 'stopped as asked');
  }

  private handlers(): void {
    wf.setHandler(status, () => statusOf(this.state, Date.now()));
    const take = <M>(name: keyof typeof SIGNALS.replica, event: (msg: M) => ReplicaEvent) => {
      return (msg: M): void => {
        this.signals++;
        const fault = signalFault(SIGNALS.replica[name], msg);
        this.queue.push(fault === null ? event(msg) : { type: 'ignored', what: name, fault });
      };
    };
    wf.setHandler(
      ledgerReply,
      take('ledger', reply => {
        this.outbox.acked(reply.key);
        return { type: 'ledger', reply };
      }),
    );
    wf.setHandler(
      engineEvent,
      take('engine_event', event => ({ type: 'engine', event })),
    );
    wf.setHandler(
      progress,
      take('progress', msg => ({ type: 'progress', msg })),
    );
    wf.setHandler(
      restart,
      async () => {
        await this.askNodes(this.state.spec);
        this.refuseEnding();
        this.queue.push({ type: 'restart', by: '' });
        return { result: 'accepted' as const, reason: `generation ${this.state.generation + 1} follows` };
      },
      { validator: () => this.refuseEnding() },
    );
    wf.setHandler(apply, given => this.onApply(given), {
      validator: given => {
        this.refuseEnding();
        parseOrFail(given, this.state.name);
      },
    });
  }

  private refuseEnding(): void {
    if (this.state.cancelled || this.state.outcome !== null) {
      throw failure('REPLICA_ENDING', `replica/${this.state.name} is ending (${this.state.phase})`);
    }
  }

  /**
   * What serves is not drained for a generation that its nodes would refuse, or can't be asked about. A replica that has
   * nothing to lose is not held up. Nodes that a larger gang would have besides are the next placement's.
   */
  private async askNodes(spec: ReplicaSpec): Promise<void> {
    const { state } = this;
    if (state.phase !== 'ready') return;
    const asked = state.members.filter(m => m.rank < spec.nodes);
    await Promise.all(asked.map(({ node, rank }) => this.askNode(node, checkOrder(state, rank, spec))));
  }

  private async askNode(node: string, order: MemberOrder): Promise<void> {
    try {
      await wf.CancellationScope.nonCancellable(() =>
        asking(node, `would ${node} start the next generation?`).check(order),
      );
    } catch (err) {
      const fault = activityFault(err);
      if (fault.kind === 'refused') throw failure(fault.code, `${fault.sentence}; the old one serves on`);
      const why = `${node} does not answer, so its engine can't be replaced; it serves on. Try again when the agent is back`;
      throw failure('NODE_UNREACHABLE', why);
    }
  }

  private async onApply(given: unknown): Promise<{ result: 'accepted' | 'unchanged'; reason: string }> {
    const spec = parseOrFail(given, this.state.name);
    if (canonicalJson(spec) === canonicalJson(this.state.spec)) {
      return { result: 'unchanged', reason: 'the running spec is the same' };
    }
    // What holds GPUs serves on unless the new spec fits; what holds none has nothing to lose.
    if (this.state.fence !== null) {
      const plan = await wf.CancellationScope.nonCancellable(() =>
        planning('does the changed spec fit?').plan({ replica: this.state.name, shape: shapeOf(spec) }),
      );
      if (!plan.fits)
        throw failure('DOES_NOT_FIT', `the changed spec does not fit, the old one serves on: ${plan.reason}`);
      await this.askNodes(spec);
      this.refuseEnding();
    }
    this.queue.push({ type: 'apply', spec, given: { ...(given as object) } });
    return {
      result: 'accepted',
      reason: `generation ${this.state.generation + 1} follows with the changed spec`,
    };
  }
}
