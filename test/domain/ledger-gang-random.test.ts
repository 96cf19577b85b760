// Gangs and single replicas on machines that are lost, rebooted and forgotten, with messages in any order and a ledger
// that is lost and rebuilt: a GPU has one holder, and nothing is freed without proof (INV-1, INV-2).
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { World } from './ledger-world.js';

const OFTEN = { deliver: 24, run: 8, ask: 3, start: 6, renew: 4, repeat: 3, all: 4 };
const NOW_AND_THEN = { end: 2, terminate: 2, closed: 2, 'new run': 3, lose: 4, back: 2, hello: 3, look: 2 };
const SELDOM = { reboot: 1, crash: 2, forget: 4, leak: 1, clear: 2, lost: 1, carry: 1 };
// Unbiased: what is small and alike makes no traffic.
const op = fc.noBias(
  fc.record({
    do: fc.oneof(
      ...Object.entries({ ...OFTEN, ...NOW_AND_THEN, ...SELDOM }).map(([what, weight]) => ({
        weight,
        arbitrary: fc.constant(what),
      })),
    ),
    n: fc.nat(99),
  }),
);

function play(w: World, what: string, k: number): void {
  const m = w.machines[k % w.machines.length]!;
  const r = w.replicas[Math.floor(k / 3) % w.replicas.length]!;
  const does: Record<string, () => void> = {
    deliver: () => w.deliver(k),
    all: () => w.deliverAll(),
    run: () => w.bringUp(r),
    repeat: () => w.repeat(k),
    ask: () => w.ask(r),
    start: () => w.start(r, m),
    renew: () => w.renew(r),
    end: () => w.end(r),
    terminate: () => w.terminate(r, false),
    closed: () => w.terminate(r, true),
    'new run': () => {
      if (!r.open) w.newRun(r);
    },
    lose: () => w.lose(m),
    back: () => w.back(m),
    hello: () => w.hello(m),
    reboot: () => w.reboot(m),
    crash: () => w.crash(m),
    forget: () => w.forget(m),
    leak: () => {
      m.leaks = true;
    },
    clear: () => w.clearLeaks(m),
    lost: () => w.lost(k),
    carry: () => w.carry(),
    look: () => w.look(),
  };
  does[what]!();
}

it('keeps one holder a GPU, and frees none without proof, whatever comes in whatever order', () => {
  let granted = 0;
  fc.assert(
    fc.property(fc.noBias(fc.array(op, { minLength: 30, maxLength: 90, size: 'max' })), ops => {
      const w = new World();
      for (const o of ops) {
        play(w, o.do, o.n);
        w.check();
      }
      granted += w.machines.reduce((sum, m) => sum + m.engines.length, 0);
    }),
    { numRuns: Number(process.env.GANG_RUNS ?? 200) },
  );
  // The worlds weren't all empty.
  expect(granted).toBeGreaterThan(50);
});
