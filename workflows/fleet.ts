// `fleet`: an entity, the ledger. Handlers only push; one batch per workflow task goes through domain/ledger. It never
// ends in failure: everything that can throw is caught, and it continues as new with all it knows (INV-11). A run that
// continues none begins by asking everybody what they hold (INV-1).
import * as wf from '@temporalio/workflow';
import type { StopOrder } from '../contracts/activities.js';
import { nodeWorkflowId, replicaWorkflowId } from '../contracts/ids.js';
import type {
  AssertMsg,
  ClosedMsg,
  EndpointMsg,
  InstanceMsg,
  LedgerReply,
  NodeFacts,
  ProveAgain,
  ReleaseMsg,
  RenewMsg,
  ReserveMsg,
  Survey,
  UnclaimedMsg,
} from '../contracts/messages.js';
import { SIGNALS, signalFault } from '../contracts/signals.js';
import type { BrakeStatus, FleetStatus, LeftHold, NodeRow, ProvenAgain } from '../contracts/status.js';
import { forgetUnderWay } from '../domain/ledger/holds.js';
import { leftHolds } from '../domain/ledger/leaks.js';
import {
  type PackedHolders,
  type PackedLedger,
  type PackedRoutes,
  packHolders,
  packLedger,
  packRoutes,
  unpackLedger,
} from '../domain/ledger/pack.js';
import { emptyLedger, type LedgerState } from '../domain/ledger/state.js';
import { type LedgerEffect, type LedgerInput, ledgerStep, nextLook } from '../domain/ledger/step.js';
import {
  brakeOf,
  fleetStatusOf,
  holdersOf,
  ledgerDetails,
  nodeRows,
  routesOf,
} from '../domain/ledger/view.js';
import { whyNotCleared } from '../domain/ledger/words.js';
import { MAX_SLOTS } from '../domain/slots.js';
import { activityFault, failure } from './failures.js';
import { continues, isFull } from './full.js';
import { pushing, settling, surveying } from './profiles.js';
import { proveAgain } from './prove-again.js';

export const reserve = wf.defineSignal<[ReserveMsg]>('reserve');
export const renew = wf.defineSignal<[RenewMsg]>('renew');
export const release = wf.defineSignal<[ReleaseMsg]>('release');
export const endpoint = wf.defineSignal<[EndpointMsg]>('endpoint');
export const assertion = wf.defineSignal<[AssertMsg]>('assert');
export const nodeFacts = wf.defineSignal<[NodeFacts]>('node');
export const instance = wf.defineSignal<[InstanceMsg]>('instance');
export const unclaimed = wf.defineSignal<[UnclaimedMsg]>('unclaimed');
export const closed = wf.defineSignal<[ClosedMsg]>('closed');
export const rebuild = wf.defineSignal<[{ why: string }]>('rebuild');
export const brake = wf.defineUpdate<BrakeStatus, [{ on: boolean; by: string }]>('brake');
export const forget = wf.defineUpdate<{ result: 'accepted'; reason: string }, [{ node: string; by: string }]>(
  'forget',
);
export const proveLeft = wf.defineUpdate<{ holds: ProvenAgain[] }, [ProveAgain]>('prove_left');
export const left = wf.defineQuery<LeftHold[], [string]>('left');
export const routes = wf.defineQuery<PackedRoutes>('routes');
export const nodes = wf.defineQuery<NodeRow[]>('nodes');
export const ledger = wf.defineQuery<PackedLedger>('ledger');
export const holders = wf.defineQuery<PackedHolders>('holders');
export const fleetStatus = wf.defineQuery<FleetStatus>('status');

interface FleetCarry {
  state: PackedLedger;
  /** Replies that were not delivered yet. They are sent again: the replica knows them by their key. */
  replies: { replica: string; reply: LedgerReply }[];
  /** Queues of instances that were being told of the table. */
  pushes: string[];
  /** A survey was under way. */
  surveying: boolean;
}

export async function fleet(given?: FleetCarry): Promise<void> {
  const info = wf.workflowInfo();
  const { firstExecutionRunId, startTime } = info;
  const carry = continues(info) ? given : undefined;
  // From its start on, and not from its first task (which is what the SDK calls runStartTime): a hello that comes in
  // between is told to a ledger that is there.
  const state = carry ? unpackLedger(carry.state) : emptyLedger(firstExecutionRunId, startTime.getTime());
  await new Fleet(state, carry ?? null).run();
}

class Fleet {
  /** Under way: carried over, because waiting for them would keep a busy ledger from ever continuing as new. */
  private readonly replies: FleetCarry['replies'] = [];
  private readonly pushes: string[] = [];
  private surveys = 0;
  private readonly queue: LedgerInput[] = [];
  private signals = 0;
  /** Nodes that a prove_left is under way for, in this run. */
  private readonly proving: string[] = [];
  private shown = '';

  constructor(
    private readonly state: LedgerState,
    private readonly carried: Omit<FleetCarry, 'state'> | null,
  ) {
    forgetUnderWay(this.state);
    // It may have arrived, though this run wasn't told: from here on only a proof ends such a grant (INV-1).
    for (const { reply } of carried?.replies ?? []) {
      const grant = reply.kind === 'granted' ? this.state.grants[reply.fence] : undefined;
      if (grant !== undefined) grant.delivered = true;
    }
    if (carried === null)
      this.queue.push({ kind: 'rebuild', why: 'it began anew', since: this.state.began_at });
    else this.queue.push({ kind: 'look' });
    this.handlers();
  }

  async run(): Promise<never> {
    for (const r of this.carried?.replies ?? []) this.reply(r.replica, r.reply);
    for (const queue of new Set(this.carried?.pushes)) this.push(queue, this.state.version);
    if (this.carried?.surveying) this.survey();
    for (;;) {
      await this.wait();
      if (this.queue.length === 0 && this.mayContinue()) {
        const { replies, pushes } = this;
        const state = packLedger(this.state);
        await wf.continueAsNew<typeof fleet>({ state, replies, pushes, surveying: this.surveys > 0 });
      }
      if (this.queue.length === 0) this.queue.push({ kind: 'look' });
      for (const effect of ledgerStep(this.state, this.queue.splice(0), Date.now())) this.apply(effect);
      const details = ledgerDetails(this.state);
      if (details !== this.shown) wf.setCurrentDetails(details);
      this.shown = details;
    }
  }

  private async wait(): Promise<void> {
    const at = nextLook(this.state);
    const something = () => this.queue.length > 0 || this.mayContinue();
    if (at === null) await wf.condition(something);
    else await wf.condition(something, Math.max(1, at - Date.now()));
  }

  private mayContinue(): boolean {
    return isFull(this.signals) && wf.allHandlersFinished();
  }

  private apply(effect: LedgerEffect): void {
    switch (effect.do) {
      case 'reply':
        this.reply(effect.replica, effect.reply);
        return;
      case 'routes':
        for (const queue of effect.queues) this.push(queue, effect.version);
        return;
      case 'survey':
        this.survey();
        return;
      case 'report':
        for (const node of effect.nodes) this.askNode(node);
        return;
      case 'stop':
        this.settle(effect.node, effect.order);
        return;
    }
  }

  /** Delivered means: in the replica's history. One that is closed can't have used the grant, so it comes back. */
  private reply(replica: string, reply: LedgerReply): void {
    const under = { replica, reply };
    this.replies.push(under);
    void wf
      .getExternalWorkflowHandle(replicaWorkflowId(replica))
      .signal('ledger', reply)
      .then(() => {
        if (reply.kind === 'granted') this.queue.push({ kind: 'delivered', fence: reply.fence });
      })
      .catch(() => {
        const fence = reply.kind === 'granted' ? reply.fence : null;
        // waiting, ack and news: nobody is left to hear it.
        if (fence !== null || reply.kind === 'assert')
          this.queue.push({ kind: 'undeliverable', replica, fence });
      })
      .finally(() => this.replies.splice(this.replies.indexOf(under), 1));
  }

  private push(queue: string, version: number): void {
    this.pushes.push(queue);
    void pushing(queue, `route table ${version} to the routers`)
      .push_routes({ version })
      // Dropped: that instance is down or slow, and pulls the table besides.
      .catch(() => undefined)
      .finally(() => this.pushes.splice(this.pushes.indexOf(queue), 1));
  }

  private survey(): void {
    this.surveys++;
    void this.surveyed()
      .then(survey => this.queue.push({ kind: 'survey', survey }))
      // Retried without end: only cancelling the ledger itself arrives here.
      .catch(() => undefined)
      .finally(() => this.surveys--);
  }

  private async surveyed(): Promise<Survey> {
    const all: Survey = { replicas: [], nodes: [] };
    for (let page: string | null = null, n = 1; ; n++) {
      const summary = `which replicas and nodes are open?${n === 1 ? '' : ` (page ${n})`}`;
      const seen: Survey & { next: string | null } = await surveying(summary).survey({ page });
      all.replicas.push(...seen.replicas);
      all.nodes.push(...seen.nodes);
      if (seen.next === null) return all;
      page = seen.next;
    }
  }

  private askNode(node: string): void {
    void wf
      .getExternalWorkflowHandle(nodeWorkflowId(node))
      .signal('report', {})
      // Closed meanwhile: its next hello starts it again.
      .catch(() => undefined);
  }

  private settle(node: string, order: StopOrder): void {
    const { fence } = order;
    void settling(node, `stop ${order.replica} (fence ${fence}) on ${node}: ${order.reason}`)
      .stop(order)
      .then(proof => this.queue.push({ kind: 'settled', fence, node, proof }))
      .catch(err => {
        const fault = activityFault(err);
        const sentence =
          fault.kind === 'refused' ? fault.sentence : `${node} did not take the order to stop it`;
        this.queue.push({ kind: 'settle_failed', fence, node, sentence });
      });
  }

  private handlers(): void {
    const take = <M>(name: keyof typeof SIGNALS.fleet, input: (msg: M) => LedgerInput) => {
      return (msg: M): void => {
        this.signals++;
        const fault = signalFault(SIGNALS.fleet[name], msg);
        this.queue.push(fault === null ? input(msg) : { kind: 'ignored', what: name, fault });
      };
    };
    const as = <M extends LedgerInput>(msg: M): LedgerInput => msg;
    wf.setHandler(reserve, take('reserve', as));
    wf.setHandler(renew, take('renew', as));
    wf.setHandler(release, take('release', as));
    wf.setHandler(endpoint, take('endpoint', as));
    wf.setHandler(assertion, take('assert', as));
    wf.setHandler(
      nodeFacts,
      take('node', facts => ({ kind: 'node', facts })),
    );
    wf.setHandler(
      instance,
      take('instance', msg => ({ kind: 'instance', ...msg })),
    );
    wf.setHandler(
      unclaimed,
      take('unclaimed', ({ event, why }) => ({ kind: 'unclaimed', event, why })),
    );
    wf.setHandler(
      closed,
      take('closed', msg => ({ kind: 'closed', ...msg })),
    );
    wf.setHandler(
      rebuild,
      take('rebuild', ({ why }) => ({ kind: 'rebuild', why })),
    );
    this.operators();
    const run = () => {
      const { runId, continuedFromExecutionRunId } = wf.workflowInfo();
      return { run_id: runId, continued_run_id: continuedFromExecutionRunId ?? null };
    };
    wf.setHandler(routes, () => packRoutes(routesOf(this.state, run())));
    wf.setHandler(holders, () => packHolders(holdersOf(this.state, run())));
    wf.setHandler(nodes, () => nodeRows(this.state));
    wf.setHandler(fleetStatus, () => fleetStatusOf(this.state));
    wf.setHandler(left, node => leftHolds(this.state, node));
    wf.setHandler(ledger, () => packLedger(this.state));
  }

  private operators(): void {
    wf.setHandler(
      brake,
      async ({ on, by }) => {
        this.queue.push({ kind: 'brake', on, by });
        await wf.condition(() => this.queue.length === 0);
        return brakeOf(this.state);
      },
      {
        validator: given => {
          if (typeof given?.on !== 'boolean' || typeof given.by !== 'string')
            throw failure('BAD_REQUEST', 'brake takes {"on": true|false, "by": "who"}');
        },
      },
    );
    wf.setHandler(
      forget,
      async ({ node, by }) => {
        this.queue.push({ kind: 'forget', node, by });
        await wf.condition(() => this.queue.length === 0);
        // It came back in the same moment, after the validator had looked.
        this.refuseInUse(node);
        return { result: 'accepted' as const, reason: `${node} is forgotten` };
      },
      { validator: given => this.refuseForget(given) },
    );
    wf.setHandler(proveLeft, asked => this.proveLeft(asked), {
      validator: given => this.refuseProve(given),
    });
  }

  /** Bounded by the stop orders' own time. */
  private async proveLeft(asked: ProveAgain): Promise<{ holds: ProvenAgain[] }> {
    const tell = (input: LedgerInput) => this.queue.push(input);
    this.proving.push(asked.node);
    try {
      const left = leftHolds(this.state, asked.node, asked.slots);
      const holds = await Promise.all(left.map(hold => proveAgain(hold, asked, tell)));
      await wf.condition(() => this.queue.length === 0);
      return { holds };
    } finally {
      this.proving.splice(this.proving.indexOf(asked.node), 1);
    }
  }

  private refuseProve(given: ProveAgain): void {
    const slots = given?.slots;
    const named = Array.isArray(slots) && slots.every(s => Number.isInteger(s) && s >= 0 && s < MAX_SLOTS);
    const gpus =
      given?.gpus === null || (Array.isArray(given?.gpus) && given.gpus.every(g => typeof g === 'string'));
    const words =
      [typeof given?.node, typeof given?.by, typeof given?.word].join() === 'string,string,boolean';
    if (!words || !gpus || !(slots === null || named))
      throw failure('BAD_REQUEST', 'prove_left takes {"node", "slots", "gpus", "by", "word": true|false}');
    if (this.state.nodes[given.node] === undefined)
      throw failure('NODE_NOT_FOUND', `there is no node ${given.node}`);
    // Each takes minutes, and the ledger continues as new between them only (INV-11).
    if (this.proving.includes(given.node))
      throw failure(
        'BAD_REQUEST',
        `${given.node} is being asked about what was left there: wait for its answer`,
      );
    if (isFull(this.signals))
      throw failure('BAD_REQUEST', 'the ledger is about to continue in a new run: ask again in a moment');
    const refused = slots === null ? null : whyNotCleared(this.state, given.node, slots);
    if (refused !== null) throw failure(refused.held ? 'GPU_HELD' : 'BAD_REQUEST', refused.reason);
    const { state } = this.state.nodes[given.node]!.facts;
    if (state !== 'connected')
      throw failure(
        'NODE_UNREACHABLE',
        `${given.node} is ${state}: what it holds is proven when its agent is heard; if the machine is gone, forget it`,
      );
  }

  /** What serves, or can be asked to stop, isn't forgotten: its engines would go on beside those that replace them. */
  private refuseForget(given: { node: string; by: string }): void {
    if (typeof given?.node !== 'string' || typeof given.by !== 'string')
      throw failure('BAD_REQUEST', 'forget takes {"node": "id", "by": "who"}');
    if (this.state.nodes[given.node] === undefined)
      throw failure('NODE_NOT_FOUND', `there is no node ${given.node}`);
    this.refuseInUse(given.node);
  }

  private refuseInUse(node: string): void {
    const state = this.state.nodes[node]?.facts.state;
    if (state === 'connected' || state === 'unsupervised')
      throw failure('NODE_IN_USE', `${node} is ${state}: a node that answers is not forgotten`);
  }
}
