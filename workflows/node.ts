// `node`: an entity, one a GPU node. It holds the session, judges silence and numbers the GPU slots (domain/node), and
// tells the ledger what changed. Edges arrive as signals at once, heartbeats as one digest in ten minutes (INV-11).
import * as wf from '@temporalio/workflow';
import { FLEET_ID } from '../contracts/ids.js';
import type { NodeDigest, NodeGone, NodeHello, NodeInventory, WelcomeInfo } from '../contracts/messages.js';
import { SIGNALS, signalFault } from '../contracts/signals.js';
import { canonicalJson } from '../contracts/spec.js';
import { TIMING } from '../contracts/timing.js';
import {
  emptyNode,
  factsOf,
  type NodeEvent,
  type NodeState,
  nextLook,
  nodeStep,
  welcome as welcomeOf,
} from '../domain/node.js';

export const hello = wf.defineSignal<[NodeHello]>('hello');
export const gone = wf.defineSignal<[NodeGone]>('gone');
export const digest = wf.defineSignal<[NodeDigest]>('digest');
export const inventory = wf.defineSignal<[NodeInventory]>('inventory');
export const welcome = wf.defineQuery<WelcomeInfo>('welcome');
export const nodeView = wf.defineQuery<NodeState>('status');

export async function node(carry?: NodeState): Promise<void> {
  const nodeId = wf.workflowInfo().workflowId.replace(/^node\//, '');
  await new Node(carry ?? emptyNode(nodeId, Date.now())).run();
}

class Node {
  private readonly queue: NodeEvent[] = [];
  private signals = 0;
  /** The ledger hasn't got the latest facts yet. */
  private dirty = true;
  private sending = false;
  /** What the ledger was told last, without its number: the same again is no news (INV-11). */
  private told = '';
  private looking: { at: number; scope: wf.CancellationScope } | null = null;

  constructor(private readonly state: NodeState) {
    const take = <M>(name: keyof typeof SIGNALS.node, event: (msg: M) => NodeEvent) => {
      return (msg: M): void => {
        this.signals++;
        const fault = signalFault(SIGNALS.node[name], msg);
        this.queue.push(fault === null ? event(msg) : { type: 'ignored', what: name, fault });
      };
    };
    wf.setHandler(
      hello,
      take('hello', msg => ({ type: 'hello', hello: msg })),
    );
    wf.setHandler(
      gone,
      take('gone', msg => ({ type: 'gone', gone: msg })),
    );
    wf.setHandler(
      digest,
      take('digest', msg => ({ type: 'digest', digest: msg })),
    );
    wf.setHandler(
      inventory,
      take('inventory', inv => ({ type: 'inventory', inv })),
    );
    // The queue is looked at first: the asker signalled before it asked, and wants the answer to that.
    wf.setHandler(welcome, () => welcomeOf(this.state));
    wf.setHandler(nodeView, () => this.state);
  }

  async run(): Promise<never> {
    for (;;) {
      const now = Date.now();
      let changed = false;
      for (const ev of this.queue.splice(0)) changed = nodeStep(this.state, ev, now) || changed;
      changed = nodeStep(this.state, { type: 'look' }, now) || changed;
      if (changed) {
        this.dirty = true;
        this.show();
      }
      void this.report();
      this.lookIn(nextLook(this.state, now), now);
      await wf.condition(() => this.queue.length > 0 || this.mayContinue());
      if (this.queue.length === 0 && this.mayContinue()) await wf.continueAsNew<typeof node>(this.state);
    }
  }

  /**
   * One timer at a time, and only a nearer look replaces it: a digest moves the look away from now, and would cost two
   * events each time (INV-11). A look that comes too early finds nothing and sets the next.
   */
  private lookIn(ms: number | null, now: number): void {
    if (ms === null || (this.looking !== null && this.looking.at <= now + ms)) return;
    this.looking?.scope.cancel();
    const scope = new wf.CancellationScope();
    const looking = { at: now + ms, scope };
    this.looking = looking;
    void scope
      .run(() => wf.sleep(ms, { summary: 'look whether the node is still heard' }))
      .then(() => this.queue.push({ type: 'look' }))
      .catch(() => undefined)
      .finally(() => {
        if (this.looking === looking) this.looking = null;
      });
  }

  private mayContinue(): boolean {
    const full = wf.workflowInfo().historyLength > TIMING.maxEvents || this.signals > TIMING.maxSignals;
    return full && wf.allHandlersFinished();
  }

  /** The latest facts only; a ledger that isn't there is tried again. The next run begins with telling it once more. */
  private async report(): Promise<void> {
    if (this.sending || !this.dirty || this.state.inventory === null) return;
    this.sending = true;
    while (this.dirty) {
      this.dirty = false;
      try {
        const told = canonicalJson({ ...factsOf(this.state), seq: 0 });
        if (told === this.told) continue;
        // At least the time: the facts of a node workflow that was lost and began anew are newer than the lost one's.
        this.state.seq = Math.max(this.state.seq + 1, Date.now());
        await wf.getExternalWorkflowHandle(FLEET_ID).signal('node', factsOf(this.state));
        this.told = told;
      } catch {
        this.dirty = true;
        await wf.sleep(TIMING.outboxResend);
      }
    }
    this.sending = false;
  }

  private show(): void {
    const s = this.state;
    wf.setCurrentDetails(
      [
        `**${s.state}** since ${new Date(s.since).toISOString()}: ${s.reason}`,
        '',
        `- held by ${s.instance ?? 'nobody'}, session ${s.session ?? '-'}`,
        `- ${s.inventory?.gpus.length ?? 0} GPUs, ${s.engines.length} engines at the last hello`,
        '',
        ...s.journal.slice(-15).map(j => `- ${new Date(j.at).toISOString()} ${j.text}`),
      ].join('\n'),
    );
  }
}
