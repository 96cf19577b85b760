// `fleet`: an entity, the ledger. Handlers only push; one batch per workflow task goes through domain/ledger. It never
// ends in failure: everything that can throw is caught, and it continues as new with all it knows (INV-11).
import * as wf from '@temporalio/workflow';
import { replicaWorkflowId } from '../contracts/ids.js';
import type {
  EndpointMsg,
  InstanceMsg,
  LedgerReply,
  NodeFacts,
  ReleaseMsg,
  RenewMsg,
  ReserveMsg,
  UnclaimedMsg,
} from '../contracts/messages.js';
import type { RouteTable } from '../contracts/routes.js';
import { SIGNALS, signalFault } from '../contracts/signals.js';
import type { NodeRow } from '../contracts/status.js';
import { TIMING } from '../contracts/timing.js';
import { emptyLedger, type LedgerState } from '../domain/ledger/state.js';
import { type LedgerEffect, type LedgerInput, ledgerStep } from '../domain/ledger/step.js';
import { ledgerDetails, nodeRows, routesOf } from '../domain/ledger/view.js';
import { pushing } from './profiles.js';

export const reserve = wf.defineSignal<[ReserveMsg]>('reserve');
export const renew = wf.defineSignal<[RenewMsg]>('renew');
export const release = wf.defineSignal<[ReleaseMsg]>('release');
export const endpoint = wf.defineSignal<[EndpointMsg]>('endpoint');
export const nodeFacts = wf.defineSignal<[NodeFacts]>('node');
export const instance = wf.defineSignal<[InstanceMsg]>('instance');
export const unclaimed = wf.defineSignal<[UnclaimedMsg]>('unclaimed');
export const routes = wf.defineQuery<RouteTable>('routes');
export const nodes = wf.defineQuery<NodeRow[]>('nodes');
export const ledger = wf.defineQuery<LedgerState>('ledger');

interface FleetCarry {
  state: LedgerState;
  /** Replies that were not delivered yet. They are sent again: the replica knows them by their key. */
  replies: { replica: string; reply: LedgerReply }[];
  /** Queues of instances that were being told of the table. */
  pushes: string[];
}

export async function fleet(carry?: FleetCarry): Promise<void> {
  await new Fleet(carry ?? { state: emptyLedger(), replies: [], pushes: [] }).run();
}

class Fleet {
  private readonly state: LedgerState;
  /** Under way: carried over, because waiting for them would keep a busy ledger from ever continuing as new. */
  private readonly replies: FleetCarry['replies'] = [];
  private readonly pushes: string[] = [];
  private readonly queue: LedgerInput[] = [];
  private signals = 0;
  private shown = '';

  constructor(private readonly carried: FleetCarry) {
    this.state = carried.state;
    this.handlers();
  }

  async run(): Promise<never> {
    for (const r of this.carried.replies) this.reply(r.replica, r.reply);
    for (const queue of new Set(this.carried.pushes)) this.push(queue, this.state.version);
    for (;;) {
      await wf.condition(() => this.queue.length > 0 || this.mayContinue());
      if (this.queue.length === 0) {
        const { state, replies, pushes } = this;
        await wf.continueAsNew<typeof fleet>({ state, replies, pushes });
      }
      for (const effect of ledgerStep(this.state, this.queue.splice(0), Date.now())) this.apply(effect);
      const details = ledgerDetails(this.state);
      if (details !== this.shown) wf.setCurrentDetails(details);
      this.shown = details;
    }
  }

  private mayContinue(): boolean {
    const full = wf.workflowInfo().historyLength > TIMING.maxEvents || this.signals > TIMING.maxSignals;
    return full && wf.allHandlersFinished();
  }

  private apply(effect: LedgerEffect): void {
    if (effect.do === 'reply') this.reply(effect.replica, effect.reply);
    else for (const queue of effect.queues) this.push(queue, effect.version);
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
        if (reply.kind === 'granted') this.queue.push({ kind: 'undeliverable', replica, fence: reply.fence });
        // waiting, ack: nobody is left to hear it.
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

  private handlers(): void {
    const take = <M>(name: keyof typeof SIGNALS.fleet, input: (msg: M) => LedgerInput) => {
      return (msg: M): void => {
        this.signals++;
        const fault = signalFault(SIGNALS.fleet[name], msg);
        this.queue.push(fault === null ? input(msg) : { kind: 'ignored', what: name, fault });
      };
    };
    wf.setHandler(
      reserve,
      take('reserve', msg => msg),
    );
    wf.setHandler(
      renew,
      take('renew', msg => msg),
    );
    wf.setHandler(
      release,
      take('release', msg => msg),
    );
    wf.setHandler(
      endpoint,
      take('endpoint', msg => msg),
    );
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
    wf.setHandler(routes, () => routesOf(this.state));
    wf.setHandler(nodes, () => nodeRows(this.state));
    wf.setHandler(ledger, () => this.state);
  }
}
