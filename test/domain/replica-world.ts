// A replica in a world that answers as it likes: orders that are taken late, twice or never, members that end, nodes that
// are lost, people who cancel. What must hold whatever comes is checked at every step; `settle` then lets everything go
// well, and the replica must get somewhere.
import type { StopProof } from '../../contracts/engine.js';
import type { LedgerMsg, LedgerReply } from '../../contracts/messages.js';
import {
  initialReplica,
  type Member,
  type ReplicaEffect,
  type ReplicaEvent,
  type ReplicaState,
  type TimerId,
} from '../../domain/replica/state.js';
import { replicaStep } from '../../domain/replica/step.js';
import { digest, spec } from './fixtures.js';

type Order = 'launch' | 'prepare' | 'spawn' | 'adopt' | 'await_ready' | 'drain' | 'stop';
interface Running {
  op: Order;
  node: string;
  fence: number;
  rank: number;
}
/** What the ledger has of one member. `reached`: an order for it was given to its node, and none was known undelivered. */
interface Hold {
  node: string;
  reached: boolean;
  alive: boolean;
  ended: 'proven' | 'left' | 'forgotten' | null;
}

const PROOF: StopProof = { proof: 'strong', at: '', leaked: [] };
const CLASSES = ['permanent', 'retry', 'node_fault', 'port_conflict', 'host_stop'] as const;

export class World {
  now = 1_000_000;
  state: ReplicaState;
  running: Running[] = [];
  timers = new Map<TimerId, number>();
  mail: LedgerMsg[] = [];
  holds = new Map<number, Hold[]>();
  readonly seen: string[] = [];
  private late: ReplicaEvent[] = [];
  private fences = 100;
  private seq = 0;

  constructor(readonly size: number) {
    const given = { nodes: size, tensor_parallel: size, restart: { max_failures: 4 } };
    this.state = initialReplica(spec(given), 'run-1', this.now);
    this.step({ type: 'started' });
  }

  step(ev: ReplicaEvent): void {
    this.now += 10;
    this.seen.push(`${this.state.phase} ← ${JSON.stringify(ev)}`);
    const effects = replicaStep(this.state, ev, this.now);
    this.state = JSON.parse(JSON.stringify(this.state));
    for (const e of effects) this.run(e);
    this.check();
  }

  private run(e: ReplicaEffect): void {
    switch (e.do) {
      case 'ledger':
        this.mail.push(e.msg);
        if (e.msg.kind === 'release') this.release(e.msg.fence, e.msg.members);
        if (e.msg.kind === 'renew') this.release(e.msg.release.fence, e.msg.release.members);
        // A claim that no node could be asked about: the hold stays as it was, the ledger's to offer again.
        if (e.msg.kind === 'reserve') for (const h of [...this.holds.values()].flat()) h.ended ??= 'left';
        break;
      case 'launch':
      case 'prepare':
      case 'spawn':
      case 'adopt':
      case 'await_ready':
        this.order(e.do, e.node, e.order.fence, e.order.rank);
        break;
      case 'drain':
        this.order('drain', '', e.input.fence, 0);
        break;
      case 'stop':
        this.running = this.running.filter(r => r.op !== 'stop');
        if (e.orders.length === 0) throw new Error('a stop of nobody');
        for (const { node, order } of e.orders) this.order('stop', node, order.fence, order.rank);
        break;
      case 'abort':
        // What has answered before it was aborted is in the queue already.
        for (const r of this.running.filter(r => r.op === e.op)) this.late.push(this.answer(r, 0));
        this.running = this.running.filter(r => r.op !== e.op);
        break;
      case 'timer':
        this.timers.set(e.id, this.now + e.ms);
        break;
      case 'clear_timer':
        this.timers.delete(e.id);
        break;
      default:
        throw new Error(e.do);
    }
  }

  /** No order without a hold, and none that starts something beside an older generation that may run (INV-1, INV-6). */
  private order(op: Order, node: string, fence: number, rank: number): void {
    if (fence !== this.state.fence) throw new Error(`${op} of fence ${fence}, ${this.state.fence} is held`);
    this.running.push({ op, node, fence, rank });
    if (op === 'drain') return;
    const hold = this.holds.get(fence)?.find(h => h.node === node);
    if (hold === undefined || hold.ended !== null) throw new Error(`${op} on ${node} without a hold`);
    if (op !== 'stop' && op !== 'await_ready') hold.reached = true;
    if (op !== 'launch' && op !== 'prepare' && op !== 'spawn') return;
    for (const [older, holds] of this.holds)
      if (older !== fence && holds.some(h => h.ended === null))
        throw new Error(`${op} of fence ${fence} while ${older} is neither proven nor left`);
  }

  private release(fence: number | null, members: { node: string; proof: StopProof | null }[]): void {
    if (fence === null) return;
    const holds = this.holds.get(fence)!;
    for (const { node, proof } of members) {
      const hold = holds.find(h => h.node === node)!;
      if (hold.ended !== null) throw new Error(`${node} of ${fence} is released twice (${hold.ended})`);
      if (proof !== null && hold.alive) throw new Error(`${node} of ${fence} runs and is released`);
      if (proof?.proof === 'never_started' && hold.reached)
        throw new Error(`${node} of ${fence} had an order and is said to be never started`);
      hold.ended = proof === null ? 'left' : 'proven';
    }
    const open = holds.filter(h => h.ended === null);
    if (open.length > 0)
      throw new Error(`${open.map(h => h.node)} of ${fence} are not released with the others`);
  }

  private check(): void {
    const s = this.state;
    if (s.reason === '') throw new Error(`${s.phase} without a reason`);
    if (s.outcome !== null || s.phase === 'ready' || s.phase === 'pending') return;
    if (s.deadline === null) throw new Error(`${s.phase} without a deadline (INV-9)`);
    const waits = this.running.some(r => r.fence === s.fence) || this.timers.size > 0;
    if (!waits && s.draining_key === null) throw new Error(`nothing leads out of ${s.phase}`);
  }

  /** The answer of an order; `how` 0: it goes well. */
  private answer({ op, node, fence, rank }: Running, how: number): ReplicaEvent {
    const hold = this.holds.get(fence)?.find(h => h.node === node);
    const ok = how % 4 !== 1;
    const delivered = how % 8 !== 5;
    const result = {
      gpus: [node],
      ports: { http: 1 },
      mgmt_addr: '10.0.0.1',
      key_id: null,
      pid: rank + 1,
      adopted: op === 'adopt',
    };
    const no = { fence, rank, code: 'SPAWN_FAILED', sentence: 'no', delivered };
    switch (op) {
      case 'launch':
      case 'prepare':
        if (!ok) {
          if (!delivered) hold!.reached = false;
          return { type: `${op}_failed`, ...no };
        }
        if (op === 'prepare') return { type: 'prepared', fence, rank, result };
        if (hold!.ended === null) hold!.alive = true;
        return { type: 'launched', fence, rank, result };
      case 'spawn':
        if (!ok) return { type: 'spawn_failed', ...no };
        if (hold!.ended === null) hold!.alive = true;
        return { type: 'spawned', fence, rank, result };
      case 'adopt': {
        const code = ['ENGINE_UNKNOWN', 'FENCE_CONFLICT', 'NODE_UNREACHABLE'][how % 3]!;
        if (!ok) return { type: 'adopt_failed', fence, rank, code, sentence: 'no' };
        return { type: 'launched', fence, rank, result };
      }
      case 'await_ready': {
        const failure = digest({ code: how % 3 === 0 ? 'ENGINE_FAILED' : 'NO_PROGRESS' });
        const served = { ready: true as const, pid: 1, model_ids: [] };
        return { type: 'ready_result', fence, rank, result: ok ? served : { ready: false, failure } };
      }
      case 'drain':
        return { type: 'drained', fence, drained: ok, outstanding: 0, heard: ok };
      case 'stop':
        if (!ok) return { type: 'stop_failed', fence, node, sentence: 'no', leaked: how % 3 === 0 };
        hold!.alive = false;
        return { type: 'stopped', fence, proofs: [{ node, proof: PROOF }] };
    }
  }

  finish(index: number, how: number): void {
    const [r] = this.running.splice(index % this.running.length, 1);
    if (r !== undefined) this.step(this.answer(r, how));
  }

  fire(index: number): void {
    const id = [...this.timers.keys()][index % this.timers.size];
    if (id === undefined) return;
    this.now = Math.max(this.now, this.timers.get(id)!);
    this.timers.delete(id);
    this.step({ type: 'timer', id });
  }

  /** The ledger's word on the oldest message. */
  reply(how: number): void {
    const msg = this.mail.shift();
    if (msg === undefined) return;
    if (msg.kind === 'reserve' || msg.kind === 'renew') {
      if (msg.key === this.state.reserving) this.step({ type: 'ledger', reply: this.grantOf(msg.key, how) });
      return;
    }
    this.step({ type: 'ledger', reply: { kind: 'ack', key: msg.key, version: 1, queues: ['q'] } });
  }

  private grantOf(key: string, how: number): LedgerReply {
    const fence = ++this.fences;
    const members = Array.from({ length: this.size }, (_, rank) => ({
      node: `n${rank + 1}`,
      rank,
      slots: [0],
    }));
    // What another run left runs, and counts as reached.
    const stale = how % 5 === 1 && [...this.holds.values()].flat().every(h => h.ended !== null);
    const held = members.map(({ node }) => ({ node, reached: stale, alive: stale, ended: null }));
    this.holds.set(fence, held);
    return stale
      ? { kind: 'stale', key, fence, members, fabric: 'f' }
      : { kind: 'granted', key, fence, members, fabric: 'f', why: '' };
  }

  exit(index: number, how: number): void {
    const alive = this.state.members.filter(m => this.hold(m)?.alive);
    const m = alive[index % Math.max(1, alive.length)];
    if (m === undefined) return;
    this.hold(m)!.alive = false;
    this.step({
      type: 'engine',
      event: {
        node: m.node,
        replica: 'r',
        fence: this.state.fence!,
        rank: m.rank,
        seq: ++this.seq,
        kind: 'exited',
        at: new Date(this.now - (how % 7) * 1_000).toISOString(),
        requested: how % 11 === 0,
        failure: digest({ class: CLASSES[how % CLASSES.length]! }),
      },
    });
  }

  news(index: number, how: number): void {
    const m = this.state.members[index % Math.max(1, this.state.members.length)];
    const { fence } = this.state;
    if (m === undefined || fence === null) return;
    const news = (['lost', 'lost', 'back', 'forgotten', 'missing', 'sick'] as const)[how % 6]!;
    const hold = this.hold(m)!;
    if (news === 'forgotten') {
      if (hold.ended !== null) return;
      Object.assign(hold, { ended: 'forgotten', alive: false });
      this.running = this.running.filter(r => r.node !== m.node);
    }
    const reply = { kind: 'node' as const, key: '', node: m.node, fence, news, at: this.now, reason: 'dark' };
    this.step({ type: 'ledger', reply });
  }

  people(how: number): void {
    if (this.state.outcome !== null || this.state.cancelled) return;
    if (how % 5 === 0) this.step({ type: 'cancel' });
    else this.step({ type: 'restart', by: '' });
  }

  /** Continue-as-new, where the driver may do it. */
  again(): void {
    if (this.running.length > 0 || this.state.cancelled || this.state.outcome !== null) return;
    this.timers.clear();
    this.step({ type: 'resumed' });
  }

  /** A word that was on its way when nobody waited for it any more. */
  lateWord(index: number): void {
    const [ev] = this.late.splice(index % Math.max(1, this.late.length), 1);
    if (ev !== undefined) this.step(ev);
  }

  private hold = (m: Member): Hold | undefined =>
    this.holds.get(this.state.fence ?? 0)?.find(h => h.node === m.node);

  /** Everything goes well from here on: it serves in the end, or has ended. */
  settle(): void {
    for (let i = 0; i < 300; i++) {
      const { phase, outcome } = this.state;
      if (outcome !== null || (phase === 'ready' && this.mail.length === 0)) return;
      if (this.running.length > 0) this.finish(0, 0);
      else if (this.mail.length > 0) this.reply(0);
      else if (this.timers.size > 0) this.fire(0);
      else throw new Error(`nothing leads out of ${phase}`);
    }
    throw new Error(`it gets nowhere: ${this.state.phase}, ${this.state.reason}`);
  }

  /** Fences of which some hold has not ended, and was not left to the ledger, which stops what runs (INV-1). */
  open = (): number[] =>
    [...this.holds].filter(([, holds]) => holds.some(h => h.ended === null)).map(([fence]) => fence);
}
