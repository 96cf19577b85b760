// What this control plane instance answers to others: for its own streams and routers only, so that nothing that was
// forwarded is forwarded again.
import type {
  ServerUnaryCall,
  ServerWritableStream,
  sendUnaryData,
  UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { LlmgwError } from '../../contracts/errors.js';
import type { Logger } from '../../lib/log.js';
import { encodeEngine, encodeInventory } from '../../proto/codec.js';
import type { Caller__Output } from '../../proto/gen/llmgw/v1/Caller.js';
import type { LiveReply } from '../../proto/gen/llmgw/v1/LiveReply.js';
import type { LiveRequest__Output } from '../../proto/gen/llmgw/v1/LiveRequest.js';
import type { PeerDefinition } from '../../proto/gen/llmgw/v1/Peer.js';
import type { PeerChunk } from '../../proto/gen/llmgw/v1/PeerChunk.js';
import type { PeerDone } from '../../proto/gen/llmgw/v1/PeerDone.js';
import type { PeerNode } from '../../proto/gen/llmgw/v1/PeerNode.js';
import type { PeerRequest__Output } from '../../proto/gen/llmgw/v1/PeerRequest.js';
import type { PeerSuperseded__Output } from '../../proto/gen/llmgw/v1/PeerSuperseded.js';
import type { RoutersReply } from '../../proto/gen/llmgw/v1/RoutersReply.js';
import type { RoutersRequest__Output } from '../../proto/gen/llmgw/v1/RoutersRequest.js';
import { peerProto } from '../../proto/load.js';
import type { RouteHub } from '../routes.js';
import type { Hub } from '../stream/hub.js';
import type { LiveNode } from '../stream/types.js';
import { admitPeer, type PeerCall } from './identify.js';

/** Longest wait for an agent's chunk that a caller may ask for. */
const MAX_TIMEOUT = 600_000;

export interface PeerServiceOptions {
  instance: string;
  /** The agents' address takes certificates only. */
  tls: boolean;
  hub: Pick<Hub, 'request' | 'nodes' | 'node' | 'supersede' | 'challenge'>;
  routes: Pick<RouteHub, 'ownRouters'>;
  /** Somebody called: it is alive, and can be called back where it has an address. */
  met(instance: string, addr: string | null): void;
  log: Logger;
}

/** For startAgentEndpoint. */
export interface PeerService {
  service: PeerDefinition;
  implementation: UntypedServiceImplementation;
}

export function peerService(opts: PeerServiceOptions): PeerService {
  const { hub, instance } = opts;

  const refused = (call: PeerCall, caller: Caller__Output | null) => {
    const admitted = admitPeer(call, opts.tls);
    if (!admitted.ok) {
      opts.log.warn({ peer: call.getPeer() }, `refused a call between instances: ${admitted.sentence}`);
      return { code: admitted.code, details: admitted.sentence };
    }
    if (caller !== null && caller.instance !== '' && caller.instance !== instance)
      opts.met(caller.instance, caller.peer_addr || null);
    return null;
  };

  const unary =
    <Q extends { caller: Caller__Output | null }, A>(answer: (request: Q) => A) =>
    (call: ServerUnaryCall<Q, A>, done: sendUnaryData<A>): void => {
      const no = refused(call as unknown as PeerCall, call.request.caller);
      if (no === null) done(null, answer(call.request));
      else done(no);
    };

  const request = async (call: ServerWritableStream<PeerRequest__Output, PeerChunk>): Promise<void> => {
    const no = refused(call as unknown as PeerCall, call.request.caller);
    if (no !== null) {
      call.emit('error', no);
      return;
    }
    const { node_id, kind, payload, timeout_ms } = call.request;
    const left = new AbortController();
    call.once('cancelled', () => left.abort());
    try {
      const chunks = hub.request(node_id, kind, parsed(payload), {
        timeout: Math.min(MAX_TIMEOUT, Math.max(1, timeout_ms)),
        signal: left.signal,
      });
      for await (const data of chunks) if (!call.write({ data })) await drained(call, left.signal);
      call.write({ end: true });
    } catch (err) {
      if (left.signal.aborted) return;
      const code = err instanceof LlmgwError ? err.code : 'INTERNAL';
      call.write({ end: true, error_code: code, error: err instanceof Error ? err.message : String(err) });
    }
    call.end();
  };

  const live = unary(
    ({ node_ids, replica, with_inventory }: LiveRequest__Output): LiveReply => ({
      instance,
      nodes: hub
        .nodes()
        .filter(
          n => node_ids.includes(n.nodeId) || (replica !== '' && n.engines.some(e => e.replica === replica)),
        )
        .map(n => peerNode(n, with_inventory)),
    }),
  );

  const superseded = unary(({ caller, node_id, by_session, duplicate }: PeerSuperseded__Output): PeerDone => {
    if (duplicate !== '') hub.challenge(node_id, duplicate);
    else hub.supersede(node_id, by_session, caller?.instance ?? 'another instance');
    return { instance };
  });

  const routers = unary(
    ({ replica, fence }: RoutersRequest__Output): RoutersReply => ({
      instance,
      routers: opts.routes
        .ownRouters({ replica, fence })
        .map(r => ({ id: r.id, version: r.version, outstanding: r.outstanding ?? 0, heard_ago_ms: r.agoMs })),
    }),
  );

  return {
    service: peerProto().Peer.service,
    implementation: { Request: request, Live: live, Superseded: superseded, Routers: routers },
  };
}

const peerNode = (n: LiveNode, withInventory: boolean): PeerNode => ({
  node_id: n.nodeId,
  session: n.session,
  boot_id: n.bootId,
  address: n.peerAddress,
  heard_ago_ms: Math.max(0, Date.now() - n.lastHeartbeat),
  silent: n.silent,
  engines: n.engines.map(encodeEngine),
  ...(withInventory ? { inventory: encodeInventory(n.inventory) } : {}),
});

function parsed(payload: Buffer): unknown {
  try {
    return JSON.parse(payload.toString('utf8') || 'null');
  } catch {
    throw new LlmgwError('BAD_REQUEST', 'the payload of a forwarded request is not JSON');
  }
}

/** A caller that reads slowly is waited for: what lies here meanwhile is bounded by the stream's own credit. */
function drained(call: ServerWritableStream<unknown, unknown>, left: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const done = (): void => {
      call.off('drain', done);
      left.removeEventListener('abort', done);
      resolve();
    };
    call.once('drain', done);
    left.addEventListener('abort', done);
    if (left.aborted) done();
  });
}
