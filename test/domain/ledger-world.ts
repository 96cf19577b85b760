// A fleet for property tests of the ledger: machines with engines that really run, workflows that believe something,
// and messages between them that come late, twice, in another order, or to a ledger that has lost everything. What is
// checked is the truth on the machines against what the ledger says is held (INV-1, INV-2).
import type { StopProof } from '../../contracts/engine.js';
import type { AssertMsg, GrantMember, LedgerReply, RenewMsg, ReserveMsg } from '../../contracts/messages.js';
import { packLedger, unpackLedger } from '../../domain/ledger/pack.js';
import { blockOf, emptyLedger, heldOn, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerEffect, type LedgerInput, ledgerStep, nextLook } from '../../domain/ledger/step.js';
import { shapeOf } from '../../domain/replica/make.js';
import { common, maskOf } from '../../domain/slots.js';
import { facts, proof, spec } from './fixtures.js';

const SLOTS = [0, 1, 2];

interface Engine {
  replica: string;
  fence: number;
  rank: number;
  slots: number[];
  nodes: number;
  /** An exited one has left its GPUs unproven. */
  state: 'ready' | 'exited';
}

interface Machine {
  id: string;
  state: 'connected' | 'lost';
  hello_at: number;
  boot: number;
  engines: Engine[];
  /** Fences that a stop has burnt: nothing of them starts any more. */
  burnt: Set<string>;
  /** The next stops prove nothing: its GPUs stay in use. */
  leaks: boolean;
  seq: number;
}

interface Replica {
  name: string;
  run: string;
  open: boolean;
  keys: number;
  /** Key of the reserve that it waits for, as it was last sent. */
  asking: ReserveMsg | RenewMsg | null;
  held: { fence: number; members: GrantMember[] } | null;
  last_fence: number;
  nodes: number;
  size: number;
}

type Message = { to: 'fleet'; input: LedgerInput } | { to: string; run: string; reply: LedgerReply };

export class World {
  now = 1_000_000;
  ledger: LedgerState = emptyLedger('e0', this.now);
  readonly machines: Machine[];
  readonly replicas: Replica[];
  /** On their way, any may be the next. */
  readonly mail: Message[] = [];
  /** Delivered ones that may come once more. */
  private readonly old: Message[] = [];
  readonly log: string[] = [];
  private epochs = 0;

  constructor(machines = 3) {
    this.machines = Array.from({ length: machines }, (_, i) => ({
      id: `n${i}`,
      state: 'connected',
      hello_at: 0,
      boot: 0,
      engines: [],
      burnt: new Set<string>(),
      leaks: false,
      seq: 0,
    }));
    this.replicas = ['a', 'b', 'c'].map((name, i) => ({
      name,
      run: `${name}0`,
      open: true,
      keys: 0,
      asking: null,
      held: null,
      last_fence: 0,
      nodes: i === 0 ? 1 : 2,
      size: i === 2 ? 2 : 1,
    }));
    for (const m of this.machines) this.hello(m);
    this.deliverAll();
  }

  step(inputs: LedgerInput[]): void {
    this.now += 10;
    const effects = ledgerStep(this.ledger, inputs, this.now);
    this.log.push(`${inputs.map(i => i.kind).join()} → ${JSON.stringify(effects)}`);
    for (const e of effects) this.apply(e);
    this.check();
  }

  private apply(e: LedgerEffect): void {
    if (e.do === 'reply') {
      const r = this.replicas.find(x => x.name === e.replica)!;
      this.mail.push({ to: e.replica, run: r.run, reply: e.reply });
    } else if (e.do === 'stop') {
      const { replica, fence } = e.order;
      const m = this.machine(e.node);
      if (m.state !== 'connected') {
        const input = { kind: 'settle_failed', fence, node: m.id, sentence: 'no answer' } as const;
        this.mail.push({ to: 'fleet', input });
        return;
      }
      this.mail.push({
        to: 'fleet',
        input: { kind: 'settled', fence, node: m.id, proof: this.kill(m, replica, fence) },
      });
    } else if (e.do === 'survey') {
      const replicas = this.replicas
        .filter(r => r.open)
        .map(r => ({
          name: r.name,
          run_id: r.run,
          node: r.held === null ? null : r.held.members.map(m => m.node).join(', '),
        }));
      const survey = { replicas, nodes: this.machines.map(m => m.id) };
      this.mail.push({ to: 'fleet', input: { kind: 'survey', survey } });
    } else if (e.do === 'report') for (const id of e.nodes) this.tell(this.machine(id));
  }

  private readonly machine = (id: string): Machine => this.machines.find(m => m.id === id)!;

  // Machines.

  /** What its node workflow tells; the engines of a hello are read by the ledger once. */
  private tell(m: Machine): void {
    m.seq = ++this.now;
    const running = m.engines.map(({ replica, fence, rank, slots, nodes, state }) => ({
      replica,
      fence,
      rank,
      slots,
      state,
      pid: 1,
      serves: null,
      ...(nodes === 1 ? {} : { nodes, fabric: 'ib-a' }),
    }));
    const told = facts({
      node_id: m.id,
      seq: m.seq,
      state: m.state,
      since: this.now,
      hello_at: m.hello_at,
      profile: { gpu_model: null, memory_mib: null, slots: 3, islands: [maskOf(SLOTS)] },
      usable: maskOf(SLOTS),
      running,
    });
    this.mail.push({ to: 'fleet', input: { kind: 'node', facts: told } });
  }

  hello(m: Machine): void {
    m.state = 'connected';
    m.hello_at = ++this.now;
    this.tell(m);
  }

  lose(m: Machine): void {
    m.state = 'lost';
    this.tell(m);
  }

  /** Heard again on the stream that it had. */
  back(m: Machine): void {
    if (m.state !== 'lost' || m.hello_at === 0) return;
    m.state = 'connected';
    this.tell(m);
  }

  reboot(m: Machine): void {
    for (const e of m.engines) m.burnt.add(`${e.replica}/${e.fence}`);
    m.engines = [];
    m.leaks = false;
    m.boot++;
    this.hello(m);
  }

  /** The operator's word is true: the machine is gone. Another one says hello under its name later. */
  forget(m: Machine): void {
    if (this.ledger.nodes[m.id]?.facts.state !== 'lost') return;
    for (const e of m.engines) m.burnt.add(`${e.replica}/${e.fence}`);
    m.engines = [];
    m.leaks = false;
    m.state = 'lost';
    // What it had told is told no more: its workflow began anew.
    for (let i = this.mail.length - 1; i >= 0; i--) {
      const mail = this.mail[i]!;
      if ('input' in mail && mail.input.kind === 'node' && mail.input.facts.node_id === m.id)
        this.mail.splice(i, 1);
    }
    this.step([{ kind: 'forget', node: m.id, by: 'op' }]);
  }

  crash(m: Machine): void {
    const e = m.engines[0];
    if (e !== undefined) e.state = 'exited';
  }

  private kill(m: Machine, replica: string, fence: number): StopProof {
    m.burnt.add(`${replica}/${fence}`);
    const engine = m.engines.find(e => e.replica === replica && e.fence === fence);
    if (engine === undefined) return proof('strong');
    if (m.leaks) {
      engine.state = 'exited';
      return { ...proof(), leaked: [{ gpu: 'GPU-x', pids: [7], used_mib: 9_000 }] };
    }
    m.engines = m.engines.filter(e => e !== engine);
    return proof('strong');
  }

  /** Its leak is gone by itself, or by hand; the operator says so. */
  clearLeaks(m: Machine): void {
    m.leaks = false;
    const left = Object.values(this.ledger.grants).filter(g => g.left[m.id] !== undefined);
    for (const g of left) this.kill(m, g.replica, g.fence);
    this.step([{ kind: 'clear_leak', node: m.id, slots: null, by: 'op' }]);
  }

  // Workflows of replicas.

  private ids = (r: Replica) => ({ run_id: r.run, continued_run_id: null, first_run_id: r.run });

  private want(r: Replica): ReserveMsg {
    const shape = { ...shapeOf(spec()), nodes: r.nodes, tensor_parallel: r.nodes * r.size };
    const key = `${r.run}/reserve/${++r.keys}`;
    return {
      kind: 'reserve',
      key,
      replica: r.name,
      ...this.ids(r),
      shape,
      exclude: [],
      prefer: null,
      adopt: null,
    };
  }

  private send(input: LedgerInput): void {
    this.mail.push({ to: 'fleet', input });
  }

  ask(r: Replica): void {
    if (!r.open || r.held !== null) return;
    // Sent again as it was, until it is answered.
    r.asking ??= this.want(r);
    this.send(r.asking);
  }

  start(r: Replica, m: Machine): void {
    const member = r.held?.members.find(x => x.node === m.id);
    if (!r.open || r.held === null || member === undefined || m.state !== 'connected') return;
    const { fence, members } = r.held;
    if (m.burnt.has(`${r.name}/${fence}`) || m.engines.some(e => e.fence === fence)) return;
    const busy = m.engines.find(e => common(maskOf(e.slots), maskOf(member.slots)) !== 0);
    if (busy !== undefined)
      throw new Error(
        `${m.id}: ${r.name} (fence ${fence}) was granted what ${busy.replica} (fence ${busy.fence}) has`,
      );
    m.engines.push({
      replica: r.name,
      fence,
      rank: member.rank,
      slots: member.slots,
      nodes: members.length,
      state: 'ready',
    });
  }

  bringUp(r: Replica): void {
    this.ask(r);
    this.deliverAll();
    for (const m of this.machines) this.start(r, m);
  }

  /** Proof where the node is there; where it is lost the hold is left. */
  private stopped(r: Replica): { node: string; proof: StopProof | null }[] {
    return r.held!.members.map(({ node }) => {
      const m = this.machine(node);
      return { node, proof: m.state === 'connected' ? this.kill(m, r.name, r.held!.fence) : null };
    });
  }

  renew(r: Replica): void {
    if (!r.open || r.held === null) return;
    const release = { fence: r.held.fence, members: this.stopped(r) };
    r.held = null;
    r.asking = { ...this.want(r), kind: 'renew', release };
    this.send(r.asking);
  }

  /** Ends, and is started again later. */
  end(r: Replica): void {
    if (!r.open) return;
    const withdraw = r.asking?.key ?? null;
    const members = r.held === null ? [] : this.stopped(r);
    const key = `${r.run}/release/${++r.keys}`;
    const fence = r.held?.fence ?? null;
    this.send({ kind: 'release', key, replica: r.name, ...this.ids(r), fence, withdraw, members });
    this.newRun(r);
  }

  /** Its workflow is gone, and nothing was stopped: the janitor tells, or a new run comes first. */
  terminate(r: Replica, told: boolean): void {
    if (!r.open) return;
    const { run } = r;
    const entry = { replica: r.name, run_id: run, first_run_id: run, status: 'TERMINATED' };
    if (told) {
      // As the janitor sees it: no later run is open.
      r.open = false;
      r.asking = null;
      r.held = null;
      this.send({ kind: 'closed', closed: [{ ...entry, closed_at: ++this.now }] });
    } else this.newRun(r);
  }

  newRun(r: Replica): void {
    r.run = `${r.name}${Number(r.run.slice(1)) + 1}`;
    r.open = true;
    r.keys = 0;
    r.asking = null;
    r.held = null;
    r.last_fence = 0;
  }

  private assert(r: Replica): void {
    const msg: AssertMsg = {
      kind: 'assert',
      key: `${r.run}/assert/${++r.keys}`,
      replica: r.name,
      ...this.ids(r),
      fence: r.held?.fence ?? null,
      members: r.held?.members ?? [],
      why: 'held',
      endpoint: null,
      ...((r.held?.members.length ?? 1) > 1 ? { fabric: 'ib-a' } : {}),
    };
    this.send(msg);
    if (r.asking !== null) this.send(r.asking.kind === 'renew' ? r.asking : { ...r.asking });
  }

  private onReply(r: Replica, reply: LedgerReply): void {
    switch (reply.kind) {
      case 'assert':
        this.assert(r);
        return;
      case 'granted':
        this.onGranted(r, reply);
        return;
      case 'stale':
        this.onStale(r, reply);
        return;
      case 'node':
        if (reply.news === 'forgotten' && reply.fence === r.held?.fence) {
          // The operator's word has ended that member, whatever the machine says.
          r.held = { ...r.held, members: r.held.members.filter(m => m.node !== reply.node) };
          this.renew(r);
        }
    }
  }

  private onGranted(r: Replica, g: Extract<LedgerReply, { kind: 'granted' }>): void {
    if (g.key === r.asking?.key) {
      r.asking = null;
      r.held = { fence: g.fence, members: g.members };
      r.last_fence = g.fence;
    } else if (g.key.startsWith(`${r.run}/`) && g.fence > r.last_fence) {
      const members = g.members.map(m => ({ node: m.node, proof: proof('never_started') }));
      const key = `${r.run}/release/${++r.keys}`;
      const { fence } = g;
      this.send({ kind: 'release', key, replica: r.name, ...this.ids(r), fence, withdraw: null, members });
    }
  }

  private onStale(r: Replica, s: Extract<LedgerReply, { kind: 'stale' }>): void {
    if (s.fence === r.held?.fence) {
      this.renew(r);
      return;
    }
    const asked = s.key === r.asking?.key || s.key.startsWith(`${r.run}/assert/`);
    if (!asked || s.fence < r.last_fence) return;
    if (r.held !== null)
      for (const m of r.held.members) void this.kill(this.machine(m.node), r.name, r.held.fence);
    r.asking = null;
    r.held = { fence: s.fence, members: s.members };
    r.last_fence = s.fence;
    const engines = s.members.map(m => this.machine(m.node).engines.find(e => e.fence === s.fence));
    const whole = s.nodes === undefined && engines.every(e => e?.state === 'ready');
    if (whole && s.members.every(m => this.machine(m.node).state === 'connected')) this.assert(r);
    else this.renew(r);
  }

  // The ledger and the post.

  /** Terminated: what it had said arrives, or it is gone with it. */
  lost(n: number): void {
    const said = this.mail.filter(mail => !('input' in mail));
    if (n % 2 === 0) for (const mail of said) this.take(mail);
    this.ledger = emptyLedger(`e${++this.epochs}`, ++this.now);
    for (let i = this.mail.length - 1; i >= 0; i--) {
      const mail = this.mail[i]!;
      // So are signals to it that no other workflow sends again, and what it had under way.
      const inner =
        said.includes(mail) ||
        ('input' in mail &&
          ['settled', 'settle_failed', 'survey', 'node', 'closed'].includes(mail.input.kind));
      if (inner) this.mail.splice(i, 1);
    }
    this.step([{ kind: 'rebuild', why: `it began anew ${this.epochs}` }]);
    // The control planes say the hellos again; a machine that is away says its own when it is back.
    for (const m of this.machines) if (m.state === 'connected') this.hello(m);
  }

  /** Continues as new: packed, and back. */
  carry(): void {
    this.ledger = unpackLedger(JSON.parse(JSON.stringify(packLedger(this.ledger))));
  }

  deliver(n: number): void {
    const mail = this.mail.splice(n % Math.max(1, this.mail.length), 1)[0];
    if (mail === undefined) return;
    // A fact is overtaken by its seq; what Temporal sends, it sends once.
    if (!('input' in mail) || ['reserve', 'renew', 'release', 'assert'].includes(mail.input.kind))
      this.old.push(mail);
    this.take(mail);
  }

  /** Something that was delivered comes once more. */
  repeat(n: number): void {
    const mail = this.old[this.old.length - 1 - (n % Math.max(1, Math.min(8, this.old.length)))];
    if (mail !== undefined) this.take(mail);
  }

  private take(mail: Message): void {
    if ('input' in mail) {
      this.step([mail.input]);
      return;
    }
    const r = this.replicas.find(x => x.name === mail.to)!;
    if (r.open && r.run === mail.run) {
      if (mail.reply.kind === 'granted') this.step([{ kind: 'delivered', fence: mail.reply.fence }]);
      this.onReply(r, mail.reply);
    } else if (mail.reply.kind === 'granted' || mail.reply.kind === 'assert') {
      const fence = mail.reply.kind === 'granted' ? mail.reply.fence : null;
      this.step([{ kind: 'undeliverable', replica: r.name, fence }]);
    }
    this.check();
  }

  deliverAll(): void {
    for (let i = 0; this.mail.length > 0 && i < 500; i++) this.deliver(0);
  }

  look(): void {
    const at = nextLook(this.ledger);
    if (at === null) return;
    this.now = Math.max(this.now, at);
    this.step([{ kind: 'look' }]);
  }

  /** Thrown: which rule is broken, and how it came to that. */
  check(): void {
    const fail = (why: string): never => {
      throw new Error(`${why}\n${JSON.stringify(this.ledger.grants)}\n${this.log.slice(-25).join('\n')}`);
    };
    for (const m of this.machines) {
      const holds = Object.values(this.ledger.grants).flatMap(g =>
        g.members
          .filter(x => x.node === m.id)
          .flatMap(x => x.slots.map(slot => ({ slot, fence: g.fence, grant: g }))),
      );
      // A late hello tells of an engine whose GPUs were given away with proof, a late word of a generation that was before:
      // held twice, they are given to nobody.
      const granted = holds.filter(h => h.grant.unclaimed === undefined);
      for (const [i, h] of granted.entries()) {
        const other = granted.slice(i + 1).find(o => o.slot === h.slot);
        const same = other?.grant.replica === h.grant.replica;
        const over = h.grant.gave_up !== undefined || other?.grant.gave_up !== undefined;
        if (other !== undefined && !(same && over)) fail(`${m.id}: a slot has two holders (INV-1)`);
      }
      // What a ledger hasn't heard of yet is not offered.
      const entry = this.ledger.nodes[m.id];
      const offered =
        entry?.facts.state === 'connected' && entry.facts.hello_at > 0 && blockOf(this.ledger, m.id) === null;
      if (!offered) continue;
      for (const e of m.engines) {
        const own = holds.filter(h => h.fence === e.fence).map(h => h.slot);
        if (!e.slots.every(s => own.includes(s)))
          fail(`${m.id}: ${e.replica} (fence ${e.fence}) has GPUs that are not held for it (INV-1, INV-2)`);
        if (common(heldOn(this.ledger, m.id), maskOf(e.slots)) !== maskOf(e.slots)) fail('heldOn differs');
      }
    }
  }
}
