// What one node may have under way here. A node that its owner no longer rules must not take memory, Temporal's polls
// or Temporal's request rate from the others: what is over these bounds is refused to that node alone.

export interface NodeLimits {
  /** Calls open at a time; one connection has no more streams than that (server/stream/endpoint.ts). */
  calls: number;
  /**
   * Polls open at a time. A worker has one; those of connections that broke without a word stay up to 30 s. Temporal's
   * frontend bounds the polls of the whole namespace (frontend.namespaceCount).
   */
  polls: number;
  /** Calls a second over a longer time, and at once. 200 activities that beat every 2 s make 100 a second. */
  perSecond: number;
  burst: number;
  /** Messages being received, or held, that may be as large as the bound of one: 8 of 16 MiB. More wait unread. */
  messages: number;
}

export const NODE_LIMITS: NodeLimits = { calls: 256, polls: 16, perSecond: 200, burst: 1_000, messages: 8 };

/** A call that was let in. */
export interface Admitted {
  ok: true;
  /** Calls back, now or later, when this call's message may be read. */
  readable(read: () => void): void;
  /** The message is here and short: another one may be read. */
  short(): void;
  /** The call is over; more than once is as once. */
  leave(): void;
}

interface NodeState {
  calls: number;
  polls: number;
  allowance: number;
  refilledAt: number;
  messages: number;
  /** Calls whose message waits to be read, in order. */
  waiting: Map<object, () => void>;
}

/** Where ids are not proven by a certificate anyone may make them up. */
const NODES_KEPT = 10_000;

export class Admission {
  private readonly nodes = new Map<string, NodeState>();

  /** `now`: milliseconds on a clock that never goes back. */
  constructor(
    private readonly limits: NodeLimits,
    private readonly now: () => number = () => performance.now(),
  ) {}

  enter(nodeId: string, poll: boolean): Admitted | { ok: false; reason: string } {
    const node = this.node(nodeId);
    const over = this.over(node, poll);
    if (over !== null) return { ok: false, reason: `node ${nodeId} ${over}` };
    node.calls += 1;
    node.allowance -= 1;
    if (poll) node.polls += 1;
    const call = {};
    let [here, reading] = [true, false];
    const short = (): void => {
      if (!reading) return;
      reading = false;
      node.messages -= 1;
      this.readNext(node);
    };
    return {
      ok: true,
      short,
      readable: read => {
        node.waiting.set(call, () => {
          reading = true;
          read();
        });
        this.readNext(node);
      },
      leave: () => {
        if (!here) return;
        here = false;
        node.calls -= 1;
        if (poll) node.polls -= 1;
        node.waiting.delete(call);
        short();
      },
    };
  }

  private over(node: NodeState, poll: boolean): string | null {
    const { calls, polls, perSecond } = this.limits;
    if (node.calls >= calls) return `has ${calls} calls open, more are not taken`;
    if (poll && node.polls >= polls) return `has ${polls} polls open, more are not taken`;
    return node.allowance < 1 ? `makes more than ${perSecond} calls a second` : null;
  }

  private readNext(node: NodeState): void {
    for (const [call, read] of node.waiting) {
      if (node.messages >= this.limits.messages) return;
      node.waiting.delete(call);
      node.messages += 1;
      read();
    }
  }

  private node(nodeId: string): NodeState {
    const { burst, perSecond } = this.limits;
    const now = this.now();
    let node = this.nodes.get(nodeId);
    if (node === undefined) {
      if (this.nodes.size >= NODES_KEPT) this.forgetIdle();
      node = { calls: 0, polls: 0, allowance: burst, refilledAt: now, messages: 0, waiting: new Map() };
      this.nodes.set(nodeId, node);
    }
    node.allowance = Math.min(burst, node.allowance + ((now - node.refilledAt) * perSecond) / 1_000);
    node.refilledAt = now;
    return node;
  }

  private forgetIdle(): void {
    for (const [id, node] of this.nodes) if (node.calls === 0) this.nodes.delete(id);
  }
}
