// A node wherever its stream is: at this instance, or at the one that its workflow names. Everything that the operators'
// API asks of agents goes through here.
import { WorkflowNotFoundError } from '@temporalio/client';
import { LlmgwError } from '../../contracts/errors.js';
import type { NodeState } from '../../domain/node-state.js';
import { decodeEngines, type LiveEngine } from '../../proto/codec.js';
import type { PeerNode__Output } from '../../proto/gen/llmgw/v1/PeerNode.js';
import type { FleetClient } from '../fleet.js';
import type { Hub } from '../stream/hub.js';
import type { RequestOptions } from '../stream/types.js';
import { type PeerCalls, PeerDown } from './calls.js';
import type { PeerDirectory } from './directory.js';

/** An operator's next command finds the holder without a query; an agent that moved is found by the retry. */
const HOLDER_FOR = 2_000;
const MAX_HOLDERS = 1_000;

export type Holder = Pick<NodeState, 'instance' | 'peer_addr' | 'session'>;

/** What a stream heard of a node a moment ago, wherever the stream is. */
export interface LiveView {
  session: number;
  /** ms since the epoch, by this instance's clock. */
  lastHeartbeat: number;
  engines: LiveEngine[];
}

export interface NodesOptions {
  instance: string;
  hub: Pick<Hub, 'request' | 'node' | 'nodes'>;
  fleet: Pick<FleetClient, 'node'>;
  calls: Pick<PeerCalls, 'request' | 'live'>;
  directory: Pick<PeerDirectory, 'alive'>;
}

export class Nodes {
  private readonly holders = new Map<string, { holder: Holder; at: number }>();

  constructor(private readonly opts: NodesOptions) {}

  /**
   * Chunks of the agent's answer. Throws NODE_UNREACHABLE, which names the instance that holds the node where that one
   * doesn't answer, and NODE_NOT_FOUND.
   */
  async *request(
    nodeId: string,
    kind: string,
    payload: unknown,
    opts?: RequestOptions,
  ): AsyncGenerator<Buffer, void, void> {
    const { hub, calls } = this.opts;
    let begun = false;
    for (let before: { holder: Holder; said: string } | null = null; ; ) {
      if (hub.node(nodeId) !== null) return yield* hub.request(nodeId, kind, payload, opts);
      const holder = await this.holder(nodeId, before !== null);
      if (before !== null && before.holder.session === holder.session) {
        throw new LlmgwError(
          'NODE_UNREACHABLE',
          `the control plane instance ${holder.instance}, which had the last stream of ${nodeId}, says: ${before.said}`,
        );
      }
      const addr = this.addressOf(nodeId, holder);
      try {
        for await (const chunk of calls.request(addr, nodeId, kind, payload, opts)) {
          begun = true;
          yield chunk;
        }
        return;
      } catch (err) {
        if (err instanceof PeerDown) {
          this.holders.delete(nodeId);
          throw new LlmgwError(
            'NODE_UNREACHABLE',
            `the stream of ${nodeId} is at the control plane instance ${holder.instance} (${addr}), which does not answer: ${err.message}`,
            { cause: err },
          );
        }
        // No stream there (any more): the agent may have moved a moment ago.
        const moved = err instanceof LlmgwError && err.code === 'NODE_UNREACHABLE' && !begun;
        if (!moved || before !== null) throw err;
        before = { holder, said: err.message };
      }
    }
  }

  /** null: no stream, or its instance doesn't answer: live figures are worth a moment, no error. */
  async live(nodeId: string, known?: Holder): Promise<LiveView | null> {
    const own = this.opts.hub.node(nodeId);
    if (own !== null) return own;
    try {
      const holder = known ?? (await this.holder(nodeId, false));
      if (holder.instance === null || holder.instance === this.opts.instance || holder.peer_addr === null)
        return null;
      const { nodes } = await this.opts.calls.live(holder.peer_addr, { node_ids: [nodeId] });
      const found = nodes.find(n => n.node_id === nodeId);
      return found === undefined ? null : viewOf(found);
    } catch {
      return null;
    }
  }

  /** The node that has that member of the replica, at any instance that answers. */
  async withEngineOf(replica: string, rank: number): Promise<string | null> {
    const has = (engines: { replica: string; rank: number }[]) =>
      engines.some(e => e.replica === replica && e.rank === rank);
    const own = this.opts.hub.nodes().find(n => has(n.engines));
    if (own !== undefined) return own.nodeId;
    const answers = await Promise.all(
      this.opts.directory.alive().map(p => this.opts.calls.live(p.addr, { replica }).catch(() => null)),
    );
    return answers.flatMap(a => a?.nodes ?? []).find(n => has(n.engines))?.node_id ?? null;
  }

  private async holder(nodeId: string, anew: boolean): Promise<Holder> {
    const now = performance.now();
    const known = this.holders.get(nodeId);
    if (!anew && known !== undefined && now - known.at < HOLDER_FOR) return known.holder;
    try {
      const { instance, peer_addr, session } = await this.opts.fleet.node(nodeId);
      if (this.holders.size >= MAX_HOLDERS) this.holders.clear();
      this.holders.set(nodeId, { holder: { instance, peer_addr, session }, at: now });
      return { instance, peer_addr, session };
    } catch (err) {
      if (err instanceof WorkflowNotFoundError)
        throw new LlmgwError('NODE_NOT_FOUND', `there is no node ${nodeId}`);
      throw err;
    }
  }

  private addressOf(nodeId: string, holder: Holder): string {
    if (holder.instance === null || holder.instance === this.opts.instance) throw this.unheld(nodeId, holder);
    if (holder.peer_addr === null) {
      throw new LlmgwError(
        'NODE_UNREACHABLE',
        `the stream of ${nodeId} is at the control plane instance ${holder.instance}, which has no peer_addr: set it in its server.yaml, or ask that instance`,
      );
    }
    return holder.peer_addr;
  }

  private unheld(nodeId: string, holder: Holder): LlmgwError {
    const last = holder.instance === null ? '' : `; the last one was at the instance ${holder.instance}`;
    return new LlmgwError('NODE_UNREACHABLE', `${nodeId} has no stream to a control plane${last}`);
  }
}

const viewOf = (n: PeerNode__Output): LiveView => ({
  session: n.session,
  lastHeartbeat: Date.now() - n.heard_ago_ms,
  engines: decodeEngines(n.engines),
});
