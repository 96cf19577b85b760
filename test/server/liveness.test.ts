// A watch of a silent node under a clock that the test moves: what it must see before it calls a node lost, and all that
// must not make it.
import { createServer } from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { SilentVerdict } from '../../contracts/activities.js';
import type { Endpoint } from '../../contracts/routes.js';
import type { NodeRow } from '../../contracts/status.js';
import type { Clock } from '../../lib/clock.js';
import type { Logger } from '../../lib/log.js';
import { accepts, dataPlaneOf } from '../../server/data-plane.js';
import { Liveness } from '../../server/liveness.js';
import { RouteHub } from '../../server/routes.js';

const S = 1_000;
const LOST_AFTER = 30 * S;
const HEARTBEAT = 5 * S;
/** One watch, as the workflow asks for it. */
const FOR_MS = 600 * S;

class HandClock implements Clock {
  private time = 0;
  private sleepers: { at: number; wake: () => void }[] = [];

  now = (): number => this.time;

  sleep(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = (): void => reject(signal.reason);
      signal.addEventListener('abort', leave);
      const wake = (): void => {
        signal.removeEventListener('abort', leave);
        resolve();
      };
      this.sleepers.push({ at: this.time + ms, wake });
    });
  }

  /** As time passes: who sleeps wakes when it is due. */
  async pass(ms: number): Promise<void> {
    const end = this.time + ms;
    for (;;) {
      await settled();
      const next = Math.min(...this.sleepers.map(s => s.at));
      if (next > end) break;
      this.time = next;
      this.wake();
    }
    this.time = end;
  }

  /** As a stopped process sees it: nobody wakes, and then all do at once. */
  async standStill(ms: number): Promise<void> {
    this.time += ms;
    this.wake();
    await settled();
  }

  private wake(): void {
    const due = this.sleepers.filter(s => s.at <= this.time);
    this.sleepers = this.sleepers.filter(s => s.at > this.time);
    for (const s of due) s.wake();
  }
}

/** All that doesn't wait for time has happened. */
const settled = (): Promise<void> => new Promise(resolve => setImmediate(resolve));

interface Watching {
  node: string;
  /** null: it watches on. */
  ended: SilentVerdict | Error | null;
  stop(): void;
}

/** Nodes n0, n1, …, each with one endpoint, around one control plane instance. */
class World {
  readonly clock = new HandClock();
  readonly ledger: Pick<NodeRow, 'node_id' | 'state'>[];
  readonly heard = new Set<string>();
  readonly serving = new Set<string>();
  readonly idle = new Set<string>();
  readonly successes = new Map<string, string | null>();
  /** Requests that routers failed or wait for. */
  unanswered = 0;
  /** Heartbeats that come so seldom that nobody is silent yet. */
  beating = true;
  /** Connections that hang. */
  hanging = false;
  ledgerAway = false;
  tableKnown = true;
  endpointsOf = (node: string): Endpoint[] | null =>
    this.tableKnown ? [endpoint(node)].filter(() => !this.idle.has(node)) : null;
  private instance!: Liveness;

  constructor(
    nodes: number,
    private readonly lostAfter = LOST_AFTER,
  ) {
    this.ledger = Array.from({ length: nodes }, (_, i) => ({
      node_id: `n${i}`,
      state: 'connected' as const,
    }));
    for (const { node_id } of this.ledger) this.heard.add(node_id);
    this.restart();
    onTestFinished(() => this.instance.stop());
  }

  /** The control plane that was there is dead, with what it watched. */
  restart(): void {
    this.instance?.stop();
    this.instance = new Liveness({
      heard: () => [...this.heard].map(node => ({ node, beat: this.beats() })),
      ledger: async () => {
        if (this.ledgerAway) throw new Error('no answer');
        return this.ledger;
      },
      dataPlane: {
        endpointsOf: node => this.endpointsOf(node),
        lastSuccess: () => this.successes,
        unanswered: () => this.unanswered,
        accepts: url =>
          this.hanging ? new Promise(() => {}) : Promise.resolve(this.serving.has(new URL(url).hostname)),
      },
      lostAfterMs: this.lostAfter,
      clock: this.clock,
    });
    this.instance.start();
  }

  private beats = (): number => (this.beating ? Math.floor(this.clock.now() / HEARTBEAT) : 0);

  /** It runs long enough to judge. */
  async settle(): Promise<this> {
    await this.clock.pass(LOST_AFTER);
    return this;
  }

  fallSilent(...nodes: string[]): void {
    for (const node of nodes) {
      this.heard.delete(node);
      this.ledger.find(r => r.node_id === node)!.state = 'silent';
    }
  }

  watch(node: string, believed: 'silent' | 'unsupervised' | 'lost' = 'silent'): Watching {
    const stop = new AbortController();
    const watching: Watching = { node, ended: null, stop: () => stop.abort(new Error('aborted')) };
    this.instance
      .watchSilent({ node_id: node, believed, for_ms: FOR_MS }, stop.signal)
      .catch((err: Error) => err)
      .then(ended => {
        watching.ended = ended;
      });
    return watching;
  }
}

const endpoint = (node: string): Endpoint => ({
  model: 'm',
  aliases: [],
  replica: `on-${node}`,
  fence: 7,
  node,
  url: `http://${node}:20000`,
  key_id: null,
  auth: 'none',
  state: 'ready',
  revision: null,
});

describe('a silent node', () => {
  it('is lost when nothing of it answers for the whole period, and not before', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(LOST_AFTER - S);
    expect(watch.ended).toBeNull();
    await world.clock.pass(HEARTBEAT + 2 * S);
    expect(watch.ended).toMatchObject({ verdict: 'dark' });
    expect((watch.ended as SilentVerdict).evidence).toBe(
      'none of its 1 endpoints answered for 30s; of 2 other nodes some were heard throughout',
    );
  });

  it('is lost too where lost_after is so short that it is connected to at each look', async () => {
    const world = await new World(3, 2 * S).settle();
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(2 * S + 2 * HEARTBEAT);
    expect(watch.ended).toMatchObject({ verdict: 'dark' });
  });

  it('serves when an endpoint takes a connection', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    world.serving.add('n0');
    const watch = world.watch('n0');
    await world.clock.pass(2 * S);
    expect(watch.ended).toEqual({
      verdict: 'serving',
      evidence: 'on-n0 takes connections at http://n0:20000',
    });
  });

  it('serves when a router is answered, whatever that router’s clock says; an old success is none', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0', 'n1');
    world.successes.set('router-1', '2036-01-01T00:00:00Z');
    const [before, after] = [world.watch('n0'), world.watch('n1')];
    await world.clock.pass(LOST_AFTER / 2);
    expect(before.ended).toBeNull();
    world.successes.set('router-1', '2036-01-01T00:00:09Z');
    await world.clock.pass(S);
    expect(before.ended).toEqual({ verdict: 'serving', evidence: 'on-n0 answers router router-1' });
    expect(after.ended).toMatchObject({ verdict: 'serving' });
    const last = world.watch('n0');
    await world.clock.pass(LOST_AFTER + 2 * HEARTBEAT);
    expect(last.ended).toMatchObject({ verdict: 'dark' });
  });

  it('that serves nothing is lost by its stream alone', async () => {
    const world = await new World(2).settle();
    world.idle.add('n0');
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(LOST_AFTER + 2 * HEARTBEAT);
    expect((watch.ended as SilentVerdict).evidence).toContain('it serves nothing for 30s');
  });

  it('that is the only one is lost although nobody else can be heard', async () => {
    const world = await new World(1).settle();
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(LOST_AFTER + 3 * S);
    expect(watch.ended).toMatchObject({ verdict: 'dark' });
    expect((watch.ended as SilentVerdict).evidence).toContain('there is no other node');
  });

  it('is not lost when it is heard here after all', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(LOST_AFTER - 2 * S);
    world.heard.add('n0');
    await world.clock.pass(FOR_MS);
    expect(watch.ended).toMatchObject({ verdict: 'unchanged' });
  });

  it('is watched no further once the workflow wants no verdict', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(3 * S);
    watch.stop();
    await settled();
    expect(watch.ended).toMatchObject({ message: 'aborted' });
  });
});

describe('an unsupervised node', () => {
  it('is watched on while it serves, and lost only after a period in one piece without an answer', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    world.serving.add('n0');
    const watch = world.watch('n0', 'unsupervised');
    await world.clock.pass(3 * LOST_AFTER);
    world.serving.delete('n0');
    await world.clock.pass(LOST_AFTER - 6 * S);
    world.serving.add('n0');
    await world.clock.pass(HEARTBEAT + S);
    world.serving.delete('n0');
    await world.clock.pass(LOST_AFTER - 6 * S);
    expect(watch.ended).toBeNull();
    await world.clock.pass(3 * HEARTBEAT);
    expect(watch.ended).toMatchObject({ verdict: 'dark' });
  });

  it('that serves on is unchanged at the end of the watch', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    world.serving.add('n0');
    const watch = world.watch('n0', 'unsupervised');
    await world.clock.pass(FOR_MS + S);
    expect(watch.ended).toEqual({ verdict: 'unchanged', evidence: 'it is unsupervised as before' });
  });
});

describe('a lost node', () => {
  it('serves again when something of it answers, and is unchanged until then', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0', 'n1');
    const [back, gone] = [world.watch('n0', 'lost'), world.watch('n1', 'lost')];
    await world.clock.pass(2 * LOST_AFTER);
    expect(back.ended).toBeNull();
    world.serving.add('n0');
    await world.clock.pass(HEARTBEAT + S);
    expect(back.ended).toMatchObject({ verdict: 'serving' });
    await world.clock.pass(FOR_MS);
    expect(gone.ended).toMatchObject({ verdict: 'unchanged' });
  });
});

describe('nothing is lost', () => {
  const dark = (watches: Watching[]): Watching[] =>
    watches.filter(w => w.ended !== null && 'verdict' in w.ended && w.ended.verdict === 'dark');

  it('when a control plane comes back after ten minutes, and the agents a while after it', async () => {
    const world = await new World(12).settle();
    for (const { node_id } of world.ledger) world.heard.delete(node_id);
    await world.clock.standStill(600 * S);
    world.restart();
    const watches = world.ledger.map(r => world.watch(r.node_id));
    for (const { node_id } of world.ledger) {
      await world.clock.pass(2.5 * S);
      world.heard.add(node_id);
    }
    await world.clock.pass(FOR_MS);
    expect(watches.map(w => w.ended)).toEqual(
      watches.map(() => expect.objectContaining({ verdict: 'unchanged' })),
    );
  });

  it('when it is restarted while a third of the nodes is silent; what stays away is lost a period later', async () => {
    const world = await new World(12).settle();
    const third = ['n0', 'n1', 'n2', 'n3'];
    world.fallSilent(...third);
    const before = third.map(node => world.watch(node));
    await world.clock.pass(LOST_AFTER - 2 * S);
    expect(dark(before)).toEqual([]);
    world.restart();
    const watches = third.map(node => world.watch(node));
    await world.clock.pass(LOST_AFTER - S);
    for (const node of third.slice(0, 3)) world.heard.add(node);
    await world.clock.pass(LOST_AFTER - S);
    expect(dark(watches)).toEqual([]);
    await world.clock.pass(3 * HEARTBEAT);
    expect(dark(watches).map(w => w.node)).toEqual(['n3']);
  });

  it('when it is stopped for two minutes (SIGSTOP): the period begins anew, after one in which agents come back', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0', 'n1');
    const watches = [world.watch('n0'), world.watch('n1')];
    await world.clock.pass(LOST_AFTER - 5 * S);
    await world.clock.standStill(120 * S);
    await world.clock.pass(LOST_AFTER - S);
    world.heard.add('n1');
    await world.clock.pass(LOST_AFTER - S);
    expect(dark(watches)).toEqual([]);
    await world.clock.pass(3 * HEARTBEAT);
    expect(dark(watches).map(w => w.node)).toEqual(['n0']);
  });

  it('when it was stopped before the watch began', async () => {
    const world = await new World(3).settle();
    await world.clock.standStill(120 * S);
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(LOST_AFTER + 3 * HEARTBEAT);
    expect(watch.ended).toBeNull();
  });

  it('when it hears no other node, also not when all fell silent at once: another instance is to judge', async () => {
    for (const silent of [['n0'], ['n0', 'n1', 'n2']]) {
      const world = await new World(3).settle();
      world.heard.clear();
      world.fallSilent(...silent);
      const watch = world.watch('n0');
      await world.clock.pass(59 * S);
      expect(watch.ended).toBeNull();
      await world.clock.pass(3 * S);
      expect(watch.ended).toMatchObject({
        message: "n0 can't be judged here: this control plane hears none of 2 other nodes",
      });
    }
  });

  it('when it was cut off for a part of the period', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(LOST_AFTER - 5 * S);
    world.heard.clear();
    await world.clock.pass(2 * S);
    for (const node of ['n1', 'n2']) world.heard.add(node);
    await world.clock.pass(LOST_AFTER - 2 * S);
    expect(watch.ended).toBeNull();
    await world.clock.pass(3 * HEARTBEAT);
    expect(watch.ended).toMatchObject({ verdict: 'dark' });
  });

  it('before another node was heard at the end of the period', async () => {
    const world = await new World(3).settle();
    world.beating = false;
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(4 * LOST_AFTER);
    expect(watch.ended).toBeNull();
    world.beating = true;
    await world.clock.pass(2 * S);
    expect(watch.ended).toMatchObject({ verdict: 'dark' });
  });

  it('while a connection may still be taken', async () => {
    const world = await new World(3).settle();
    world.hanging = true;
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(4 * LOST_AFTER);
    expect(watch.ended).toBeNull();
  });

  it('while Temporal is away', async () => {
    const world = await new World(3).settle();
    world.fallSilent('n0');
    const watch = world.watch('n0');
    await world.clock.pass(5 * S);
    world.ledgerAway = true;
    await world.clock.pass(50 * S);
    expect(watch.ended).toBeNull();
    world.ledgerAway = false;
    await world.clock.pass(LOST_AFTER - S);
    expect(watch.ended).toBeNull();
    await world.clock.pass(3 * HEARTBEAT);
    expect(watch.ended).toMatchObject({ verdict: 'dark' });
  });

  it('while the ledger doesn’t know the node, or the route table is not known', async () => {
    const unknown = await new World(3).settle();
    unknown.fallSilent('n0');
    unknown.ledger.shift();
    const tableless = await new World(3).settle();
    tableless.fallSilent('n0');
    tableless.tableKnown = false;
    const watches = [unknown.watch('n0'), tableless.watch('n0')];
    await unknown.clock.pass(59 * S);
    await tableless.clock.pass(59 * S);
    expect(watches.map(w => w.ended)).toEqual([null, null]);
  });
});

describe('what a node serves', () => {
  it('is reachable when its port takes a connection', async () => {
    const server = createServer().listen(0, '127.0.0.1');
    await new Promise(resolve => server.once('listening', resolve));
    const { port } = server.address() as { port: number };
    expect(await accepts(`http://127.0.0.1:${port}`)).toBe(true);
    await new Promise(resolve => server.close(resolve));
    expect(await accepts(`http://127.0.0.1:${port}`)).toBe(false);
    expect(await accepts('not an address')).toBe(false);
  });

  it('is what the route table has of it, with the last success of each router', async () => {
    const table = { version: 1, endpoints: [endpoint('n0'), endpoint('n1')] };
    const hub = new RouteHub({ pull: async () => table, log: {} as Logger });
    const plane = dataPlaneOf(hub);
    expect(plane.endpointsOf('n0')).toBeNull();
    await hub.refresh();
    expect(plane.endpointsOf('n0')).toEqual([endpoint('n0')]);
    expect(plane.endpointsOf('n2')).toEqual([]);
    const count = { outstanding: 0, ok: 1, failed: 0 };
    const told = { replica: 'on-n0', fence: 7, ...count, last_success: '2026-01-01T00:00:00Z' };
    hub.report('router-1', { version: 1, endpoints: [told], queued: {} });
    expect(plane.lastSuccess('on-n0', 7)).toEqual(new Map([['router-1', '2026-01-01T00:00:00Z']]));
    expect(plane.lastSuccess('on-n0', 8)).toEqual(new Map());
    const more = { ...told, outstanding: 2, failed: 3 };
    hub.report('router-2', { version: 1, endpoints: [more], queued: {} });
    expect([plane.unanswered('on-n0', 7), plane.unanswered('on-n0', 8)]).toEqual([5, 0]);
  });

  it('is the endpoint of its gang on a node without one of its own, until that leaves the table (INV-5)', async () => {
    const gang = { ...endpoint('n0'), nodes: ['n1', 'n2'] };
    let table = { version: 1, endpoints: [gang] };
    const hub = new RouteHub({ pull: async () => table, log: {} as Logger });
    await hub.refresh();
    const world = await new World(4).settle();
    const plane = dataPlaneOf(hub);
    world.endpointsOf = node => plane.endpointsOf(node);
    world.serving.add('n0');
    world.fallSilent('n1', 'n3');
    const [follower, stranger] = [world.watch('n1'), world.watch('n3')];
    await world.clock.pass(LOST_AFTER + 3 * HEARTBEAT);
    expect(follower.ended).toEqual({
      verdict: 'serving',
      evidence: 'on-n0 takes connections at http://n0:20000',
    });
    expect((stranger.ended as SilentVerdict).evidence).toContain('it serves nothing for 30s');
    const unsupervised = world.watch('n1', 'unsupervised');
    await world.clock.pass(2 * LOST_AFTER);
    expect(unsupervised.ended).toBeNull();
    table = { version: 2, endpoints: [] };
    await hub.refresh();
    await world.clock.pass(LOST_AFTER + 3 * HEARTBEAT);
    expect(unsupervised.ended).toMatchObject({ verdict: 'dark' });
  });

  it('is no answer for a follower’s node where requests had none for as long as routers wait; an idle gang’s is', async () => {
    const gang = { ...endpoint('n0'), nodes: ['n1'] };
    const world = await new World(3).settle();
    world.endpointsOf = node => (node === 'n2' ? [] : [gang]);
    world.serving.add('n0');
    world.successes.set('router-1', '2026-01-01T00:00:00Z');
    world.unanswered = 4;
    world.fallSilent('n0', 'n1');
    const watch = (): Watching => world.watch('n1', 'unsupervised');
    const idle = watch();
    await world.clock.pass(FOR_MS + S);
    expect(idle.ended).toMatchObject({ verdict: 'unchanged' });
    // Some in vain and then one that is answered: what counts is what comes after.
    const served = watch();
    world.unanswered = 6;
    await world.clock.pass(FOR_MS - 5 * S);
    world.successes.set('router-1', '2026-01-01T00:10:00Z');
    await world.clock.pass(10 * S);
    expect(served.ended).toMatchObject({ verdict: 'unchanged' });
    const [vain, first] = [watch(), world.watch('n0', 'unsupervised')];
    world.unanswered = 7;
    await world.clock.pass(FOR_MS + S);
    expect([vain.ended, first.ended]).toMatchObject([{ verdict: 'unchanged' }, { verdict: 'unchanged' }]);
    const [dark, still] = [watch(), world.watch('n0', 'unsupervised')];
    await world.clock.pass(LOST_AFTER + 3 * HEARTBEAT);
    expect(dark.ended).toMatchObject({ verdict: 'dark' });
    expect(still.ended).toBeNull();
    // Nor does that port bring it back; an answer does.
    const lost = world.watch('n1', 'lost');
    await world.clock.pass(2 * LOST_AFTER);
    expect(lost.ended).toBeNull();
    world.successes.set('router-1', '2026-01-01T00:30:00Z');
    await world.clock.pass(2 * S);
    expect(lost.ended).toMatchObject({ verdict: 'serving', evidence: 'on-n0 answers router router-1' });
  });
});
