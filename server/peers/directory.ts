// Which other control plane instances there are, and which routers report to them. From the ledger, where each
// registers, and from their own calls, so that a fresh one is known at once. They are asked every 5 s: when one dies,
// the others know already whose word a drain has to wait for.
import type { Logger } from '../../lib/log.js';
import type { PeerAnswer } from '../routers.js';
import { type PeerCalls, PeerDown } from './calls.js';

const LOOK_MS = 5_000;
/** The ledger is a large answer, and instances come and go seldom. */
const LEDGER_EVERY = 6;
/** One that has been down for long is looked at this seldom: every sixth time. */
const DOWN_EVERY = 6;
const DOWN_LOOKS = 12;
/** So many looks without an answer, and the agents that it had have had the time to come to another instance. */
const DEAD_LOOKS = 4;
/** Known from its own calls alone: forgotten when it calls no more. */
const MET_MS = 120_000;

interface Peer {
  addr: string;
  failures: number;
  /** Of its last call; 0: known from the ledger. */
  metAt: number;
}

export interface DirectoryOptions {
  instance: string;
  calls: Pick<PeerCalls, 'routers'>;
  /** Registered instances by id. */
  registered: () => Promise<Record<string, { peer_addr: string | null }>>;
  /** What a peer's routers are, after each look. */
  heard: (answer: PeerAnswer) => void;
  /** A peer hasn't answered for a while; said once for each time. */
  dead?: (instance: string) => void;
  log: Logger;
}

export class PeerDirectory {
  private readonly peers = new Map<string, Peer>();
  private timer: NodeJS.Timeout | null = null;
  private looks = 0;
  private looking = false;

  constructor(private readonly opts: DirectoryOptions) {}

  start(): void {
    this.timer = setInterval(() => void this.look(), LOOK_MS);
    this.timer.unref();
    void this.look();
  }

  stop(): void {
    if (this.timer !== null) clearInterval(this.timer);
  }

  met(instance: string, addr: string | null): void {
    if (addr === null || instance === this.opts.instance) return;
    const known = this.peers.get(instance);
    if (known?.addr === addr) known.metAt = Date.now();
    else this.peers.set(instance, { addr, failures: 0, metAt: Date.now() });
  }

  /** All that are known, dead ones included. */
  list(): { instance: string; addr: string }[] {
    return [...this.peers].map(([instance, { addr }]) => ({ instance, addr }));
  }

  /** Those that answered the last look: what is asked of all is asked of them. */
  alive(): { instance: string; addr: string }[] {
    return [...this.peers]
      .filter(([, p]) => p.failures === 0)
      .map(([instance, { addr }]) => ({ instance, addr }));
  }

  /** Answers of the peers that are alive, each within a second; one that fails isn't in it. */
  async routersOf(of: { replica: string; fence: number }): Promise<PeerAnswer[]> {
    const answers = await Promise.all(this.alive().map(({ instance, addr }) => this.ask(instance, addr, of)));
    return answers.filter(a => a !== null);
  }

  /** One look at all of them. */
  async look(): Promise<void> {
    if (this.looking) return;
    this.looking = true;
    try {
      if (this.looks % LEDGER_EVERY === 0 || this.peers.size === 0) await this.readLedger();
      const due = [...this.peers].filter(([, p]) => p.failures < DOWN_LOOKS || this.looks % DOWN_EVERY === 0);
      const answers = await Promise.all(due.map(([instance, { addr }]) => this.ask(instance, addr, null)));
      for (const answer of answers) if (answer !== null) this.opts.heard(answer);
      this.looks++;
    } finally {
      this.looking = false;
    }
  }

  private async readLedger(): Promise<void> {
    const { instance, registered, log } = this.opts;
    try {
      const all = await registered();
      for (const [id, { peer_addr }] of Object.entries(all)) {
        if (id === instance || peer_addr === null) continue;
        const known = this.peers.get(id);
        if (known?.addr !== peer_addr) this.peers.set(id, { addr: peer_addr, failures: 0, metAt: 0 });
      }
      for (const [id, peer] of this.peers)
        if (all[id] === undefined && Date.now() - peer.metAt > MET_MS) this.peers.delete(id);
    } catch (err) {
      log.debug({ err: (err as Error).message }, 'the other instances could not be read from the ledger');
    }
  }

  private async ask(
    instance: string,
    addr: string,
    of: { replica: string; fence: number } | null,
  ): Promise<PeerAnswer | null> {
    const { calls, log } = this.opts;
    const peer = this.peers.get(instance);
    try {
      const answer = await calls.routers(addr, of);
      // Another one has its place: the same machine with a new state_dir.
      if (answer.instance !== instance) throw new PeerDown(`${answer.instance} answers in its place`);
      if (peer !== undefined && peer.failures > 0)
        log.info({ instance, addr }, 'another control plane instance answers again');
      if (peer !== undefined) peer.failures = 0;
      return {
        instance,
        about: of,
        routers: answer.routers.map(r => ({
          id: r.id,
          version: r.version,
          outstanding: of === null ? null : r.outstanding,
          agoMs: r.heard_ago_ms,
        })),
      };
    } catch (err) {
      if (peer === undefined) return null;
      peer.failures++;
      if (peer.failures === DEAD_LOOKS) this.opts.dead?.(instance);
      if (peer.failures === 1)
        log.warn(
          { instance, addr, err: (err as Error).message },
          'another control plane instance does not answer',
        );
      return null;
    }
  }
}
