// `node`: an entity, one a GPU node. It holds the session, judges silence and numbers the GPU slots (domain/node), and
// tells the ledger what changed. Edges arrive as signals at once, heartbeats as one digest in ten minutes (INV-11).
// While the node isn't heard, a control plane watches what it serves. It ends when an operator has forgotten the node.
import * as wf from '@temporalio/workflow';
import type { SilentVerdict } from '../contracts/activities.js';
import { FLEET_ID } from '../contracts/ids.js';
import type {
  NodeDigest,
  NodeForget,
  NodeGone,
  NodeHello,
  NodeInventory,
  NodeNote,
  WelcomeInfo,
} from '../contracts/messages.js';
import { SIGNALS, signalFault } from '../contracts/signals.js';
import { canonicalJson } from '../contracts/spec.js';
import { TIMING } from '../contracts/timing.js';
import { nextLook, nextWatch, nodeStep } from '../domain/node.js';
import { factsOf, welcome as welcomeOf } from '../domain/node-facts.js';
import { emptyNode, type NodeEvent, type NodeState, type Watch } from '../domain/node-state.js';
import { continues, isFull } from './full.js';
import { watchingSilent } from './profiles.js';

export const hello = wf.defineSignal<[NodeHello]>('hello');
export const gone = wf.defineSignal<[NodeGone]>('gone');
export const digest = wf.defineSignal<[NodeDigest]>('digest');
export const inventory = wf.defineSignal<[NodeInventory]>('inventory');
export const report = wf.defineSignal<[object]>('report');
export const forget = wf.defineSignal<[NodeForget]>('forget');
export const note = wf.defineSignal<[NodeNote]>('note');
export const welcome = wf.defineQuery<WelcomeInfo>('welcome');
export const nodeView = wf.defineQuery<NodeState>('status');

/** Ends with a sentence, only when the node is forgotten; its next hello starts another. */
export async function node(given?: NodeState): Promise<string> {
  const info = wf.workflowInfo();
  const carry = continues(info) ? given : undefined;
  const nodeId = info.workflowId.replace(/^node\//, '');
  // A run of an older build left out what it didn't know.
  return new Node({ ...emptyNode(nodeId, Date.now()), ...carry }).run();
}

class Node {
  private readonly queue: NodeEvent[] = [];
  private signals = 0;
  /** The ledger hasn't got the latest facts yet. */
  private dirty = true;
  private sending = false;
  /** What the ledger was told last, without its number: the same again is no news (INV-11). */
  private told = '';
  /** How often the ledger has asked for them. */
  private asked = 0;
  private looking: { at: number; scope: wf.CancellationScope } | null = null;
  private watching: { key: string; scope: wf.CancellationScope } | null = null;

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
    wf.setHandler(
      report,
      take('report', () => ({ type: 'report' })),
    );
    wf.setHandler(
      forget,
      take('forget', msg => ({ type: 'forget', forget: msg })),
    );
    wf.setHandler(
      note,
      take('note', msg => ({ type: 'note', note: msg })),
    );
    // The queue is looked at first: the asker signalled before it asked, and wants the answer to that.
    wf.setHandler(welcome, () => welcomeOf(this.state));
    wf.setHandler(nodeView, () => this.state);
  }

  async run(): Promise<string> {
    for (;;) {
      const now = Date.now();
      let changed = false;
      for (const ev of this.queue.splice(0)) {
        changed = nodeStep(this.state, ev, now) || changed;
        // The ledger has lost what it was told, or will have before this arrives.
        if (ev.type === 'report' || ev.type === 'forget') this.asked++;
      }
      changed = nodeStep(this.state, { type: 'look' }, now) || changed;
      if (changed) {
        this.dirty = true;
        this.show();
      }
      // A hello behind it would have taken it back. The ledger isn't told: it forgot the node first.
      if (this.state.forgotten !== null) return this.state.reason;
      void this.report();
      this.lookIn(nextLook(this.state, now), now);
      this.watch();
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

  /** One watch at a time, of what is believed now; its verdict comes back as an event that says what it was of. */
  private watch(): void {
    const wanted = nextWatch(this.state);
    const key = canonicalJson(wanted?.of ?? null);
    if (this.watching?.key === key || (wanted === null && this.watching === null)) return;
    this.watching?.scope.cancel();
    this.watching = null;
    if (wanted === null) return;
    const { of, for_ms, pause_ms } = wanted;
    const scope = new wf.CancellationScope();
    this.watching = { key, scope };
    void scope
      .run(async () => {
        if (pause_ms > 0) await wf.sleep(pause_ms, { summary: 'until its data plane is looked at again' });
        this.queue.push({ type: 'verdict', of, verdict: await this.verdict(of, for_ms) });
      })
      .catch(() => undefined);
  }

  /** Rejects only when it is cancelled: a watch that can't be had at all tells nothing, and costs no more than one. */
  private async verdict(of: Watch, for_ms: number): Promise<SilentVerdict> {
    const { node_id } = this.state;
    const summary = `does anything of ${node_id} serve? It is believed to be ${of.believed}`;
    try {
      return await watchingSilent(summary).watch_silent({ node_id, believed: of.believed, for_ms });
    } catch (err) {
      await wf.sleep(TIMING.silentWatch, { summary: 'until it is watched again' });
      return { verdict: 'unchanged', evidence: String(err) };
    }
  }

  private mayContinue(): boolean {
    return isFull(this.signals) && wf.allHandlersFinished();
  }

  /** The latest facts only; a ledger that isn't there is tried again. The next run begins with telling it once more. */
  private async report(): Promise<void> {
    if (this.sending || !this.dirty || this.state.inventory === null) return;
    this.sending = true;
    while (this.dirty) {
      this.dirty = false;
      try {
        const told = canonicalJson({ ...factsOf(this.state), seq: this.asked });
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
