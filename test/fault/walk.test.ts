// A random walk through everything that dies and everything that people do, drawn by a seed, under 50 requests a second.
// Throughout, no two engines are on one GPU and the replica that is left in peace is served; afterwards everything is
// brought back and must be whole. A failure prints the seed and what was done: LLMGW_FAULT_SEED runs it again.
import { afterEach, expect, it } from 'vitest';
import { NODE } from '../e2e/configs.js';
import type { Service } from '../e2e/harness.js';
import { isRunning, kill } from '../e2e/processes.js';
import { DoubleHolders, expectEveryEngineHeld, expectNothingListens, replayAll } from './invariants.js';
import type { Load } from './load.js';
import { drawBy, LONG, ROUNDS, SEED, STEPS } from './seed.js';
import { deployed, expectCalm, expectOneHolder, moreAnswers, patiently, type World, world } from './world.js';

const B = 'gpu-b-01';
const STEADY = 'steady';
/** Whatever is done, is done to these. */
const NAMES = ['one', 'two'];

class Walk {
  readonly log: string[] = [];
  /** Replicas that are to run at the end. */
  readonly wanted = new Set(NAMES);
  private readonly paused = new Set<Service>();
  private readonly routersGone: { url: string; at: number }[] = [];
  private readonly began = performance.now();

  constructor(
    private readonly w: World,
    private readonly draw: ReturnType<typeof drawBy>,
    private readonly load: Load,
  ) {}

  private get parts(): Service[] {
    const { at, agents, routers } = this.w;
    return [at.temporal, at.server, ...Object.values(agents), ...routers.map(r => r.service)];
  }

  private runs = (s: Service): boolean => isRunning(s.pid());

  async step(): Promise<void> {
    for (const s of this.paused) kill(s.pid(), 'SIGCONT');
    this.paused.clear();
    const away = this.parts.filter(s => !this.runs(s));
    // What is away comes back about as often as something goes.
    if (away.length > 0 && this.draw.below(3) === 0) this.bring(this.draw.of(away));
    else if (this.draw.below(2) === 0) await this.harm();
    else await this.people();
    await moreAnswers(this.load, this.draw.below(70));
  }

  private say(text: string): void {
    this.log.push(`${((performance.now() - this.began) / 1000).toFixed(1)} s: ${text}`);
  }

  private bring(s: Service): void {
    this.say(`start ${s.name}`);
    // It may be killed again before it serves.
    s.start().catch(() => undefined);
  }

  private async harm(): Promise<void> {
    const choice = this.draw.below(4);
    if (choice === 0) return this.crash(this.draw.of(NAMES));
    const part = this.draw.of(this.parts.filter(s => this.runs(s)));
    const router = this.w.routers.find(r => r.service === part);
    const last = this.w.routers.filter(r => this.runs(r.service)).length === 1;
    if (router !== undefined && last) return this.crash(this.draw.of(NAMES));
    if (choice === 1 && router === undefined) {
      this.say(`stop ${part.name} for a while (SIGSTOP)`);
      kill(part.pid(), 'SIGSTOP');
      this.paused.add(part);
      return;
    }
    const signal = choice === 2 ? 'SIGTERM' : 'SIGKILL';
    this.say(`${signal} to ${part.name}`);
    await part.end(signal);
    if (router !== undefined) this.routersGone.push({ url: router.url, at: performance.now() });
  }

  private crash(name: string): void {
    const engine = this.w.at.engines(name).find(p => p.kind === 'engine');
    this.say(`crash the engine of ${name}${engine === undefined ? ': it has none' : ` (${engine.mark})`}`);
    if (engine !== undefined) kill(engine.pid, 'SIGKILL');
  }

  private async people(): Promise<void> {
    const name = this.draw.of(NAMES);
    const id = `replica/${name}`;
    const any = `replica/${this.draw.of([...NAMES, STEADY])}`;
    const node = this.draw.of([NODE, B]);
    const acts: [string, () => Promise<unknown>][] = [
      [`cancel ${id}`, () => this.ended(name, this.w.workflow('cancel', id))],
      [`terminate ${id}`, () => this.ended(name, this.w.workflow('terminate', id))],
      [`start ${id}`, () => this.started(name, ['--fail-existing'])],
      [`start ${id}`, () => this.started(name, ['--fail-existing'])],
      [`start ${any} over the running one`, () => this.over(any.slice('replica/'.length))],
      [
        `reset ${any}`,
        () => this.w.workflow('reset', any, '--type', 'FirstWorkflowTask', '--reason', 'walk'),
      ],
      [`restart ${id}`, () => this.w.workflowUpdate(id, 'restart')],
      ['terminate fleet', () => this.w.workflow('terminate', 'fleet')],
      [
        'reset fleet',
        () => this.w.workflow('reset', 'fleet', '--type', 'FirstWorkflowTask', '--reason', 'walk'),
      ],
      [`terminate node/${node}`, () => this.w.workflow('terminate', `node/${node}`)],
      ...(LONG ? [['delete the database', () => this.forgetAll()] as [string, () => Promise<unknown>]] : []),
    ];
    const [what, act] = this.draw.of(acts);
    if (!this.runs(this.w.at.temporal)) return this.say(`${what}: Temporal is away`);
    const refused = await act().then(
      () => '',
      (err: Error) => ` (refused: ${err.message.split('\n')[0]!.slice(0, 120)})`,
    );
    this.say(`${what}${refused}`);
  }

  private async ended(name: string, done: Promise<unknown>): Promise<void> {
    await done;
    this.wanted.delete(name);
  }

  private async started(name: string, policy: string[]): Promise<void> {
    await this.w.startAgain(name, policy);
    if (NAMES.includes(name)) this.wanted.add(name);
  }

  private over = (name: string): Promise<void> =>
    this.started(name, ['--id-conflict-policy', 'TerminateExisting']);

  private async forgetAll(): Promise<void> {
    await this.w.newTemporal();
    // Whoever it was that ran, somebody starts it again in the end.
    for (const name of NAMES) this.wanted.add(name);
  }

  /** Everything runs again, and what people want to run is started. */
  async bringBack(): Promise<void> {
    for (const s of this.paused) kill(s.pid(), 'SIGCONT');
    this.paused.clear();
    this.say('bring everything back');
    for (const s of this.parts) if (!this.runs(s)) await s.start();
    for (const name of [STEADY, ...this.wanted]) await this.w.startAgain(name, []).catch(() => undefined);
    for (const name of NAMES)
      if (!this.wanted.has(name)) await this.w.workflow('cancel', `replica/${name}`).catch(() => undefined);
  }

  /** Failures beyond what killed routers had in flight. */
  unallowed(failed: readonly { router: string; began: number }[]) {
    return failed.filter(f => !this.routersGone.some(g => g.url === f.router && f.began <= g.at));
  }
}

let w: World | null = null;
let load: Load | null = null;
afterEach(async () => {
  await load?.stop();
  await w?.close();
  [w, load] = [null, null];
});

for (const seed of Array.from({ length: ROUNDS }, (_, n) => SEED + n)) {
  it.runIf(LONG)(
    `a random walk by seed ${seed} leaves one engine a replica, one holder a GPU, and no request failed`,
    {
      timeout: 600_000,
    },
    async () => {
      w = await world({ nodes: { [B]: 2 }, secondRouter: true });
      const before = await deployed(w, STEADY);
      for (const name of NAMES) await deployed(w, name);
      load = w.load([STEADY]);
      const doubles = new DoubleHolders(w);
      const walk = new Walk(w, drawBy(seed), load);
      try {
        for (let n = 0; n < STEPS; n++) await walk.step();
        await walk.bringBack();
        await patiently(async () => {
          await expectCalm(w!);
          for (const name of [STEADY, ...walk.wanted]) await w!.at.untilPhase(name, 'ready');
          for (const name of NAMES.filter(n => !walk.wanted.has(n))) expect(w!.at.engines(name)).toEqual([]);
          await expectOneHolder(w!);
          await expectEveryEngineHeld(w!);
        });
        await moreAnswers(load);
        expect(walk.unallowed(await load.stop())).toEqual([]);
        // It was left in peace: the same engine all along.
        const after = await w.at.untilPhase(STEADY, 'ready');
        expect(after.members[0]).toMatchObject({ pid: before.members[0]!.pid });
        expect(after.fence).toBe(before.fence);
        await replayAll(w);
        for (const name of [STEADY, ...walk.wanted]) {
          await w.workflow('cancel', `replica/${name}`);
          expect((await w.at.closed(name)).status).toBe('CANCELED');
        }
        await patiently(async () => {
          expect(w!.at.engines()).toEqual([]);
          expect((await w!.ledger()).grants).toEqual({});
          expect((await w!.at.nodes()).map(n => n.gpus.free).toSorted()).toEqual([2, 8]);
        });
        expectNothingListens(w);
        expect(doubles.seen()).toEqual([]);
      } catch (error) {
        throw new Error(`seed ${seed} failed after:\n${walk.log.join('\n')}\n${(error as Error).message}`, {
          cause: error,
        });
      } finally {
        doubles.stop();
      }
    },
  );
}
