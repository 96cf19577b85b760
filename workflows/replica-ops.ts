// Runs the replica's effects as activities and timers, and hands their results back as events. A result that comes
// after its operation was aborted is dropped by its fence in the domain.
import { CancellationScope, sleep } from '@temporalio/workflow';
import type { AdoptOrder, MemberOrder } from '../contracts/activities.js';
import { TIMING } from '../contracts/timing.js';
import type { Op, ReplicaEffect, ReplicaEvent, ReplicaState, TimerId } from '../domain/replica/state.js';
import { type ActivityFault, activityFault } from './failures.js';
import { adopting, draining, launching, stopping, watching } from './profiles.js';

/** Of a member: with its rank behind a slash. */
type Running = Op | `${Op}/${number}` | 'look' | 'stop' | TimerId;
/** The orders whose attempts are repeated here. */
type Begin = 'launch' | 'prepare' | 'spawn';

const TIMERS: Record<TimerId, string> = {
  back_off: 'back-off before the next try',
  pending: 'placement.timeout',
  exclusion: 'until a node that was left out may be tried again',
  stop_again: 'before the stop is ordered again',
  node_loss: 'on_node_loss.replace_after',
};

export class ReplicaOps {
  private readonly scopes = new Map<Running, CancellationScope>();
  private count = 0;

  constructor(private readonly emit: (ev: ReplicaEvent) => void) {}

  /** No activity is under way. Timers may be: the next run arms them again from the state. */
  idle(): boolean {
    return this.count === 0;
  }

  start(effect: Exclude<ReplicaEffect, { do: 'ledger' }>, state: ReplicaState): void {
    const what = `generation ${state.generation}`;
    switch (effect.do) {
      case 'launch':
      case 'prepare':
      case 'spawn':
        this.run(`${effect.do}/${effect.order.rank}`, () => this.begin(effect, what));
        break;
      case 'adopt':
        this.run(`adopt/${effect.order.rank}`, () => this.adopt(effect.node, effect.order, what));
        break;
      case 'look':
        this.run('look', () => this.look(effect.node, effect.process));
        break;
      case 'await_ready':
        this.run(`await_ready/${effect.order.rank}`, () => this.awaitReady(effect.node, effect.order, what));
        break;
      case 'drain':
        this.run('drain', () => this.drain(effect, state.name));
        break;
      case 'stop':
        this.run('stop', () => this.stop(effect.orders, effect.bound_ms, state.fence ?? 0));
        break;
      case 'timer':
        this.run(effect.id, async () => {
          await sleep(effect.ms, { summary: TIMERS[effect.id] });
          this.emit({ type: 'timer', id: effect.id });
        });
        break;
      case 'abort':
        for (const [op, scope] of this.scopes) if (op.split('/')[0] === effect.op) scope.cancel();
        break;
      case 'clear_timer':
        this.scopes.get(effect.id)?.cancel();
        break;
    }
  }

  private run(op: Running, body: () => Promise<void>): void {
    this.scopes.get(op)?.cancel();
    const scope = new CancellationScope({ cancellable: true });
    this.scopes.set(op, scope);
    const counts = !(op in TIMERS);
    if (counts) this.count++;
    void scope
      .run(body)
      // Only a cancellation arrives here: every body turns its faults into events.
      .catch(() => undefined)
      .finally(() => {
        if (counts) this.count--;
        if (this.scopes.get(op) === scope) this.scopes.delete(op);
      });
  }

  /** Repeated while attempts are lost; `begun` tells whether any attempt ever reached the node. */
  private async begin(effect: Extract<ReplicaEffect, { do: Begin }>, what: string): Promise<void> {
    const { node, order } = effect;
    const { fence, rank } = order;
    const failed = (code: string, sentence: string, delivered: boolean): void =>
      this.emit({ type: `${effect.do}_failed`, fence, rank, code, sentence, delivered });
    let begun = false;
    for (let attempt = 1; ; attempt++) {
      const verb = effect.do === 'prepare' ? 'prepare' : 'start';
      const again = attempt === 1 ? '' : `, attempt ${attempt}`;
      const summary = `${verb} ${what}${memberOf(order)} on ${node}, slots ${order.slots.join(',')}${again}`;
      try {
        return this.emit(await begunBy(effect, launching(node, summary)));
      } catch (err) {
        const fault = activityFault(err);
        if (fault.kind === 'cancelled') throw err;
        if (fault.kind === 'refused') return failed(fault.code, fault.sentence, true);
        if (fault.kind === 'not_taken') {
          const within = TIMING.launchScheduleToStart / 1000;
          return failed('NODE_UNREACHABLE', `${node} did not take the order within ${within} s`, begun);
        }
        begun = true;
        await sleep('200ms');
      }
    }
  }

  private async adopt(node: string, order: AdoptOrder, what: string): Promise<void> {
    const { fence, rank } = order;
    try {
      const result = await adopting(node, `take over ${what}${memberOf(order)} on ${node}`).adopt(order);
      this.emit({ type: 'launched', fence, rank, result });
    } catch (err) {
      const [code, sentence] = refusalOf(activityFault(err), node, err);
      this.emit({ type: 'adopt_failed', fence, rank, code, sentence });
    }
  }

  private async look(node: string, process: { pid: number; port: number }): Promise<void> {
    try {
      const summary = `whose is pid ${process.pid} on ${node}, and which GPUs has it?`;
      this.emit({ type: 'looked', result: await adopting(node, summary).look(process) });
    } catch (err) {
      const [code, sentence] = refusalOf(activityFault(err), node, err);
      this.emit({ type: 'look_failed', code, sentence });
    }
  }

  private async awaitReady(node: string, order: MemberOrder, what: string): Promise<void> {
    const { fence, rank } = order;
    const generation = `${what}${memberOf(order)} on ${node}`;
    // Only the first member of a gang serves.
    const summary = rank === 0 ? `wait until ${generation} serves` : `watch ${generation} load`;
    try {
      const result = await watching(node, summary).await_ready(order);
      this.emit({ type: 'ready_result', fence, rank, result });
    } catch (err) {
      const [code, sentence] = refusalOf(activityFault(err), node, err);
      const failure = { code, class: 'retry' as const, sentence, exit: null, tail: [], evidence: null };
      this.emit({ type: 'ready_result', fence, rank, result: { ready: false, failure } });
    }
  }

  /** On every live instance; one that doesn't take the task within pushTimeout is no longer live. */
  private async drain(effect: Extract<ReplicaEffect, { do: 'drain' }>, name: string): Promise<void> {
    const { input, queues } = effect;
    const answers = await Promise.all(
      queues.map(async queue => {
        try {
          return await draining(
            queue,
            input.timeout_ms,
            `drain ${name}: routers acknowledge table ${input.version}`,
          ).await_drained(input);
        } catch (err) {
          if (activityFault(err).kind === 'cancelled') throw err;
          return null;
        }
      }),
    );
    const heard = answers.filter(a => a !== null);
    // Nobody knows what is outstanding: the clients get the time that they were promised.
    if (heard.length === 0) await sleep(Math.max(1, input.timeout_ms - TIMING.pushTimeout));
    this.emit({
      type: 'drained',
      fence: input.fence,
      drained: heard.length > 0 && heard.every(a => a.drained),
      outstanding: heard.reduce((n, a) => n + a.outstanding, 0),
      heard: heard.length > 0,
    });
  }

  private async stop(
    orders: Extract<ReplicaEffect, { do: 'stop' }>['orders'],
    bound: number,
    fence: number,
  ): Promise<void> {
    await Promise.all(
      orders.map(async ({ node, order }) => {
        const summary = `stop${memberOf({ rank: order.rank, nodes: orders.length })} on ${node}: ${order.reason}`;
        try {
          const proof = await stopping(node, bound, summary.slice(0, 180)).stop(order);
          // As they come: a member that answers late keeps no other's proof.
          this.emit({ type: 'stopped', fence, proofs: [{ node, proof }] });
        } catch (err) {
          const fault = activityFault(err);
          if (fault.kind === 'cancelled') throw err;
          const leaked = fault.kind === 'refused' && fault.code === 'STOP_INCOMPLETE';
          const sentence = fault.kind === 'not_taken' ? `${node} does not answer` : fault.sentence;
          this.emit({ type: 'stop_failed', fence, node, sentence, leaked });
        }
      }),
    );
  }
}

/** Nothing where there is one member. */
const memberOf = ({ rank, nodes }: { rank: number; nodes: number }): string =>
  nodes > 1 ? `, rank ${rank},` : '';

async function begunBy(
  effect: Extract<ReplicaEffect, { do: Begin }>,
  on: ReturnType<typeof launching>,
): Promise<ReplicaEvent> {
  const { fence, rank } = effect.order;
  switch (effect.do) {
    case 'launch':
      return { type: 'launched', fence, rank, result: await on.launch(effect.order) };
    case 'prepare':
      return { type: 'prepared', fence, rank, result: await on.prepare(effect.order) };
    case 'spawn':
      return { type: 'spawned', fence, rank, result: await on.spawn(effect.order) };
  }
}

/** Code and sentence for people; a cancellation goes on as it is. */
function refusalOf(fault: ActivityFault, node: string, err: unknown): [string, string] {
  if (fault.kind === 'cancelled') throw err;
  return fault.kind === 'refused'
    ? [fault.code, fault.sentence]
    : ['NODE_UNREACHABLE', `${node} does not answer`];
}
